#ifndef HEADRACE_KERNELS_CUDA_LAUNCH_H_
#define HEADRACE_KERNELS_CUDA_LAUNCH_H_

// Inside libheadrace_cuda.so: errors, the current device, and the launches of each file of kernels.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/backend_api.h"

namespace headrace::kernels::grid {

// Writes down a failed call and returns its code.
int32_t Report(cudaError_t status, const char* call, HeadraceKernelError* error);

// Makes a device the calling thread's current one for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaError_t status() const { return status_; }

 private:
  int before_ = -1;
  cudaError_t status_;
};

// The functions of HeadraceKernelsV1.
int32_t LaunchCopy(const HeadraceLaunch* launch, const HeadraceTable* table, uint64_t* sums,
                   HeadraceKernelError* error);
int32_t LaunchElementwise(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error);
int32_t LaunchBlockMaxima(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error);
int32_t LaunchQuantize(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error);

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_LAUNCH_H_
