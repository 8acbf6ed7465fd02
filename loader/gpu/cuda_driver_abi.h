#ifndef HEADRACE_LOADER_GPU_CUDA_DRIVER_ABI_H_
#define HEADRACE_LOADER_GPU_CUDA_DRIVER_ABI_H_

// The part of the CUDA driver's C ABI that is used here (libcuda of CUDA 12 and 13): virtual memory management, by
// which processes share device memory. cuda_driver_abi_test.cc compares it with the toolkit's header. Source:
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html

#include <cstddef>

namespace headrace::cuda {

using Result = int;                           // CUresult
using Device = int;                           // CUdevice
using DevicePointer = unsigned long long;     // CUdeviceptr
using AllocationHandle = unsigned long long;  // CUmemGenericAllocationHandle

inline constexpr Result kResultSuccess = 0;
inline constexpr Result kResultInvalidValue = 1;
inline constexpr Result kResultOutOfMemory = 2;
inline constexpr Result kResultNotInitialized = 3;
inline constexpr Result kResultInvalidDevice = 101;
inline constexpr Result kResultInvalidHandle = 400;
inline constexpr Result kResultNotPermitted = 800;
inline constexpr Result kResultNotSupported = 801;

// CUdevice_attribute
inline constexpr int kVirtualMemoryManagementSupported = 102;
inline constexpr int kHandleTypePosixFdSupported = 103;
inline constexpr int kHandleTypeFabricSupported = 128;

// CUmemAllocationHandleType: bits in AllocationProp, one of them where memory is exported or imported. The handle is an
// int, cast to void* where it is imported, and a FabricHandle, by its address.
inline constexpr int kHandleTypeNone = 0, kHandleTypePosixFd = 1, kHandleTypeFabric = 8;

inline constexpr int kAllocationTypePinned = 1;  // CUmemAllocationType
inline constexpr int kMemLocationDevice = 1;     // CUmemLocationType
inline constexpr int kGranularityMinimum = 0, kGranularityRecommended = 1;
inline constexpr int kAccessNone = 0, kAccessRead = 1, kAccessReadWrite = 3;  // CUmemAccess_flags

struct MemLocation {  // CUmemLocation
  int type;
  int id;  // of the device
};

struct AllocationProp {  // CUmemAllocationProp
  int type;
  int requested_handle_types;
  MemLocation location;
  void* win32_handle_meta_data;
  struct Flags {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDesc {  // CUmemAccessDesc
  MemLocation location;
  int flags;
};

struct FabricHandle {  // CUmemFabricHandle
  unsigned char data[64];
};

// X(name, parameters). All return Result.
// clang-format off
#define HEADRACE_CUDA_DRIVER_FUNCTIONS(X) \
  X(cuInit, (unsigned flags)) \
  X(cuDriverGetVersion, (int* version)) \
  X(cuGetErrorName, (::headrace::cuda::Result result, const char** name)) \
  X(cuGetErrorString, (::headrace::cuda::Result result, const char** text)) \
  X(cuDeviceGet, (::headrace::cuda::Device* device, int ordinal)) \
  X(cuDeviceGetAttribute, (int* value, int attribute, ::headrace::cuda::Device device)) \
  X(cuMemGetAllocationGranularity, (size_t* granularity, const ::headrace::cuda::AllocationProp* prop, int option)) \
  X(cuMemCreate, (::headrace::cuda::AllocationHandle* handle, size_t bytes, \
                  const ::headrace::cuda::AllocationProp* prop, unsigned long long flags)) \
  X(cuMemRelease, (::headrace::cuda::AllocationHandle handle)) \
  X(cuMemAddressReserve, (::headrace::cuda::DevicePointer* pointer, size_t bytes, size_t alignment, \
                          ::headrace::cuda::DevicePointer wanted, unsigned long long flags)) \
  X(cuMemAddressFree, (::headrace::cuda::DevicePointer pointer, size_t bytes)) \
  X(cuMemMap, (::headrace::cuda::DevicePointer pointer, size_t bytes, size_t offset, \
               ::headrace::cuda::AllocationHandle handle, unsigned long long flags)) \
  X(cuMemUnmap, (::headrace::cuda::DevicePointer pointer, size_t bytes)) \
  X(cuMemSetAccess, (::headrace::cuda::DevicePointer pointer, size_t bytes, \
                     const ::headrace::cuda::AccessDesc* access, size_t count)) \
  X(cuMemGetAccess, (unsigned long long* flags, const ::headrace::cuda::MemLocation* location, \
                     ::headrace::cuda::DevicePointer pointer)) \
  X(cuMemExportToShareableHandle, (void* shareable, ::headrace::cuda::AllocationHandle handle, int type, \
                                   unsigned long long flags)) \
  X(cuMemImportFromShareableHandle, (::headrace::cuda::AllocationHandle* handle, void* shareable, int type))
// clang-format on

}  // namespace headrace::cuda

#endif  // HEADRACE_LOADER_GPU_CUDA_DRIVER_ABI_H_
