// The functions of CUDA's runtime that the shared object exports.

#include <algorithm>
#include <cstdio>
#include <utility>

#include "loader/gpu/cuda_abi.h"
#include "loader/testing/nccl_checker/copy.h"
#include "loader/testing/nccl_checker/event.h"
#include "loader/testing/nccl_checker/memory.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/stream.h"

namespace headrace::nccl_checker {
namespace {

using cuda::Error;

constexpr Error kErrorNotPermitted = 800, kErrorInvalidResourceHandle = 400;
constexpr int kVersion = 13000, kNoDevice = -2;  // cudaInvalidDeviceId

thread_local Error t_last_error = cuda::kSuccess;

// Runs `call` unless a host function calls it, and remembers its error for cudaGetLastError.
template <typename Call>
Error Guard(const char* name, const Call& call) {
  const Error error = CalledFromHostFunction(name) ? kErrorNotPermitted : call();
  if (error != cuda::kSuccess) t_last_error = error;
  return error;
}

template <typename Value>
Error Give(Value* out, Value value) {
  if (out == nullptr) return cuda::kErrorInvalidValue;
  *out = value;
  return cuda::kSuccess;
}

struct ErrorText {
  Error error;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {600, "cudaErrorNotReady", "device not ready"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {800, "cudaErrorNotPermitted", "operation not permitted"},
};

const ErrorText& TextOfError(Error error) {
  static constexpr ErrorText kUnknown{-1, "unrecognized error code", "unrecognized error code"};
  const auto* const found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const ErrorText& text) { return text.error == error; });
  return found == std::end(kErrors) ? kUnknown : *found;
}

}  // namespace
}  // namespace headrace::nccl_checker

namespace checker = headrace::nccl_checker;
namespace cuda = headrace::cuda;
using checker::Give;
using checker::Guard;

// Declared by the lists themselves, so that the definitions below cannot differ from them.
extern "C" {
#define DECLARE(name, parameters) cuda::Error name parameters;
HEADRACE_CUDA_FUNCTIONS(DECLARE)
#undef DECLARE
#define DECLARE(name, parameters) const char* name parameters;
HEADRACE_CUDA_TEXT_FUNCTIONS(DECLARE)
#undef DECLARE

cuda::Error cudaRuntimeGetVersion(int* version) {
  return Guard(__func__, [&] { return Give(version, checker::kVersion); });
}

cuda::Error cudaDriverGetVersion(int* version) {
  return Guard(__func__, [&] { return Give(version, checker::kVersion); });
}

cuda::Error cudaGetDeviceCount(int* count) {
  return Guard(__func__, [&] { return Give(count, checker::options().devices); });
}

cuda::Error cudaGetDevice(int* device) {
  return Guard(__func__, [&] { return Give(device, checker::CurrentDevice()); });
}

cuda::Error cudaSetDevice(int device) {
  return Guard(__func__, [&] { return checker::SetCurrentDevice(device); });
}

cuda::Error cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return Guard(__func__, [&] {
    if (device < 0 || device >= checker::options().devices) return cuda::kErrorInvalidDevice;
    if (id == nullptr || length < 13) return cuda::kErrorInvalidValue;
    std::snprintf(id, length, "0000:%02X:00.0", device + 1);
    return cuda::kSuccess;
  });
}

cuda::Error cudaMemGetInfo(size_t* free, size_t* total) {
  return Guard(__func__, [&] {
    if (free == nullptr || total == nullptr) return cuda::kErrorInvalidValue;
    checker::DeviceMemory(checker::CurrentDevice(), free, total);
    return cuda::kSuccess;
  });
}

cuda::Error cudaMalloc(void** pointer, size_t bytes) {
  return Guard(__func__, [&] { return checker::AllocateDevice(pointer, bytes); });
}

cuda::Error cudaFree(void* pointer) {
  return Guard(__func__, [&] { return checker::FreeDevice(pointer); });
}

cuda::Error cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return Guard(__func__, [&] { return checker::AllocateHost(pointer, bytes); });
}

cuda::Error cudaFreeHost(void* pointer) {
  return Guard(__func__, [&] { return checker::FreeHost(pointer); });
}

cuda::Error cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return Guard(__func__, [&] { return checker::RegisterHost(pointer, bytes, flags); });
}

cuda::Error cudaHostUnregister(void* pointer) {
  return Guard(__func__, [&] { return checker::UnregisterHost(pointer); });
}

