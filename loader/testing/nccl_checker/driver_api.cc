// The functions of CUDA's driver that the shared object exports.

#include <algorithm>
#include <atomic>

#include "loader/gpu/cuda_driver_abi.h"
#include "loader/testing/nccl_checker/options.h"
#include "loader/testing/nccl_checker/rules.h"
#include "loader/testing/nccl_checker/shareable_memory.h"

namespace headrace::nccl_checker {
namespace {

using cuda::Result;

constexpr int kDriverVersion = 13000;

std::atomic<bool> g_initialized{false};

// Runs `call` unless a host function calls it, or nobody called cuInit.
template <typename Call>
Result GuardDriver(const char* name, const Call& call) {
  if (CalledFromHostFunction(name)) return cuda::kResultNotPermitted;
  return g_initialized ? call() : cuda::kResultNotInitialized;
}

struct ResultText {
  Result result;
  const char *name, *text;
};
constexpr ResultText kResults[] = {
    {cuda::kResultSuccess, "CUDA_SUCCESS", "no error"},
    {cuda::kResultInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {cuda::kResultOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {cuda::kResultNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {cuda::kResultInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {cuda::kResultNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {cuda::kResultNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

// As the driver: null, and an error, where the result is unknown.
Result GiveText(Result result, const char* ResultText::*field, const char** out) {
  if (out == nullptr) return cuda::kResultInvalidValue;
  const auto* const found = std::find_if(std::begin(kResults), std::end(kResults),
                                         [&](const ResultText& text) { return text.result == result; });
  *out = found == std::end(kResults) ? nullptr : found->*field;
  return *out == nullptr ? cuda::kResultInvalidValue : cuda::kResultSuccess;
}

Result GetAttribute(int* value, int attribute, cuda::Device device) {
  if (value == nullptr) return cuda::kResultInvalidValue;
  if (device < 0 || device >= options().devices) return cuda::kResultInvalidDevice;
  switch (attribute) {
    case cuda::kVirtualMemoryManagementSupported:
      *value = 1;
      return cuda::kResultSuccess;
    case cuda::kHandleTypePosixFdSupported:
      *value = (options().handle_types & cuda::kHandleTypePosixFd) != 0;
      return cuda::kResultSuccess;
    case cuda::kHandleTypeFabricSupported:
      *value = (options().handle_types & cuda::kHandleTypeFabric) != 0;
      return cuda::kResultSuccess;
    default:
      return cuda::kResultInvalidValue;
  }
}

}  // namespace
}  // namespace headrace::nccl_checker

namespace checker = headrace::nccl_checker;
namespace cuda = headrace::cuda;
using checker::GuardDriver;

// Declared by the list itself, so that the definitions below cannot differ from it.
extern "C" {
#define DECLARE(name, parameters) cuda::Result name parameters;
HEADRACE_CUDA_DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE

cuda::Result cuInit(unsigned flags) {
  if (checker::CalledFromHostFunction(__func__)) return cuda::kResultNotPermitted;
  if (flags != 0) return cuda::kResultInvalidValue;
  checker::g_initialized = true;
  return cuda::kResultSuccess;
}

cuda::Result cuDriverGetVersion(int* version) {
  if (checker::CalledFromHostFunction(__func__)) return cuda::kResultNotPermitted;
  if (version == nullptr) return cuda::kResultInvalidValue;
  *version = checker::kDriverVersion;
  return cuda::kResultSuccess;
}

cuda::Result cuGetErrorName(cuda::Result result, const char** name) {
  return checker::GiveText(result, &checker::ResultText::name, name);
}

cuda::Result cuGetErrorString(cuda::Result result, const char** text) {
  return checker::GiveText(result, &checker::ResultText::text, text);
}

cuda::Result cuDeviceGet(cuda::Device* device, int ordinal) {
  return GuardDriver(__func__, [&] {
    if (device == nullptr) return cuda::kResultInvalidValue;
    if (ordinal < 0 || ordinal >= checker::options().devices) return cuda::kResultInvalidDevice;
    *device = ordinal;
    return cuda::kResultSuccess;
  });
}

cuda::Result cuDeviceGetAttribute(int* value, int attribute, cuda::Device device) {
  return GuardDriver(__func__, [&] { return checker::GetAttribute(value, attribute, device); });
}

cuda::Result cuMemGetAllocationGranularity(size_t* granularity, const cuda::AllocationProp* prop, int option) {
  return GuardDriver(__func__, [&] { return checker::MemGetAllocationGranularity(granularity, prop, option); });
}

cuda::Result cuMemCreate(cuda::AllocationHandle* handle, size_t bytes, const cuda::AllocationProp* prop,
                         unsigned long long flags) {
  return GuardDriver(__func__, [&] { return checker::MemCreate(handle, bytes, prop, flags); });
}

cuda::Result cuMemRelease(cuda::AllocationHandle handle) {
  return GuardDriver(__func__, [&] { return checker::MemRelease(handle); });
}

// The address that is wanted is a hint.
cuda::Result cuMemAddressReserve(cuda::DevicePointer* pointer, size_t bytes, size_t alignment, cuda::DevicePointer,
                                 unsigned long long flags) {
  return GuardDriver(__func__, [&] { return checker::MemAddressReserve(pointer, bytes, alignment, flags); });
}

cuda::Result cuMemAddressFree(cuda::DevicePointer pointer, size_t bytes) {
  return GuardDriver(__func__, [&] { return checker::MemAddressFree(pointer, bytes); });
}

cuda::Result cuMemMap(cuda::DevicePointer pointer, size_t bytes, size_t offset, cuda::AllocationHandle handle,
                      unsigned long long flags) {
  return GuardDriver(__func__, [&] { return checker::MemMap(pointer, bytes, offset, handle, flags); });
}

cuda::Result cuMemUnmap(cuda::DevicePointer pointer, size_t bytes) {
  return GuardDriver(__func__, [&] { return checker::MemUnmap(pointer, bytes); });
}

cuda::Result cuMemSetAccess(cuda::DevicePointer pointer, size_t bytes, const cuda::AccessDesc* access, size_t count) {
  return GuardDriver(__func__, [&] { return checker::MemSetAccess(pointer, bytes, access, count); });
}

cuda::Result cuMemGetAccess(unsigned long long* flags, const cuda::MemLocation* location, cuda::DevicePointer pointer) {
  return GuardDriver(__func__, [&] { return checker::MemGetAccess(flags, location, pointer); });
}

cuda::Result cuMemExportToShareableHandle(void* shareable, cuda::AllocationHandle handle, int type,
                                          unsigned long long flags) {
  return GuardDriver(__func__, [&] { return checker::MemExportToShareableHandle(shareable, handle, type, flags); });
}

cuda::Result cuMemImportFromShareableHandle(cuda::AllocationHandle* handle, void* shareable, int type) {
  return GuardDriver(__func__, [&] { return checker::MemImportFromShareableHandle(handle, shareable, type); });
}

}  // extern "C"
