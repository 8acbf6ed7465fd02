#include "loader/sender.h"

#include <algorithm>
#include <utility>

#include "loader/staging.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Sender>> Sender::Create(Transport* transport, int64_t chunk_bytes, int64_t staging_bytes,
                                                       BoxWork* work) {
  HR_RETURN_IF_ERROR(CheckStaging(*transport, chunk_bytes, staging_bytes));
  return std::unique_ptr<Sender>(new Sender(transport, chunk_bytes, staging_bytes, work));
}

void Sender::Start(PeerId peer, const EdgeStream* stream, SourceOf source, int slot, absl::Span<const std::byte> sums,
                   uint64_t tag) {
  edges_.push_back(std::make_unique<Active>(Active{peer, stream, std::move(source), slot, sums, tag}));
  Active* const edge = edges_.back().get();
  Chunk signal = NewHostChunk(1);
  absl::StatusOr<OpId> op = transport_->Receive(peer, tag, absl::MakeSpan(signal.get(), 1));
  if (!op.ok()) return Fail(edge);
  ++edge->in_flight;
  pending_.emplace(*op, Message{edge, 0, std::move(signal), std::nullopt});
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

// One message an edge a turn, as long as there are chunks: no receiver waits for another one's whole edge.
absl::Status Sender::Post() {
  std::vector<Message> packed;
  do {
    packed.clear();
    absl::Status status;
    for (auto& edge : edges_) {
      if (!edge->ready || edge->dropped || edge->next == edge->stream->messages()) continue;
      if (status.ok()) status = PackNext(edge.get(), &packed);
    }
    const absl::Status finished = work_->Finish();
    if (status.ok()) status = finished;
    for (Message& message : packed) {
      if (status.ok()) {
        Send(std::move(message));
      } else {
        GiveBack(std::move(message));
      }
    }
    HR_RETURN_IF_ERROR(status);
  } while (!packed.empty());
  return absl::OkStatus();
}

// Unless no chunk is left.
absl::Status Sender::PackNext(Active* edge, std::vector<Message>* packed) {
  const auto kind = edge->stream->is_sums(edge->next) ? ChunkPool::Kind::kSums : ChunkPool::Kind::kData;
  HR_ASSIGN_OR_RETURN(Chunk chunk, chunks_.Take(kind));
  if (chunk == nullptr) return absl::OkStatus();
  Message message{edge, edge->stream->message_bytes(edge->next), std::move(chunk), kind};
  edge->stream->Pack(edge->next, edge->sums, edge->source, absl::MakeSpan(message.chunk.get(), message.bytes), work_);
  packed->push_back(std::move(message));
  return absl::OkStatus();
}

void Sender::Send(Message message) {
  Active* const edge = message.edge;
  absl::StatusOr<OpId> op =
      transport_->Send(edge->peer, edge->tag, absl::MakeConstSpan(message.chunk.get(), message.bytes));
  if (!op.ok()) {
    Fail(edge);
    return GiveBack(std::move(message));
  }
  ++edge->next;
  ++edge->in_flight;
  pending_.emplace(*op, std::move(message));
}

void Sender::GiveBack(Message message) {
  if (message.kind.has_value()) chunks_.GiveBack(*message.kind, std::move(message.chunk));
}

void Sender::Collect(absl::Duration max_wait) {
  std::vector<Completion> completions;
  transport_->Poll(max_wait, &completions);
  for (const Completion& c : completions) {
    auto it = pending_.find(c.op);
    if (it == pending_.end()) continue;
    Message message = std::move(it->second);
    pending_.erase(it);
    --message.edge->in_flight;
    if (!c.status.ok()) Fail(message.edge);
    // The receiver's signal is the first operation of an edge.
    message.edge->ready = true;
    GiveBack(std::move(message));
  }
  Forget();
}

absl::Status Sender::Progress(absl::Duration max_wait) {
  HR_RETURN_IF_ERROR(Post());
  Collect(max_wait);
  return absl::OkStatus();
}

}  // namespace headrace
