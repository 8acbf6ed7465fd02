#ifndef HEADRACE_LOADER_RECEIVER_H_
#define HEADRACE_LOADER_RECEIVER_H_

// The library inside one engine worker: owns that worker's destination buffers.
//
//   auto receiver = Receiver::Join(options, part, memory, std::move(transport));
//   loop:
//     uint64_t g = *receiver->NextGeneration(deadline);
//     (in_place: pause the engine here)
//     receiver->Stage(g, restated_memory);  // stream, verify, vote; OK: every worker of the engine voted yes
//     (shadow: pause the engine here)
//     receiver->Commit(g);                  // the live buffers hold g; returns when all workers of the engine do
//     (resume the engine)
//
// With a shadow the engine may serve during Stage: live buffers are not touched before Commit. Without one (in_place)
// Stage writes live buffers, and an error leaves the worker poisoned: serving() is empty until a full generation
// commits. A worker never commits alone: see session/receiver_session.h.
//
// Live buffers may lie in the memory of one GPU (`gpu`), with a shadow alone, which is in host memory: Apply waits for
// what was enqueued on the engine's stream before, copies the shadow to them and returns when that is done. So steps
// that are in flight compute with the old weights, and those that are enqueued after Commit with the new ones.
//
// Thread rules: NextGeneration, Stage, Apply, Commit and Close from one thread at a time; the rest from any. The live
// memory must outlive the receiver and is written only inside Stage (in_place) and Apply or Commit.

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
#include "loader/session/receiver_session.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"

namespace headrace {

// Where a generation lands before it is committed.
enum class Shadow {
  kHost,    // a second set of buffers in host memory
  kDevice,  // a second set in the memory of the GPU where the live buffers are
  kOff,     // in_place: the live buffers
};

struct ReceiverOptions {
  JobOptions job;
  int engine = 0;
  int worker = 0;
  int workers = 0;  // of the engine; 0: as many as the coordinator was told. An engine that it was not told of says it
  Shadow shadow = Shadow::kHost;
  // Live buffers may be memory of this GPU; which are is found out. None: no CUDA is loaded, and all are the host's.
  std::optional<int> gpu;
  int64_t chunk_bytes = 256 << 10;  // two-sided transports; equal at all members
  int64_t staging_bytes = 64 << 20;
  absl::Duration transfer_timeout = absl::Seconds(120);
  ReceiverState carried;  // of an earlier session of this worker
};

// One live buffer as the host has it now.
struct BufferMemory {
  std::byte* data = nullptr;  // the first element
  Extents shape;
  Extents strides;  // elements
  // False: the engine does not compute with it (what its own loading code is fed from). Stage writes it, also with a
  // shadow, which then has no second copy of it. In GPU memory it is as any other: Apply writes it.
  bool live = true;
};

struct ReceiverStats {
  double plan_seconds = 0;
  double transfer_seconds = 0;  // of the last generation: streaming with the sums fused in
  double verify_seconds = 0;    // of the last generation: comparing sums and stamps
  double decision_seconds = 0;  // from this worker's vote to the decision
  double commit_seconds = 0;    // Apply: the copy to the live buffers and the zero fills
  int64_t copies = 0;           // of the last generation
  int64_t bytes = 0;
  int64_t needed_bytes = 0;    // what a generation brings to this worker
  int64_t streamed_bytes = 0;  // of the generation that is being staged, or was staged last: so far
  int64_t shadow_bytes = 0;
  int64_t pinned_bytes = 0;  // of the shadow, where buffers are on a GPU; 0: the driver pins none, commits are slower
  int64_t peak_staging_bytes = 0;
};

class Receiver {
 public:
  // Joins the job and returns when all members agreed on the plan.
  //   part: this worker's destination buffers and exactly one destination placement whose rank they carry; source and
  //     tensors may be empty (tensors that it names must agree with the publishers').
  //   memory: every buffer by name, aliases too.
  //   standby: another endpoint; where it is given, engines that come when no trainer is left may read this worker's
  //     live buffers (loader/standby.h) while they do not change.
  // Errors: as Publisher::Join; kOutOfMemory for the shadow; kDestinationMoved when `memory` is not what `part` says,
  // aliases and storages that lie apart included. kInvalidOption: memory of a GPU with `standby`, or of another GPU
  // than the options name; kDevice, or kOff with memory of a GPU, where some buffers are the host's or the transport
  // maps. kTransport: no CUDA runtime for the GPU that they name, or no kernels where it unpacks.
  static absl::StatusOr<std::unique_ptr<Receiver>> Join(const ReceiverOptions& options, const Manifest& part,
                                                        std::map<std::string, BufferMemory> memory,
                                                        std::unique_ptr<Transport> transport,
                                                        std::unique_ptr<Transport> standby = nullptr);
  virtual ~Receiver() = default;

