// The exported interface of libheadrace_cuda.so.

#include <cuda_runtime_api.h>

#include <cstdio>

#include "kernels/cuda/backend_api.h"
#include "kernels/cuda/launch.h"

namespace headrace::kernels::grid {

int32_t Report(cudaError_t status, const char* call, HeadraceKernelError* error) {
  if (error != nullptr) {
    error->code = static_cast<int32_t>(status);
    std::snprintf(error->text, sizeof error->text, "%s: %s (%s)", call, cudaGetErrorName(status),
                  cudaGetErrorString(status));
  }
  cudaGetLastError();  // an error that was told is not told again
  return static_cast<int32_t>(status);
}

DeviceScope::DeviceScope(int device) {
  status_ = cudaGetDevice(&before_);
  if (status_ == cudaSuccess && before_ != device) status_ = cudaSetDevice(device);
  if (before_ == device) before_ = -1;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

namespace {

int32_t DeviceCount(int32_t* count, HeadraceKernelError* error) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  *count = devices;
  return status == cudaSuccess ? 0 : Report(status, "cudaGetDeviceCount", error);
}

constexpr HeadraceKernelsV1 kKernels = {HEADRACE_KERNELS_VERSION, DeviceCount,       LaunchCopy,
                                        LaunchElementwise,        LaunchBlockMaxima, LaunchQuantize};

}  // namespace
}  // namespace headrace::kernels::grid

extern "C" __attribute__((visibility("default"))) const HeadraceKernelsV1* HeadraceKernels() {
  return &headrace::kernels::grid::kKernels;
}
