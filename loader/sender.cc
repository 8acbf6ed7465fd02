#include "loader/sender.h"

#include <algorithm>
#include <utility>

#include "loader/staging.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Sender>> Sender::Create(Transport* transport, int64_t chunk_bytes,
                                                       int64_t staging_bytes) {
  HR_RETURN_IF_ERROR(CheckStaging(*transport, chunk_bytes, staging_bytes));
  return std::unique_ptr<Sender>(new Sender(transport, chunk_bytes, staging_bytes));
}

void Sender::Start(PeerId peer, const EdgeStream* stream, SourceOf source, int slot, absl::Span<const std::byte> sums,
                   uint64_t tag) {
  edges_.push_back(std::make_unique<Active>(Active{peer, stream, std::move(source), slot, sums, tag}));
  Active* const edge = edges_.back().get();
  auto signal = std::make_unique<std::byte[]>(1);
  absl::StatusOr<OpId> op = transport_->Receive(peer, tag, absl::MakeSpan(signal.get(), 1));
  if (!op.ok()) return Fail(edge);
  ++edge->in_flight;
  pending_.emplace(*op, std::make_pair(edge, std::move(signal)));
}

void Sender::Fail(Active* edge) {
  edge->dropped = true;
  failed_.insert(edge->peer);
}

void Sender::Drop(PeerId peer) {
  Collect(absl::ZeroDuration());
  bool unfinished = false;
  for (auto& edge : edges_) {
    if (edge->peer != peer) continue;
    edge->dropped = true;
    unfinished = true;
  }
  // Nobody receives what is in flight, so its chunks would never come back; and the receiver disconnected at its end.
  if (unfinished) {
    transport_->Disconnect(peer);
    failed_.insert(peer);
    Collect(absl::ZeroDuration());
  }
  Forget();
}

// Removes edges that have nothing left to do.
void Sender::Forget() {
  std::erase_if(edges_,
                [](const auto& e) { return e->in_flight == 0 && (e->dropped || e->next == e->stream->messages()); });
}

bool Sender::Reads(int slot) const {
  return std::any_of(edges_.begin(), edges_.end(),
                     [&](const auto& e) { return e->slot == slot && !e->dropped && e->next < e->stream->messages(); });
}

void Sender::Post() {
  // One message an edge a turn, as long as there are chunks: no receiver waits for another one's whole edge.
  for (bool posted = true; posted;) {
    posted = false;
    for (auto& edge : edges_) {
      if (!edge->ready || edge->dropped || edge->next == edge->stream->messages()) continue;
      if (free_.empty()) {
        if (allocated_bytes_ + chunk_bytes_ > staging_bytes_) return;
        free_.push_back(std::make_unique<std::byte[]>(chunk_bytes_));
        allocated_bytes_ += chunk_bytes_;
        peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
      }
      std::unique_ptr<std::byte[]> chunk = std::move(free_.back());
      free_.pop_back();
      const int64_t bytes = edge->stream->message_bytes(edge->next);
      const absl::Span<std::byte> message(chunk.get(), bytes);
      edge->stream->Pack(edge->next, edge->sums, edge->source, message);
      absl::StatusOr<OpId> op = transport_->Send(edge->peer, edge->tag, message);
      if (!op.ok()) {
        Fail(edge.get());
        free_.push_back(std::move(chunk));
        continue;
      }
      ++edge->next;
      ++edge->in_flight;
      pending_.emplace(*op, std::make_pair(edge.get(), std::move(chunk)));
      posted = true;
    }
  }
}

void Sender::Collect(absl::Duration max_wait) {
  std::vector<Completion> completions;
  transport_->Poll(max_wait, &completions);
  for (const Completion& c : completions) {
    auto it = pending_.find(c.op);
    if (it == pending_.end()) continue;
    auto [edge, chunk] = std::move(it->second);
    pending_.erase(it);
    --edge->in_flight;
    if (!c.status.ok()) Fail(edge);
    // The first operation of an edge is the receiver's signal, in a byte of its own.
    if (std::exchange(edge->ready, true)) free_.push_back(std::move(chunk));
  }
  Forget();
}

void Sender::Progress(absl::Duration max_wait) {
  Post();
  Collect(max_wait);
}

}  // namespace headrace
