#include "loader/ring_outlet.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/time/clock.h"

namespace headrace {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

}  // namespace

void RingOutlet::Begin(std::shared_ptr<PublisherEpoch> epoch) {
  active_.clear();
  connected_.clear();
  epoch_ = std::move(epoch);
  std::set<std::string> addresses;
  for (const auto& [_, address] : epoch_->addresses) addresses.insert(address);
  std::lock_guard<std::mutex> lock(*transport_mutex_);
  std::erase_if(peers_, [&](const auto& peer) {
    if (addresses.contains(peer.first)) return false;
    transport_->Disconnect(peer.second);
    return true;
  });
}

bool RingOutlet::Connect(const Order& order, PackRingWriter* ring) {
  if (connected_[ring]) return true;
  std::lock_guard<std::mutex> lock(*transport_mutex_);
  const absl::Time deadline = absl::Now() + kConnectTimeout;
  const std::string& address = epoch_->addresses.at(order.send.receiver);
  const absl::StatusOr<PeerId> peer = transport_->Connect(address, deadline);
  if (peer.ok()) peers_[address] = *peer;
  return connected_[ring] = peer.ok() && ring->Connect(transport_, *peer, order.send.means.ring_key, deadline).ok();
}

void RingOutlet::Start(const Order& order) {
  if (order.epoch != epoch_) Begin(order.epoch);
  const auto ring = epoch_->rings.find(order.send.receiver);
  // Whoever cannot be reached runs into its deadline, or is dead, which the session tells.
  if (ring == epoch_->rings.end() || !Connect(order, ring->second.get())) return;
  auto active = std::make_unique<Active>();
  active->receiver = order.send.receiver;
  active->ring = ring->second.get();
  active->source = order.source;
  active->generation = order.send.generation;
  active->slot = order.send.slot;
  const EpochPlan& plan = *epoch_->plan;
  const SumsLayout& layout = epoch_->writer->sums_layout();
  const absl::Span<const std::byte> sums = epoch_->SumsOf(order.send.slot);
  const int64_t source_rank = plan.SourceRank(epoch_->publisher);
  const int64_t rank = plan.DestinationRank(order.send.receiver);
  for (const Edge& edge : plan.plan().edges) {
    if (edge.destination_rank != rank || edge.source_rank != source_rank) continue;
    HoldSplit split = SplitForHold(plan.plan(), edge, {order.send.means.reads, /*pack=*/true});
    if (split.packed_copies.empty()) continue;
    auto packing = std::make_unique<Packing>(std::move(split), chunk_bytes_);
    for (const size_t copy : packing->split.packed_copies) {
      const std::byte* sum = sums.data() + layout.OffsetOfCopy(plan.plan(), edge, copy);
      packing->sums.insert(packing->sums.end(), sum, sum + sizeof(uint64_t));
    }
    active->edges.push_back(std::move(packing));
  }
  if (!active->edges.empty()) active_.push_back(std::move(active));
}

void RingOutlet::Drop(std::optional<int> engine, std::optional<int> worker) {
  std::erase_if(active_, [&](const auto& active) {
    const MemberKey& receiver = active->receiver;
    return receiver.engine == engine.value_or(receiver.engine) && receiver.rank == worker.value_or(receiver.rank);
  });
}

bool RingOutlet::Reads(int slot) const {
  return std::any_of(active_.begin(), active_.end(), [&](const auto& active) { return active->slot == slot; });
}

void RingOutlet::PackInto(Active* active, absl::Span<std::byte> slot) {
  const Packing& edge = *active->edges[active->edge];
  const int64_t bytes = edge.stream.message_bytes(active->message);
  edge.stream.Pack(active->message, edge.sums, active->source, slot.subspan(0, bytes));
  active->ring->Publish(active->generation, bytes);
  if (++active->message < edge.stream.messages()) return;
  ++active->edge;
  active->message = 0;
}

bool RingOutlet::Pack(Active* active) {
  bool packed = false;
  // A ring's worth a turn: no receiver waits for another one's whole edge.
  for (int i = 0; i < PackRingOptions::OfChunks(chunk_bytes_).slots && !active->over(); ++i) {
    const auto slot = active->ring->TryAcquire();
    if (!slot.ok()) {
      active->edge = active->edges.size();
      return packed;
    }
    if (!slot->has_value()) break;
    PackInto(active, **slot);
    packed = true;
  }
  return packed;
}

absl::Status RingOutlet::Progress(absl::Duration max_wait) {
  bool packed = false;
  for (auto& active : active_) packed |= Pack(active.get());
  std::erase_if(active_, [](const auto& active) { return active->over(); });
  if (packed || active_.empty()) return absl::OkStatus();
  // Any of them may go on first: waits for one, and looks at all soon.
  (void)active_.front()->ring->Acquire({absl::Now() + max_wait, nullptr});
  std::rotate(active_.begin(), active_.begin() + 1, active_.end());
  return absl::OkStatus();
}

}  // namespace headrace
