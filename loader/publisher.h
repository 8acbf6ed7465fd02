#ifndef HEADRACE_LOADER_PUBLISHER_H_
#define HEADRACE_LOADER_PUBLISHER_H_

// The library inside one trainer rank: offers that rank's buffers, generation by generation.
//
//   auto publisher = Publisher::Join(options, part, memory, std::move(transport));
//   ... train a step ...
//   publisher->Publish(step, deadline);
//   publisher->AwaitRelease(step, deadline);  // then train on
//
// kSnapshot: Publish copies (or converts) what is offered into one of two slots and returns; it waits only while
// receivers still read both. AwaitRelease returns at once: the weights may change as soon as Publish returned.
// kHold: nothing is copied, so no memory is taken. Publish makes the sums alone, and receivers read the weights
// themselves, which must not change from Publish until AwaitRelease returned.
//
// Buffers may lie in the memory of one GPU (`gpu`): Publish waits for what was enqueued on the trainer's stream before.
// By kSnapshot it copies them into the slot, and returns when that is done; the slot is host memory, or where the
// transport's regions are on that GPU (cuda) memory of its own there. By kHold, over
// transports of messages, the GPU sums them, and packs what is sent out of them, into its own memory where messages may
// be there (nccl), else into pinned memory; then all buffers are on the GPU, or none.
//
// Thread rules: Publish, AwaitRelease, Close and the destructor from one thread at a time; the rest from any. The
// source memory must outlive the publisher and must not change during Publish.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/gpu/cuda_abi.h"
#include "loader/member.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"

namespace headrace {

enum class Publishing { kSnapshot, kHold };

struct PublisherOptions {
  JobOptions job;
  int rank = 0;  // 0 <= rank < the job's publishers
  Publishing publishing = Publishing::kSnapshot;
  // Source buffers may be memory of this GPU; which are is found out. None: no CUDA is loaded, and all are the host's.
  std::optional<int> gpu;
  int64_t chunk_bytes = 256 << 10;  // of messages, and of the slots of rings (kHold); equal at all members
  // Caps the messages in flight; kHold, on transports that map: four chunks for each receiver.
  int64_t staging_bytes = 64 << 20;
};

struct PublisherStats {
  double plan_seconds = 0;      // planning and proof
  double snapshot_seconds = 0;  // of the last Publish: the copy itself, or the sums (kHold)
  double stall_seconds = 0;     // of the last Publish: all of it
  int64_t snapshot_bytes = 0;   // of one slot; kHold: no weights
  int64_t peak_staging_bytes = 0;
  int64_t pinned_bytes = 0;  // of the slots, where buffers are on a GPU; 0: the driver pins none, and copies are slower
};

class Publisher {
 public:
  // Joins the job and returns when all members agreed on the plan and the slots are allocated.
  //   part: the tensors that this rank knows, its source buffers, exactly one source placement whose rank they carry,
  //     `ignore` and `coupled`; destination must be empty.
  //   memory: the first element of each buffer by name. An empty buffer may be left out.
  // Errors: those of planning; kPeerLost, kUnauthenticated, kWrongJob, kDeadline; kOutOfMemory for the slots;
  // kInvalidOption when `memory` lacks a buffer, for kHold with a buffer that is converted or on a GPU, and for memory
  // of another GPU than the options name; kTransport: no CUDA runtime for the one that they name.
  static absl::StatusOr<std::unique_ptr<Publisher>> Join(const PublisherOptions& options, const Manifest& part,
                                                         std::map<std::string, const std::byte*> memory,
                                                         std::unique_ptr<Transport> transport);
  virtual ~Publisher() = default;

  // kGenerationNotGrowing; kDeadline names the receivers that still hold both slots; kInvalidOption: AwaitRelease did
  // not come before (kHold); kPeerLost and other ends of the session.
  // With a GPU nothing is read before all that was enqueued on its `stream` (null: the legacy default stream) has
  // ended: kDeadline when it does not, kTransport when it or the copies failed; nothing was published then. Without a
  // GPU a stream is kInvalidOption.
  virtual absl::Status Publish(uint64_t generation, absl::Time deadline, cuda::Stream stream) = 0;
  absl::Status Publish(uint64_t generation, absl::Time deadline) { return Publish(generation, deadline, nullptr); }
  // Waits until nobody reads the weights of `generation` any more: they may change then, whatever is returned but
  // kInvalidOption: another generation is held, which nothing is done to. OK also where replicas differ, which
  // AwaitCommit tells: then nobody has read them. kDeadline names the receivers that still read: the generation is void
  // from now on, and engines that have not decided on it give it up. kPeerLost and other ends of the session.
  virtual absl::Status AwaitRelease(uint64_t generation, absl::Time deadline) = 0;
  // Waits until every engine committed `generation` or a newer one. When an engine gave it up: the worker's own error,
  // under its code, naming the worker. kReplicaDivergence: publishers that offer the same bytes hold different ones,
  // all of them named with the tensors; no engine saw the generation. kAborted: a worker left without whom its engine
  // cannot commit. kDeadline.
  virtual absl::Status AwaitCommit(uint64_t generation, absl::Time deadline) = 0;
  // Waits until no receiver reads a slot, then leaves. kDeadline: left all the same.
  virtual absl::Status Close(absl::Time deadline) = 0;

  virtual absl::Status status() const = 0;
  virtual PublisherStats stats() const = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_PUBLISHER_H_
