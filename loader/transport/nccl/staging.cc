#include "loader/transport/nccl/staging.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::nccl {

StagingPool::~StagingPool() {
  if (memory_.device == nullptr) return;
  cuda_.cudaFree(memory_.device);
  cuda_.cudaFreeHost(memory_.pinned);
}

absl::Status StagingPool::Reserve() {
  if (memory_.device != nullptr) return absl::OkStatus();
  const size_t bytes = buffers_ * bytes_;
  Buffer memory;
  HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaMalloc(reinterpret_cast<void**>(&memory.device), bytes),
                                 absl::StrCat("nccl: ", bytes, " bytes of device memory for messages")));
  const absl::Status pinned =
      cuda_.Check(cuda_.cudaHostAlloc(reinterpret_cast<void**>(&memory.pinned), bytes, cuda::kHostAllocPortable),
                  absl::StrCat("nccl: ", bytes, " bytes of pinned memory for messages"));
  if (!pinned.ok()) {
    cuda_.cudaFree(memory.device);
    return pinned;
  }
  memory_ = memory;
  for (size_t i = 0; i < buffers_; ++i) free_.push_back({memory.device + i * bytes_, memory.pinned + i * bytes_});
  return absl::OkStatus();
}

StagingPool::Buffer StagingPool::Take() {
  const Buffer buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace headrace::nccl