  // Waits for an announced generation that was not staged yet, or for one that was given up before it was announced,
  // since the trainer's replicas differ: Stage tells it. kDeadline; kAborted: a publisher or another worker
  // left, so that none can come; kPeerLost and other ends of the session.
  virtual absl::StatusOr<uint64_t> NextGeneration(absl::Time deadline) = 0;

  // Brings `generation` in, verifies it, votes, and waits for the decision. `memory` restates the host's buffers: a
  // change is kDestinationMoved before anything is written. This worker's own error is returned as it is; when another
  // worker gave the generation up, its error under its code, naming the worker (kAborted: it left). kReplicaDivergence:
  // publishers hold different bytes of it, named with the tensors; nothing was written. kPeerLost, kAborted: the
  // membership changed since NextGeneration, and the generation is offered no more. kInvalidOption: not the
  // generation that NextGeneration returned. Afterwards serving() says what may be served.
  // kOff with buffers on a GPU: it waits first for all that was enqueued on `stream`, as Apply does; where that does
  // not end, this worker gives the generation up. With a shadow no stream is looked at.
  virtual absl::Status Stage(uint64_t generation, const std::map<std::string, BufferMemory>& memory,
                             cuda::Stream stream) = 0;
  absl::Status Stage(uint64_t generation, const std::map<std::string, BufferMemory>& memory) {
    return Stage(generation, memory, nullptr);
  }

  // The engine is paused: writes the staged generation to the live buffers. From its start until Commit returned OK the
  // worker serves nothing; a session that ends meanwhile leaves it poisoned.
  // With a GPU it waits first for all that was enqueued on its `stream` (null: the legacy default stream): kDeadline
  // when that takes longer than transfer_timeout, kTransport when it failed; nothing was begun then. kTransport too
  // when the copies failed, which ends the session and leaves the worker poisoned. Without a GPU a stream is
  // kInvalidOption.
  virtual absl::Status Apply(uint64_t generation, cuda::Stream stream) = 0;
  absl::Status Apply(uint64_t generation) { return Apply(generation, nullptr); }
  // Applies the generation unless that was done, and waits until every worker of the engine has come here. A host that
  // derives state from the weights, or loads some itself, does so between Apply and Commit. `stream`: Apply's.
  virtual absl::Status Commit(uint64_t generation, cuda::Stream stream) = 0;
  absl::Status Commit(uint64_t generation) { return Commit(generation, nullptr); }

  // The host failed between Apply and Commit: ends the session by `why`, which the other members learn, and leaves the
  // worker poisoned, also when the session is over already. Any thread.
  virtual void Abandon(const absl::Status& why) = 0;

  // The generation that may be served now (0: what was there at first); empty: poisoned.
  virtual std::optional<uint64_t> serving() const = 0;
  // For the next session of this worker.
  virtual ReceiverState Carry() const = 0;
  virtual absl::Status Close(absl::Time deadline) = 0;

  virtual absl::Status status() const = 0;
  virtual std::string WaitingFor() const = 0;
  virtual ReceiverStats stats() const = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_RECEIVER_H_
