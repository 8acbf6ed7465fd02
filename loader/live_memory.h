#ifndef HEADRACE_LOADER_LIVE_MEMORY_H_
#define HEADRACE_LOADER_LIVE_MEMORY_H_

// One engine worker's buffers: where they are and what they were declared as, where a generation lands before its
// commit, and how it gets from there into the live ones; on the host, on a GPU, or with a shadow between.
//
// Thread rules: Prepare from one thread, the one that plans; the rest, but for the constant questions, from one thread
// too, the one that stages and commits.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/box_work.h"
#include "loader/gpu/gpu_copies.h"
#include "loader/gpu/gpu_memory.h"
#include "loader/receiver.h"
#include "loader/shadow.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// The buffers under one epoch's plan, by index in manifest.destination; aliases are left out.
struct LiveBuffers {
  std::map<int, std::byte*> live, on_gpu;  // of the host and of the GPU
  std::map<int, std::byte*> shadow;        // of both, empty without one
  std::optional<CommitBoxes> boxes;
};

class LiveMemory {
 public:
  // `part` and `memory` as given to Receiver::Join, whose errors these are. `transport` brings the bytes.
  static absl::StatusOr<std::unique_ptr<LiveMemory>> Create(const ReceiverOptions& options, const Manifest& part,
                                                            std::map<std::string, BufferMemory> memory,
                                                            const Transport& transport, bool standby);

  // Makes the shadow, the first time. Errors: its memory's.
  absl::StatusOr<LiveBuffers> Prepare(const Manifest& manifest, const Plan& plan, int64_t rank);

  // The first element of every buffer.
  std::map<std::string, const std::byte*> first_bytes() const;
  // What writes Destination: copies there out of what is mapped, or unpacks what comes in messages. Outlives the
  // transport's messages, as this does.
  BoxWork* work() const { return work_ == nullptr ? OnCpu() : work_.get(); }
  // Whether Stage writes buffers that a standby offers: live ones, or those that have no second copy in a shadow.
  bool StageWrites() const;
  int64_t shadow_bytes() const { return shadow_ == nullptr ? 0 : shadow_->bytes(); }
  int64_t pinned_bytes() const { return pinned_ == nullptr ? 0 : shadow_->bytes(); }

  // kDestinationMoved unless the host's buffers are where, and what, they were.
  absl::Status CheckUnmoved(const std::map<std::string, BufferMemory>& now) const;
  // Waits for the engine's steps on its stream (gpu/gpu_memory.h).
  absl::Status AwaitSteps(cuda::Stream stream, absl::Time deadline) const;
  // Where a generation's bytes are streamed to.
  const std::map<int, std::byte*>& Destination(const LiveBuffers& buffers) const;
  // What a generation that was streamed into the live buffers lacks: the zero fills.
  absl::Status FillLive(const LiveBuffers& buffers) const;
  // Out of the shadow, with the zero fills; nothing without one.
  absl::Status CopyToLive(const LiveBuffers& buffers) const;

 private:
  LiveMemory(const ReceiverOptions& options, std::map<std::string, BufferMemory> memory)
      : options_(options), memory_(std::move(memory)) {}
  absl::Status CheckDeclared(const Manifest& part) const;
  absl::Status CheckGpuMemory(const Manifest& part, const Transport& transport, bool standby) const;
  bool streams_into_gpu() const;
  absl::Status MakeWork(const Transport& transport);
  absl::Status MakeShadow(const Manifest& manifest, int64_t rank, const LiveBuffers& buffers);

  const ReceiverOptions options_;
  const std::map<std::string, BufferMemory> memory_;
  GpuMemory gpu_memory_;
  // Where bytes are streamed into the memory of a GPU.
  std::unique_ptr<BoxWork> work_;
  std::unique_ptr<GpuCopies> commits_;  // kDevice
  // Of the thread that plans.
  std::unique_ptr<ShadowMemory> shadow_;
  std::unique_ptr<PinnedMemory> pinned_;         // the shadow; may be none
  std::map<std::string, std::byte*> shadow_of_;  // by buffer
  // kDevice; the copies of every epoch, since none changes what the buffers are. So memory of the GPU, which the engine
  // may have taken meanwhile, is not needed again, nor freed, which would wait for what runs there.
  GpuCopies::Uploaded commit_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_LIVE_MEMORY_H_
