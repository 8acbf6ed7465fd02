#ifndef HEADRACE_LOADER_SHADOW_H_
#define HEADRACE_LOADER_SHADOW_H_

// A second set of one worker's destination buffers, in memory of our own on the host or on a GPU: a generation streams
// into it while the engine serves, and a commit copies it to the live buffers, which never move.

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/copy_table.h"
#include "loader/gpu/device_copies.h"
#include "loader/gpu/device_memory.h"
#include "loader/lowering.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// What a commit does to one worker's live buffers.
class CommitBoxes {
 public:
  // Of the destination buffers of `rank`; aliases have none. Zero fills are the plan's, which are proven.
  CommitBoxes(const Manifest& manifest, const Plan& plan, int64_t rank);

  // Copies every tensor element from the shadow (but of buffers that are their own), then clears the zero fills. `keep`
  // and gaps are not written. Buffers that `live` lacks are left out.
  void CopyAndFill(const std::map<int, std::byte*>& shadow, const std::map<int, std::byte*>& live) const;
  // The same where `live` is memory of a GPU; returns when all is written. An error leaves anything there.
  absl::Status CopyAndFill(const std::map<int, std::byte*>& shadow, const std::map<int, std::byte*>& live,
                           DeviceCopies* gpu) const;
  // The copies alone, for a GPU on which shadow and live buffers are.
  kernels::CopyTable CopiesOnGpu(const std::map<int, std::byte*>& shadow, const std::map<int, std::byte*>& live) const;
  // Clears the zero fills alone: what `in_place` adds to the bytes that were streamed.
  void Fill(const std::map<int, std::byte*>& live) const;
  // The same of live buffers on a GPU; returns when all are written.
  absl::Status Fill(const std::map<int, std::byte*>& live, DeviceCopies* gpu) const;
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Box {
    int destination;  // index into manifest.destination
    BufferBox box;
  };
  std::vector<Box> tensors_;
  std::vector<Box> zeros_;
  int64_t copied_bytes_ = 0;
};

class ShadowMemory {
 public:
  // Touches the memory once, so that no generation pays for it. `unserved` buffers (by index in manifest.destination)
  // need none: they are their own shadow. kOutOfMemory names the bytes needed.
  static absl::StatusOr<std::unique_ptr<ShadowMemory>> Allocate(const Manifest& manifest, int64_t rank,
                                                                const std::map<int, std::byte*>& unserved);
  // In the memory of a GPU, not touched. Of all buffers: work of the engine that reads those which it does not compute
  // with may still be under way there when the next generation streams.
  static absl::StatusOr<std::unique_ptr<ShadowMemory>> AllocateOnGpu(const Manifest& manifest, int64_t rank,
                                                                     const CudaRuntime& cuda, int gpu);
  ~ShadowMemory();
  ShadowMemory(const ShadowMemory&) = delete;
  ShadowMemory& operator=(const ShadowMemory&) = delete;

  // The first element of each buffer that is no alias, by its index in manifest.destination.
  const std::map<int, std::byte*>& buffers() const { return buffers_; }
  // All that was allocated; empty where no buffer needs any.
  absl::Span<std::byte> memory() { return {memory_, static_cast<size_t>(bytes_)}; }
  int64_t bytes() const { return bytes_; }

 private:
  // Works out what is needed; `Place` puts it into memory.
  ShadowMemory(const Manifest& manifest, int64_t rank, const std::map<int, std::byte*>& unserved);
  absl::Status AllocateOnHost(int64_t rank);
  void Place(std::byte* memory);

  std::byte* memory_ = nullptr;
  std::unique_ptr<DeviceMemory> on_gpu_;
  std::map<int, int64_t> offsets_;
  int64_t bytes_ = 0;
  std::map<int, std::byte*> buffers_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SHADOW_H_
