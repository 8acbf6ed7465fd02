#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_COPY_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_COPY_H_

// cudaMemcpyAsync and cudaMemsetAsync, and those of rows.

#include <cstddef>

#include "loader/gpu/cuda_abi.h"

namespace headrace::nccl_checker {

// Asynchronous between device and pinned memory. A copy from or to pageable memory returns when it is done: "might be
// synchronous with respect to host" and "will return only once the copy has completed",
// https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html.
cuda::Error Copy(void* to, const void* from, size_t bytes, int kind, cuda::Stream stream);
cuda::Error Fill(void* pointer, int value, size_t bytes, cuda::Stream stream);

// `height` rows of `width` bytes, each `pitch` bytes behind the one before.
struct Rows {
  size_t width, height;
  size_t to_pitch, from_pitch;
};
cuda::Error CopyRows(void* to, const void* from, const Rows& rows, int kind, cuda::Stream stream);
cuda::Error FillRows(void* pointer, size_t pitch, int value, size_t width, size_t height, cuda::Stream stream);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_COPY_H_
