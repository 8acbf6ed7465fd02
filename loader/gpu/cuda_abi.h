#ifndef HEADRACE_LOADER_GPU_CUDA_ABI_H_
#define HEADRACE_LOADER_GPU_CUDA_ABI_H_

// The part of the CUDA runtime's C ABI that is used here (libcudart 12 and 13), so that all of Headrace builds where
// there is no CUDA; cuda_abi_test.cc compares it with the toolkit's headers. Source:
// https://docs.nvidia.com/cuda/cuda-runtime-api/

#include <cstddef>

namespace headrace::cuda {

using Error = int;                     // cudaError_t
using Stream = struct StreamOpaque*;   // cudaStream_t
using Event = struct EventOpaque*;     // cudaEvent_t
using HostFunction = void (*)(void*);  // cudaHostFn_t: may call nothing of CUDA

inline constexpr Error kSuccess = 0;
inline constexpr Error kErrorInvalidValue = 1;
inline constexpr Error kErrorMemoryAllocation = 2;
inline constexpr Error kErrorInvalidDevice = 101;
inline constexpr Error kErrorNotReady = 600;

inline constexpr int kMemcpyHostToHost = 0, kMemcpyHostToDevice = 1, kMemcpyDeviceToHost = 2, kMemcpyDeviceToDevice = 3,
                     kMemcpyDefault = 4;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2, kEventInterprocess = 4;
inline constexpr unsigned kHostAllocPortable = 1, kHostRegisterPortable = 1;

enum MemoryType : int { kUnregistered = 0, kHost = 1, kDevice = 2, kManaged = 3 };

struct PointerAttributes {  // cudaPointerAttributes
  MemoryType type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];  // since CUDA 13
};

// X(name, parameters). All return Error but those of HEADRACE_CUDA_TEXT_FUNCTIONS.
// clang-format off
#define HEADRACE_CUDA_FUNCTIONS(X) \
  X(cudaRuntimeGetVersion, (int* version)) \
  X(cudaDriverGetVersion, (int* version)) \
  X(cudaGetDeviceCount, (int* count)) \
  X(cudaGetDevice, (int* device)) \
  X(cudaSetDevice, (int device)) \
  X(cudaDeviceGetPCIBusId, (char* id, int length, int device)) \
  X(cudaMemGetInfo, (size_t* free, size_t* total)) \
  X(cudaMalloc, (void** pointer, size_t bytes)) \
  X(cudaFree, (void* pointer)) \
  X(cudaHostAlloc, (void** pointer, size_t bytes, unsigned flags)) \
  X(cudaFreeHost, (void* pointer)) \
  X(cudaHostRegister, (void* pointer, size_t bytes, unsigned flags)) \
  X(cudaHostUnregister, (void* pointer)) \
  X(cudaPointerGetAttributes, (::headrace::cuda::PointerAttributes* attributes, const void* pointer)) \
  X(cudaMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, ::headrace::cuda::Stream stream)) \
  X(cudaMemcpy2DAsync, (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, \
                        int kind, ::headrace::cuda::Stream stream)) \
  X(cudaMemsetAsync, (void* pointer, int value, size_t bytes, ::headrace::cuda::Stream stream)) \
  X(cudaMemset2DAsync, (void* pointer, size_t pitch, int value, size_t width, size_t height, \
                        ::headrace::cuda::Stream stream)) \
  X(cudaStreamCreateWithFlags, (::headrace::cuda::Stream* stream, unsigned flags)) \
  X(cudaStreamDestroy, (::headrace::cuda::Stream stream)) \
  X(cudaStreamSynchronize, (::headrace::cuda::Stream stream)) \
  X(cudaStreamQuery, (::headrace::cuda::Stream stream)) \
  X(cudaStreamWaitEvent, (::headrace::cuda::Stream stream, ::headrace::cuda::Event event, unsigned flags)) \
  X(cudaEventCreateWithFlags, (::headrace::cuda::Event* event, unsigned flags)) \
  X(cudaEventDestroy, (::headrace::cuda::Event event)) \
  X(cudaEventRecord, (::headrace::cuda::Event event, ::headrace::cuda::Stream stream)) \
  X(cudaEventQuery, (::headrace::cuda::Event event)) \
  X(cudaLaunchHostFunc, (::headrace::cuda::Stream stream, ::headrace::cuda::HostFunction function, void* argument)) \
  X(cudaGetLastError, ())
#define HEADRACE_CUDA_TEXT_FUNCTIONS(X) \
  X(cudaGetErrorName, (::headrace::cuda::Error error)) \
  X(cudaGetErrorString, (::headrace::cuda::Error error))
// clang-format on

}  // namespace headrace::cuda

#endif  // HEADRACE_LOADER_GPU_CUDA_ABI_H_
