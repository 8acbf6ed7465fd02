#ifndef HEADRACE_LOADER_STREAMED_EXECUTOR_H_
#define HEADRACE_LOADER_STREAMED_EXECUTOR_H_

// Transfers over transports that do not map: edges come in messages (edge_stream.h), from their publisher or, within a
// stream's chain, from the rank before this one. A chunk that arrived is unpacked, then passed on out of the same
// memory, and used again when the next rank took it.
//
//   publisher  --messages-->  chain[0]  --messages-->  chain[1]  ...
//              <--  ready --            <--  ready --            ...     (stream_signal.h)
//                                       <--  done  --
//
// Why this never locks up, however small the staging is:
//   - Edges begin in plan order: by source rank and stream, the same order at every rank. An edge begins when there is
//     memory for a whole window of its chunks, which it keeps until it is over.
//   - A rank says that it is ready for a stream when the one behind it did. So whoever sends, sends into windows that
//     are there along the whole chain, whatever becomes of other edges: what was begun everywhere ends.
//   - Of the edges that are not over, the first in the common order is the first at each of its ranks, so all of them
//     begin it.
//
// When a rank breaks off, or takes no part at all (Decline), it tells those beside it. Those behind it cannot get their
// bytes and fail, naming it. Those before it can: they pass nothing on any more and go on.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "loader/chunk_pool.h"
#include "loader/edge_stream.h"
#include "loader/executor.h"
#include "loader/stream_tags.h"

namespace headrace {

class StreamedExecutor : public Executor {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const Manifest& manifest, const Plan& plan,
                                                          Transport* transport, std::vector<IncomingEdge> edges,
                                                          const ExecutorOptions& options, CancelledChunks* cancelled,
                                                          BoxWork* work);
  ~StreamedExecutor() override;

  void Begin(Request request) override;
  std::optional<absl::Status> Step(absl::Duration max_wait) override;
  void Decline(const Request& request) override;

 private:
  // An edge in this transfer.
  struct Flow {
    // Who passes the bytes on to this rank (none: the publisher sends them), and to whom this rank passes them on.
    const ChainMember* previous = nullptr;
    const ChainMember* next = nullptr;
    bool begun = false, asked = false, over = false;
    bool passes_on = false;  // to the next of the chain, until that one takes no more
    bool next_ready = false, next_done = false;
    int64_t posted = 0;             // receives
    int64_t arrived = 0;            // messages, unpacked
    int64_t passed = 0;             // messages, given to the transport
    int held = 0;                   // chunks
    std::map<int64_t, Chunk> kept;  // arrived, and behind one that did not: to be passed on in their order
    std::vector<uint64_t> wanted, got;
  };
  enum class Kind { kReceive, kPassOn, kAnswer };
  struct Pending {
    Kind kind;
    size_t edge;
    int64_t message;
    const std::string* address;
    Chunk buffer;
  };
  struct Arrived {
    size_t edge;
    int64_t message;
    Chunk chunk;
  };

  StreamedExecutor(const Manifest& manifest, const Plan& plan, Transport* transport, std::vector<IncomingEdge> edges,
                   const ExecutorOptions& options, StreamTags tags, CancelledChunks* cancelled, BoxWork* work);

  absl::Status Advance(absl::Duration max_wait);
  std::vector<Completion> Poll(absl::Duration max_wait);
  void Link(size_t edge);
  absl::Status Prepare();
  absl::Status BeginEdges();
  absl::Status PostReceives(size_t edge);
  absl::Status Ask(size_t edge);
  absl::Status Handle(Pending done, const absl::Status& status);
  absl::Status NotReceived(size_t edge, const absl::Status& status) const;
  void Unpack(size_t edge, int64_t message, absl::Span<const std::byte> bytes);
  absl::Status Arrive(Arrived arrived);
  absl::Status PassOn(size_t edge);
  absl::Status StopPassingOn(size_t edge);
  absl::Status PostAnswer(size_t edge);
  absl::Status HandleAnswer(size_t edge, const absl::Status& status);
  ChunkPool::Kind KindOf(size_t edge, int64_t message) const;
  void Release(size_t edge, int64_t message, Chunk chunk);
  void FinishWhenOver(size_t edge);
  bool AllArrived() const;
  absl::Status Late() const;
  absl::Status Verify();
  void BreakOff();
  void TellThoseBeside();

  // Posts one operation with a peer, which `post` does.
  template <typename F>
  absl::StatusOr<OpId> Post(const std::string& address, F&& post);
  absl::Status Signal(const std::string& address, const std::string& name, size_t edge);
  absl::StatusOr<PeerId> PeerOf(const std::string& address);
  void Forget(const std::string& address);
  void Track(OpId op, Pending pending);
  // Who sends the edge's bytes to this rank.
  const std::string& SenderName(size_t edge) const;
  const std::string& SenderAddress(size_t edge) const;
  uint64_t TagOf(size_t edge) const { return tags_.Of(edges_[edge].edge, request_.generation); }

  Transport* const transport_;
  const ExecutorOptions options_;
  const StreamTags tags_;
  CancelledChunks* const cancelled_;
  BoxWork* const work_;
  std::vector<EdgeStream> streams_;      // by edge
  int window_ = 1;                       // chunks of an edge
  std::map<std::string, PeerId> peers_;  // by address; forgotten when a transfer with them breaks off

  // Of a transfer.
  bool running_ = false, prepared_ = false;
  absl::Time begin_, connect_deadline_;
  std::vector<Flow> flows_;  // by edge
  std::unordered_map<OpId, Pending> pending_;
  std::map<std::string, int> under_way_;  // operations in pending_, by address
  std::set<std::string> started_;         // publishers that were ordered to send
  std::set<std::string> lost_;            // ranks that take no more
  std::vector<Arrived> arrived_;          // in the last poll
  std::optional<ChunkPool> chunks_;
  size_t next_edge_ = 0, active_ = 0, finished_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_STREAMED_EXECUTOR_H_
