#include "loader/message_outlet.h"

#include "absl/time/clock.h"
#include "loader/executor.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kReconnectTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<Outlet>> MessageOutlet::Create(Transport* transport, int64_t chunk_bytes,
                                                              int64_t staging_bytes, BoxWork* work) {
  HR_ASSIGN_OR_RETURN(auto sender, Sender::Create(transport, chunk_bytes, staging_bytes, work));
  return std::unique_ptr<Outlet>(new MessageOutlet(transport, std::move(sender)));
}

void MessageOutlet::Start(const Order& order) {
  if (order.epoch != epoch_) {
    Drop(std::nullopt, std::nullopt);
    epoch_ = order.epoch;
  }
  const MemberKey& receiver = order.send.receiver;
  const auto streams = epoch_->streams.find(receiver);
  if (streams == epoch_->streams.end()) return;  // nothing is sent to it: it does not order
  const std::string& address = epoch_->addresses.at(receiver);
  auto peer = peers_.find(receiver);
  if (peer != peers_.end() && (peer->second.address != address || sender_->TakeFailure(peer->second.id))) {
    transport_->Disconnect(peer->second.id);
    peers_.erase(peer);
    peer = peers_.end();
  }
  if (peer == peers_.end()) {
    absl::StatusOr<PeerId> id = transport_->Connect(address, absl::Now() + kReconnectTimeout);
    if (!id.ok()) return;  // the receiver's own deadline, or its death, tells the job
    peer = peers_.emplace(receiver, Peer{address, *id}).first;
  }
  const int slot = order.send.slot;
  const SumsLayout& sums = epoch_->writer->sums_layout();
  for (const EdgeStream& stream : streams->second) {
    const Edge& edge = stream.edge();
    // The others of a chain pass it on.
    const bool first = edge.stream < 0 ||
                       FirstOf(epoch_->plan->plan().streams[edge.stream].chain, order.absent) == edge.destination_rank;
    if (!first) continue;
    sender_->Start(peer->second.id, &stream, order.source, slot,
                   absl::MakeConstSpan(epoch_->SumsOf(slot)).subspan(sums.Offset(edge)),
                   epoch_->tags->Of(edge, order.send.generation));
  }
}

void MessageOutlet::Drop(std::optional<int> engine, std::optional<int> worker) {
  for (const auto& [receiver, peer] : peers_) {
    if (receiver.engine == engine.value_or(receiver.engine) && receiver.rank == worker.value_or(receiver.rank)) {
      sender_->Drop(peer.id);
    }
  }
}

}  // namespace headrace
