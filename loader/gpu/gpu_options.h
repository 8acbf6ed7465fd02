#ifndef HEADRACE_LOADER_GPU_GPU_OPTIONS_H_
#define HEADRACE_LOADER_GPU_GPU_OPTIONS_H_

// The environment variables of the GPU paths, all read here. What code says counts more.
//
//   HEADRACE_CUDA_RUNTIME       the libcudart to load, in place of the one that is mapped or found
//   HEADRACE_CUDA_DRIVER        the libcuda to load, likewise
//   HEADRACE_CUDA_KERNELS       the libheadrace_cuda.so to load, in place of the one that is found
//   HEADRACE_NCCL               the libnccl to load, likewise
//   NCCL_MULTI_RANK_GPU_ENABLE  NCCL's own: several ranks may share a GPU (since 2.30)

#include <string>

namespace headrace {

struct GpuOptions {
  std::string cuda_runtime;
  std::string cuda_driver;
  std::string kernels;
  std::string nccl;
  bool multi_rank_gpu = false;
};

GpuOptions GpuOptionsFromEnvironment();

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_GPU_OPTIONS_H_
