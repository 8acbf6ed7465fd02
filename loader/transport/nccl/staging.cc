#include "loader/transport/nccl/staging.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::nccl {

StagingPool::~StagingPool() {
  for (const Buffer& buffer : free_) {
    cuda_.cudaFree(buffer.device);
    cuda_.cudaFreeHost(buffer.pinned);
  }
}

absl::StatusOr<StagingPool::Buffer> StagingPool::Take() {
  Buffer buffer;
  if (!free_.empty()) {
    buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaMalloc(reinterpret_cast<void**>(&buffer.device), bytes_),
                                 absl::StrCat("nccl: ", bytes_, " bytes of device memory for messages")));
  const absl::Status pinned =
      cuda_.Check(cuda_.cudaHostAlloc(reinterpret_cast<void**>(&buffer.pinned), bytes_, cuda::kHostAllocPortable),
                  absl::StrCat("nccl: ", bytes_, " bytes of pinned memory for messages"));
  if (pinned.ok()) return buffer;
  cuda_.cudaFree(buffer.device);
  return pinned;
}

}  // namespace headrace::nccl
