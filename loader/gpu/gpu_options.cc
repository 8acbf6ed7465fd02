#include "loader/gpu/gpu_options.h"

#include <cstdlib>

namespace headrace {
namespace {

std::string Value(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

GpuOptions GpuOptionsFromEnvironment() {
  return {.cuda_runtime = Value("HEADRACE_CUDA_RUNTIME"),
          .cuda_driver = Value("HEADRACE_CUDA_DRIVER"),
          .kernels = Value("HEADRACE_CUDA_KERNELS"),
          .nccl = Value("HEADRACE_NCCL"),
          .multi_rank_gpu = Value("NCCL_MULTI_RANK_GPU_ENABLE") == "1"};
}

}  // namespace headrace
