#ifndef HEADRACE_LOADER_EXECUTOR_H_
#define HEADRACE_LOADER_EXECUTOR_H_

// The receiver's end of a transfer: brings one generation's bytes of all edges into a set of destination buffers,
// sums each copy on the way and compares with the publisher's sum. Where the transport maps memory the bytes are read
// out of the publishers' slots (mapped_executor.h), otherwise they come in messages (streamed_executor.h).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/box_work.h"
#include "loader/chunk_pool.h"
#include "loader/held_edge.h"
#include "loader/slot.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

struct ExecutorOptions {
  int64_t chunk_bytes = 256 << 10;   // two-sided transports; equal at all members
  int64_t staging_bytes = 64 << 20;  // cap of the chunks being received or passed on
  uint64_t epoch = 0;                // two-sided transports: whose plan it is; equal at all members
};

struct TransferStats {
  int64_t copies = 0;
  int64_t bytes = 0;
  int64_t peak_staging_bytes = 0;
  double transfer_seconds = 0;
  double verify_seconds = 0;  // of comparing sums and stamps; the sums themselves are fused into the transfer
};

// A receiver of a stream's chain.
struct ChainMember {
  int64_t rank = 0;     // of the manifest
  std::string name;     // "engine 0 worker 1"
  std::string address;  // its endpoint
};

// One edge to receive and how to reach its publisher.
struct IncomingEdge {
  Edge edge;
  std::string name;     // "publisher rank 3"
  std::string address;  // its endpoint
  // Edges of streams, two-sided transports: all receivers of the stream's chain in its order, this one too.
  std::vector<ChainMember> chain;
  // Mapped transports: where in the publisher's memory things are; slots by their number, the sums of all slots.
  std::shared_ptr<const SlotLayout> layout;
  std::shared_ptr<const SumsLayout> sums_layout;
  std::vector<std::shared_ptr<const Mapping>> slots;
  std::shared_ptr<const Mapping> sums;
  // And where the publisher holds its weights, so that its slot has stamps alone.
  std::shared_ptr<HeldEdge> held;
};

// The first rank of a chain that takes part; none: no one does.
std::optional<int64_t> FirstOf(const std::vector<int64_t>& chain, const std::set<int64_t>& absent);

// Used by one thread, the transport's.
class Executor {
 public:
  // Keeps references. `edges` are all edges of this rank, in plan order. On a two-sided transport: kStagingTooSmall:
  // the cap holds no chunk for one edge; kInvalidOption: chunks or tags (stream_tags.h) do not fit the transport.
  // `work` copies out of what is mapped, or unpacks what comes in messages. It outlives the executor and the
  // transport's messages. `cancelled` takes the chunks of messages that the transport did not end in time; the same for
  // all executors of a transport.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const Manifest& manifest, const Plan& plan,
                                                          Transport* transport, std::vector<IncomingEdge> edges,
                                                          uint64_t incarnation, const ExecutorOptions& options,
                                                          CancelledChunks* cancelled, BoxWork* work = OnCpu());
  virtual ~Executor() = default;

  struct Request {
    uint64_t generation = 0;
    std::vector<int> slot_of_edge;  // where each edge's publisher holds the generation
    // The first element of each destination buffer, by its index in manifest.destination.
    std::map<int, std::byte*> destination;
    absl::Time deadline;
    // Destination ranks that take no part in this generation, since they hold it; the same at all that do. Chains leave
    // them out: the first that is left gets the bytes from the publisher (FirstOf).
    std::set<int64_t> absent;
    // Orders a publisher to send the generation, or to pack it into a ring. Called once for each publisher that does so
    // to this rank, with one of the edges on which it does: its direct one, or a stream's (two-sided: of which this
    // rank is the first). Of all these edges the publisher sends what this rank is ready for (sender.h).
    std::function<absl::Status(size_t edge)> start;
    // Asked between pieces of work; not OK: give up with that status.
    std::function<absl::Status()> interrupted;
  };

  // Begins a transfer, which Step carries on. The last one is over.
  virtual void Begin(Request request) = 0;
  // One piece of work: a part of a copy on transports that map; one poll, which waits for at most `max_wait`, and what
  // it brought on two-sided ones. The transfer's status when it is over, then not to be called again: OK when every
  // byte landed and every sum agreed (and what others wait for was passed on). kVerificationFailed names the tensor,
  // both buffers and the publisher; kGenerationChanged; kPeerLost or kTransport, naming the publisher or the receiver
  // that was to send (one that broke off is lost); kDeadline; what `work` failed by; or what `interrupted` said. On an
  // error destinations hold a mixture, and nothing refers to them any more.
  virtual std::optional<absl::Status> Step(absl::Duration max_wait) = 0;
  // Instead of a transfer: tells those beside this rank in chains that it takes no part in a generation that they may
  // be waiting for.
  virtual void Decline(const Request& request) = 0;
  // Begin, and Step until it is over.
  absl::Status Run(Request request, TransferStats* stats);

  // Of the last transfer.
  const TransferStats& stats() const { return stats_; }
  // What has arrived of the generation of the last transfer, for progress: any thread, also during Step. Two-sided
  // transports count the sums that come first, and what is only passed on, too.
  int64_t streamed_bytes() const { return streamed_bytes_.load(std::memory_order_relaxed); }

 protected:
  Executor(const Manifest& manifest, const Plan& plan, std::vector<IncomingEdge> edges)
      : manifest_(manifest), plan_(plan), edges_(std::move(edges)) {}

  // Compares the sums of a copy, by its index in the plan.
  absl::Status CheckSum(const IncomingEdge& edge, size_t copy, uint64_t wanted, uint64_t got) const;
  void CountCopy(size_t copy);

  const Manifest& manifest_;
  const Plan& plan_;
  const std::vector<IncomingEdge> edges_;
  Request request_;
  TransferStats stats_;
  std::atomic<int64_t> streamed_bytes_{0};
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_EXECUTOR_H_