cuda::Error cudaPointerGetAttributes(cuda::PointerAttributes* attributes, const void* pointer) {
  return Guard(__func__, [&] {
    if (attributes == nullptr) return cuda::kErrorInvalidValue;
    const checker::Allocation found = checker::FindAllocation(pointer);
    void* const address = const_cast<void*>(pointer);
    *attributes = {};
    attributes->type = found.type;
    attributes->device = found.type == cuda::kUnregistered ? checker::kNoDevice : found.device;
    attributes->device_pointer = found.type == cuda::kUnregistered ? nullptr : address;
    attributes->host_pointer = found.type == cuda::kDevice ? nullptr : address;
    return cuda::kSuccess;
  });
}

cuda::Error cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, cuda::Stream stream) {
  return Guard(__func__, [&] { return checker::Copy(to, from, bytes, kind, stream); });
}

cuda::Error cudaMemsetAsync(void* pointer, int value, size_t bytes, cuda::Stream stream) {
  return Guard(__func__, [&] { return checker::Fill(pointer, value, bytes, stream); });
}

cuda::Error cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, int kind, cuda::Stream stream) {
  return Guard(__func__, [&] {
    return checker::CopyRows(to, from, {width, height, to_pitch, from_pitch}, kind, stream);
  });
}

cuda::Error cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width, size_t height,
                              cuda::Stream stream) {
  return Guard(__func__, [&] { return checker::FillRows(pointer, pitch, value, width, height, stream); });
}

cuda::Error cudaStreamCreateWithFlags(cuda::Stream* stream, unsigned flags) {
  return Guard(__func__, [&] { return checker::CreateStream(stream, flags); });
}

cuda::Error cudaStreamDestroy(cuda::Stream stream) {
  return Guard(__func__, [&] { return checker::DestroyStream(stream); });
}

cuda::Error cudaStreamSynchronize(cuda::Stream handle) {
  return Guard("cudaStreamSynchronize", [&] {
    const checker::StreamRef stream = checker::FindLaunchedStream(handle, "cudaStreamSynchronize");
    if (stream == nullptr) return checker::kErrorInvalidResourceHandle;
    stream->Wait(stream->is_default() ? checker::Issue(stream, {"a synchronization", nullptr, {}}) : stream->last());
    return cuda::kSuccess;
  });
}

cuda::Error cudaStreamQuery(cuda::Stream handle) {
  return Guard("cudaStreamQuery", [&] {
    const checker::StreamRef stream = checker::FindLaunchedStream(handle, "cudaStreamQuery");
    if (stream == nullptr) return checker::kErrorInvalidResourceHandle;
    return stream->Idle() ? cuda::kSuccess : cuda::kErrorNotReady;
  });
}

cuda::Error cudaStreamWaitEvent(cuda::Stream stream, cuda::Event event, unsigned flags) {
  return Guard("cudaStreamWaitEvent",
               [&] { return flags != 0 ? cuda::kErrorInvalidValue : checker::WaitForEvent(stream, event); });
}

cuda::Error cudaEventCreateWithFlags(cuda::Event* event, unsigned flags) {
  return Guard(__func__, [&] { return checker::CreateEvent(event, flags); });
}

cuda::Error cudaEventDestroy(cuda::Event event) {
  return Guard(__func__, [&] { return checker::DestroyEvent(event); });
}

cuda::Error cudaEventRecord(cuda::Event event, cuda::Stream stream) {
  return Guard(__func__, [&] { return checker::RecordEvent(event, stream); });
}

cuda::Error cudaEventQuery(cuda::Event event) {
  return Guard(__func__, [&] { return checker::QueryEvent(event); });
}

cuda::Error cudaLaunchHostFunc(cuda::Stream handle, cuda::HostFunction function, void* argument) {
  return Guard("cudaLaunchHostFunc", [&] {
    const checker::StreamRef stream = checker::FindLaunchedStream(handle, "cudaLaunchHostFunc");
    if (stream == nullptr) return checker::kErrorInvalidResourceHandle;
    if (function == nullptr) return cuda::kErrorInvalidValue;
    checker::Issue(stream, {"a host function",
                            [function, argument] {
                              checker::t_in_host_function = true;
                              function(argument);
                              checker::t_in_host_function = false;
                            },
                            {}});
    return cuda::kSuccess;
  });
}

cuda::Error cudaGetLastError() {
  return checker::CalledFromHostFunction(__func__) ? checker::kErrorNotPermitted
                                                   : std::exchange(checker::t_last_error, cuda::kSuccess);
}

const char* cudaGetErrorName(cuda::Error error) { return checker::TextOfError(error).name; }

const char* cudaGetErrorString(cuda::Error error) { return checker::TextOfError(error).text; }

}  // extern "C"
