#ifndef HEADRACE_LOADER_SENDER_H_
#define HEADRACE_LOADER_SENDER_H_

// The publisher's end of two-sided transfers: packs the ordered edges out of a slot and sends them, under a memory cap.
// A stream is ordered, and sent, once, to the first rank of its chain.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "loader/box_work.h"
#include "loader/chunk_pool.h"
#include "loader/edge_stream.h"
#include "loader/slot.h"
#include "loader/transport/transport.h"

namespace headrace {

// Used by one thread, the transport's.
class Sender {
 public:
  // `staging_bytes` caps the packed chunks in flight, over all edges. kStagingTooSmall: it holds no chunk; names both.
  // `work` packs, and outlives this and the transport's messages.
  static absl::StatusOr<std::unique_ptr<Sender>> Create(Transport* transport, int64_t chunk_bytes,
                                                        int64_t staging_bytes, BoxWork* work = OnCpu());

  // Sends an edge's messages under `tag` (stream_tags.h), which are in slot `slot`, at `source`, and stay leased until
  // the receiver released them, as soon as the receiver says that it is ready (stream_signal.h); `sums` are the edge's.
  // All arguments outlive the transfer or the next Drop of the peer.
  void Start(PeerId peer, const EdgeStream* stream, SourceOf source, int slot, absl::Span<const std::byte> sums,
             uint64_t tag);
  // Stops what was started for a peer: it gave the generation up, or died. Where something was left to send, the peer
  // is disconnected, which brings the chunks in flight back.
  void Drop(PeerId peer);
  // True once after a send to the peer failed or Drop disconnected it: connect to it anew before the next Start.
  bool TakeFailure(PeerId peer) { return failed_.erase(peer) > 0; }

  // Posts what fits and polls for at most `max_wait`. A failed send ends that edge; the receiver's own receives fail or
  // run into their deadline, and the session learns of a dead peer, so there is nothing to report here. An error: the
  // bytes could not be packed, and no more are sent.
  absl::Status Progress(absl::Duration max_wait);
  // Whether an edge has bytes of this slot to pack.
  bool Reads(int slot) const;
  // Edges that are not sent completely.
  size_t active() const { return edges_.size(); }
  int64_t peak_staging_bytes() const { return chunks_.peak_bytes(); }

 private:
  struct Active {
    PeerId peer;
    const EdgeStream* stream;
    SourceOf source;
    int slot;
    absl::Span<const std::byte> sums;
    uint64_t tag;
    int64_t next = 0;       // message to pack
    int64_t in_flight = 0;  // operations
    bool ready = false;     // so is the receiver
    bool dropped = false;
  };

  struct Message {
    Active* edge;
    int64_t bytes;
    Chunk chunk;
    std::optional<ChunkPool::Kind> kind;  // none: the receiver's signal, in a byte of its own
  };

  Sender(Transport* transport, int64_t chunk_bytes, int64_t staging_bytes, BoxWork* work)
      : transport_(transport), work_(work), chunks_(work, chunk_bytes, staging_bytes) {}

  absl::Status Post();
  absl::Status PackNext(Active* edge, std::vector<Message>* packed);
  void Send(Message message);
  void GiveBack(Message message);
  void Fail(Active* edge);
  void Collect(absl::Duration max_wait);
  void Forget();

  Transport* const transport_;
  BoxWork* const work_;
  ChunkPool chunks_;
  std::deque<std::unique_ptr<Active>> edges_;  // round robin
  std::set<PeerId> failed_;
  std::unordered_map<OpId, Message> pending_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SENDER_H_
