#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_STAGING_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_STAGING_H_

// Memory through which messages that lie on the host travel, shared by the lanes of an endpoint that send, or by those
// that receive.
//
// Allocating and freeing memory of the device, and pinning memory, may wait for all that runs on the device (CUDA C++
// Programming Guide, "Implicit Synchronization"), and what runs there may wait for this thread: a receive runs until
// the peer sends, and the peer's thread may wait in the same way for a send that is this one's to launch. So all of it
// is taken before the endpoint's first lane, when none of its kernels run, and kept until the endpoint ends, after its
// last lane. Meanwhile, whoever finds no buffer waits until one is returned.
//
// That is true of this endpoint alone. Kernels of another endpoint on the same GPU, or of the application, are waited
// for; they need other threads. NCCL takes memory of its own when it makes a communicator, and when that first sends or
// receives; those of lanes are non-blocking, so that it does so in threads of its own while this one goes on.
//
// Used by one thread at a time, whose current device is the endpoint's.

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "loader/gpu/cuda_runtime.h"

namespace headrace::nccl {

class StagingPool {
 public:
  struct Buffer {
    std::byte* device = nullptr;
    std::byte* pinned = nullptr;
  };

  // Of so many buffers of `bytes` each, on the device and as many on the host. `bytes` is a multiple of what each is
  // to be aligned to.
  StagingPool(const CudaRuntime& cuda, size_t buffers, size_t bytes) : cuda_(cuda), buffers_(buffers), bytes_(bytes) {}
  // No buffer is in use.
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Takes the memory, unless it was taken. kOutOfMemory, kTransport: none was.
  absl::Status Reserve();
  bool has_free() const { return !free_.empty(); }
  // There is a free one.
  Buffer Take();
  void Return(const Buffer& buffer) { free_.push_back(buffer); }

 private:
  const CudaRuntime& cuda_;
  const size_t buffers_, bytes_;
  Buffer memory_;  // of all buffers
  std::vector<Buffer> free_;
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_STAGING_H_
