#ifndef HEADRACE_LOADER_TESTING_CHECKER_GPUS_H_
#define HEADRACE_LOADER_TESTING_CHECKER_GPUS_H_

// Test only. What a test's main and its body need to run on the checker's GPUs (nccl_checker/nccl_checker.h,
// checker_kernels/checker_kernels.h), or on real ones, whose libraries the environment names then.

#include <cstdlib>

#include "loader/gpu/cuda_runtime.h"
#include "loader/gpu/gpu_options.h"
#include "loader/testing/checker_kernels/checker_kernels.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::testing {

// Names the checker's parts where the environment names nothing. Before any thread, and any use of CUDA.
inline void UseCheckerGpus() {
  setenv("HEADRACE_CUDA_RUNTIME", nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_CUDA_DRIVER", nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_NCCL", nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_CUDA_KERNELS", nccl_checker::kKernelsPath, 0);
}

inline const CudaRuntime& Cuda() { return **LoadCudaRuntime(GpuOptionsFromEnvironment().cuda_runtime); }

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_CHECKER_GPUS_H_
