#ifndef HEADRACE_LOADER_TESTING_CHECKER_KERNELS_CHECKER_KERNELS_H_
#define HEADRACE_LOADER_TESTING_CHECKER_KERNELS_CHECKER_KERNELS_H_

// libheadrace_checker_kernels.so: a test part. It stands in for libheadrace_cuda.so where libheadrace_nccl_checker.so
// stands in for CUDA: the bodies of the real kernels, walked on the CPU (kernels/cuda/host_backend.h), as work of the
// checker's streams. A launch ends the process (or, where violations of the checker's rules "return", fails) unless its
// table, its sums, and the first byte of every source and destination are memory that the launch's device reaches: its
// own, or mapped with access for it (cuMemSetAccess); to look at them it waits for the stream.
//
// Copies and conversions. A test that uses it depends on //loader/testing/checker_kernels, has HEADRACE_CUDA_RUNTIME
// name the checker's file and HEADRACE_CUDA_KERNELS this one.

namespace headrace::nccl_checker {

// Of the runfiles.
inline constexpr char kKernelsPath[] = "loader/testing/checker_kernels/libheadrace_checker_kernels.so";

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_CHECKER_KERNELS_CHECKER_KERNELS_H_
