#ifndef HEADRACE_LOADER_EXECUTOR_H_
#define HEADRACE_LOADER_EXECUTOR_H_

// The receiver's end of a transfer: brings one generation's bytes of all edges into a set of destination buffers,
// sums each copy on the way and compares with the publisher's sum.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/edge_stream.h"
#include "loader/slot.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

struct ExecutorOptions {
  int64_t chunk_bytes = 256 << 10;   // two-sided transports; equal at all members
  int64_t staging_bytes = 64 << 20;  // cap of the chunks being received
};

struct TransferStats {
  int64_t copies = 0;
  int64_t bytes = 0;
  int64_t peak_staging_bytes = 0;
  double transfer_seconds = 0;
  double verify_seconds = 0;  // of comparing sums and stamps; the sums themselves are fused into the transfer
};

// One edge to receive and how to reach its publisher.
struct IncomingEdge {
  Edge edge;
  std::string name;     // "publisher rank 3"
  std::string address;  // its endpoint
  std::shared_ptr<const SlotLayout> layout;
  std::vector<std::shared_ptr<const Mapping>> slots;  // mapped transports: by slot number
};

// Used by one thread, the transport's.
class Executor {
 public:
  // Keeps references. kStagingTooSmall: on a two-sided transport the cap holds no chunk for one edge.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const Manifest& manifest, const Plan& plan,
                                                          Transport* transport, std::vector<IncomingEdge> edges,
                                                          uint64_t incarnation, const ExecutorOptions& options);

  struct Request {
    uint64_t generation = 0;
    std::vector<int> slot_of_edge;  // where each edge's publisher holds the generation
    // The first element of each destination buffer, by its index in manifest.destination.
    std::map<int, std::byte*> destination;
    absl::Time deadline;
    // Orders the publisher of an edge to send (two-sided); called before the edge's first receive is waited for.
    std::function<absl::Status(size_t edge)> start;
    // Asked between pieces of work; not OK: give up with that status.
    std::function<absl::Status()> interrupted;
  };

  // Returns when every byte landed and every sum agreed. kVerificationFailed names the tensor, both buffers and the
  // publisher; kGenerationChanged; kPeerLost; kDeadline; or what `interrupted` said. On an error destinations hold a
  // mixture, and nothing refers to them any more.
  absl::Status Run(const Request& request, TransferStats* stats);

  // What has arrived of the generation of the last Run, for progress: any thread, also during Run. Two-sided transports
  // count the sums that come first too.
  int64_t streamed_bytes() const { return streamed_bytes_.load(std::memory_order_relaxed); }

 private:
  Executor(const Manifest& manifest, const Plan& plan, Transport* transport, std::vector<IncomingEdge> edges,
           uint64_t incarnation, const ExecutorOptions& options)
      : manifest_(manifest),
        plan_(plan),
        transport_(transport),
        edges_(std::move(edges)),
        incarnation_(incarnation),
        options_(options) {}

  absl::Status RunMapped(const Request& request, TransferStats* stats);
  absl::Status RunStreams(const Request& request, TransferStats* stats);
  absl::StatusOr<PeerId> PeerOf(size_t edge, absl::Time deadline);
  absl::Status CheckSum(const IncomingEdge& edge, size_t copy, uint64_t wanted, uint64_t got) const;

  const Manifest& manifest_;
  const Plan& plan_;
  Transport* const transport_;
  const std::vector<IncomingEdge> edges_;
  const uint64_t incarnation_;
  const ExecutorOptions options_;
  // Two-sided transports: by edge; a peer is forgotten when a transfer from it breaks off.
  std::vector<EdgeStream> streams_;
  std::vector<std::optional<PeerId>> peers_;
  int window_ = 0;  // chunks in flight for each edge
  std::atomic<int64_t> streamed_bytes_{0};
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_EXECUTOR_H_
