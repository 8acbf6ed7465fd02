#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_STAGING_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_STAGING_H_

// Memory through which messages that lie on the host travel, shared by the lanes of an endpoint: as many buffers as
// groups ever ran at once, kept until the endpoint ends. cudaFree waits for all that runs on the device, and what runs
// there may wait for this thread: nothing is freed while messages travel.
//
// Used by one thread at a time, whose current device is the endpoint's.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/gpu/cuda_runtime.h"

namespace headrace::nccl {

class StagingPool {
 public:
  struct Buffer {
    std::byte* device = nullptr;
    std::byte* pinned = nullptr;
  };

  // Of buffers of `bytes` each, on the device and as many on the host.
  StagingPool(const CudaRuntime& cuda, size_t bytes) : cuda_(cuda), bytes_(bytes) {}
  // Frees the buffers that were returned.
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // One that was returned, or a new one. kOutOfMemory, kTransport.
  absl::StatusOr<Buffer> Take();
  void Return(const Buffer& buffer) { free_.push_back(buffer); }

 private:
  const CudaRuntime& cuda_;
  const size_t bytes_;
  std::vector<Buffer> free_;
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_STAGING_H_
