#ifndef HEADRACE_KERNELS_CUDA_GPU_DEVICE_H_
#define HEADRACE_KERNELS_CUDA_GPU_DEVICE_H_

// GPU 0 for kernels_gpu_check. A call that fails ends the process with CUDA's words and exit code 1.

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/check_boxes.h"

namespace headrace::kernels::testing {

// `call` is told where `status` is no success.
void RequireCuda(cudaError_t status, const char* call);

std::string GpuName();

class GpuDevice : public CheckDevice {
 public:
  std::byte* Allocate(int64_t bytes) override;
  void Free(std::byte* memory) override;
  void Write(std::byte* to, std::span<const std::byte> from) override;
  void Read(const std::byte* from, std::span<std::byte> to) override;
  void Wait() override;
};

}  // namespace headrace::kernels::testing

#endif  // HEADRACE_KERNELS_CUDA_GPU_DEVICE_H_
