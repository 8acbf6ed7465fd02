#include "loader/gpu/device_memory.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Allocate(const CudaRuntime& cuda, int gpu, int64_t bytes,
                                                                     absl::string_view what) {
  return Make(cuda, gpu, /*pinned=*/false, bytes, what);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::AllocatePinned(const CudaRuntime& cuda, int gpu,
                                                                           int64_t bytes, absl::string_view what) {
  return Make(cuda, gpu, /*pinned=*/true, bytes, what);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> DeviceMemory::Make(const CudaRuntime& cuda, int gpu, bool pinned,
                                                                 int64_t bytes, absl::string_view what) {
  const CurrentDevice current(cuda, gpu);
  void* memory = nullptr;
  const cuda::Error error = pinned ? cuda.cudaHostAlloc(&memory, static_cast<size_t>(bytes), cuda::kHostAllocPortable)
                                   : cuda.cudaMalloc(&memory, static_cast<size_t>(bytes));
  absl::Status status = cuda.Check(error, what);
  if (status.ok()) {
    return std::unique_ptr<DeviceMemory>(new DeviceMemory(cuda, gpu, pinned, static_cast<std::byte*>(memory), bytes));
  }
  if (!HasCode(status, ErrorCode::kOutOfMemory)) return status;
  std::string free = pinned ? "pinned memory of the host" : absl::StrCat("memory of GPU ", gpu);
  size_t free_bytes = 0, total_bytes = 0;
  if (!pinned && cuda.cudaMemGetInfo(&free_bytes, &total_bytes) == cuda::kSuccess) {
    absl::StrAppend(&free, ", of which ", free_bytes, " of ", total_bytes, " are free");
  }
  return Error(ErrorCode::kOutOfMemory, absl::StrCat(what, ": ", bytes, " bytes are needed of the ", free));
}

DeviceMemory::~DeviceMemory() {
  const CurrentDevice current(cuda_, gpu_);
  if (pinned_) {
    cuda_.cudaFreeHost(data_);
  } else {
    cuda_.cudaFree(data_);
  }
}

}  // namespace headrace
