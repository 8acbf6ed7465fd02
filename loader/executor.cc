#include "loader/executor.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/strided_copy.h"
#include "loader/lowering.h"
#include "loader/staging.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int kMaxWindow = 4;
// A copy is one step between two looks at `interrupted`; longer ones are cut into steps of about this size.
constexpr Index kStepBytes = 64 << 20;

// A transport's error, with the publisher's name before its message.
absl::Status Naming(const absl::Status& status, const IncomingEdge& edge) {
  const ErrorCode code = HasCode(status, ErrorCode::kPeerLost)   ? ErrorCode::kPeerLost
                         : HasCode(status, ErrorCode::kDeadline) ? ErrorCode::kDeadline
                                                                 : ErrorCode::kTransport;
  return About(Error(code, absl::StrCat("receiving from ", edge.name, ": ", status.message())), {.peer = edge.name});
}

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

// Calls f with consecutive parts of the box, cut along its outermost loop (or its run) so that each is a step.
template <typename F>
absl::Status ForEachStep(const Copy& copy, F&& f) {
  const Index steps = copy.bytes() / kStepBytes + 1;
  Copy part = copy;
  if (steps == 1) return f(part);
  if (copy.loops.empty()) {
    for (Index done = 0; done < copy.run_bytes; done += part.run_bytes) {
      part.run_bytes = std::min(kStepBytes, copy.run_bytes - done);
      part.source_offset = copy.source_offset + done;
      part.destination_offset = copy.destination_offset + done;
      part.position = copy.position + done;
      HR_RETURN_IF_ERROR(f(part));
    }
    return absl::OkStatus();
  }
  const CopyLoop& outer = copy.loops[0];
  const Index rows = (outer.extent + steps - 1) / steps;
  for (Index row = 0; row < outer.extent; row += rows) {
    part.loops[0].extent = std::min(rows, outer.extent - row);
    part.source_offset = copy.source_offset + row * outer.source_stride;
    part.destination_offset = copy.destination_offset + row * outer.destination_stride;
    part.position = copy.position + row * outer.position_stride;
    HR_RETURN_IF_ERROR(f(part));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const Manifest& manifest, const Plan& plan,
                                                           Transport* transport, std::vector<IncomingEdge> edges,
                                                           uint64_t incarnation, const ExecutorOptions& options) {
  std::unique_ptr<Executor> e(new Executor(manifest, plan, transport, std::move(edges), incarnation, options));
  if (transport->capabilities().map || e->edges_.empty()) return e;
  HR_RETURN_IF_ERROR(CheckStaging(*transport, options.chunk_bytes, options.staging_bytes));
  const int64_t chunks = options.staging_bytes / options.chunk_bytes;
  e->window_ = static_cast<int>(std::clamp<int64_t>(chunks / static_cast<int64_t>(e->edges_.size()), 1, kMaxWindow));
  for (const IncomingEdge& edge : e->edges_) e->streams_.emplace_back(plan, edge.edge, options.chunk_bytes);
  e->peers_.resize(e->edges_.size());
  return e;
}

absl::StatusOr<PeerId> Executor::PeerOf(size_t edge, absl::Time deadline) {
  if (!peers_[edge]) {
    HR_ASSIGN_OR_RETURN(peers_[edge], transport_->Connect(edges_[edge].address, deadline));
  }
  return *peers_[edge];
}

absl::Status Executor::CheckSum(const IncomingEdge& edge, size_t copy, uint64_t wanted, uint64_t got) const {
  if (wanted == got) return absl::OkStatus();
  const Copy& c = plan_.copies[copy];
  const Buffer& destination = manifest_.destination[c.destination];
  return About(Error(ErrorCode::kVerificationFailed,
                     absl::StrCat("tensor \"", manifest_.tensors[c.tensor].name, "\" from ", edge.name, ", buffer \"",
                                  manifest_.source[c.source].name, "\" to rank ", destination.rank, ", buffer \"",
                                  destination.name,
                                  "\": the bytes that arrived are "
                                  "not those that were published. The generation was not committed")),
               {manifest_.tensors[c.tensor].name, destination.name, destination.rank, edge.name});
}

absl::Status Executor::Run(const Request& request, TransferStats* stats) {
  streamed_bytes_ = 0;
  return transport_->capabilities().map ? RunMapped(request, stats) : RunStreams(request, stats);
}

absl::Status Executor::RunMapped(const Request& request, TransferStats* stats) {
  const absl::Time begin = absl::Now();
  for (size_t e = 0; e < edges_.size(); ++e) {
    const IncomingEdge& edge = edges_[e];
    const absl::Span<const std::byte> slot = edge.slots[request.slot_of_edge[e]]->bytes();
    HR_RETURN_IF_ERROR(CheckSlot(slot, incarnation_, request.generation, edge.name));
    const std::byte* sums = slot.data() + edge.layout->SumsOffset(edge.edge);
    for (size_t i = 0; i < edge.edge.count; ++i) {
      const Copy& copy = plan_.copies[edge.edge.first + i];
      const std::byte* source = slot.data() + edge.layout->BufferOffset(copy);
      uint64_t got = 0, wanted = 0;
      HR_RETURN_IF_ERROR(ForEachStep(copy, [&](const Copy& part) {
        HR_RETURN_IF_ERROR(request.interrupted());
        if (absl::Now() > request.deadline) {
          return Error(ErrorCode::kDeadline, absl::StrCat("the transfer from ", edge.name, " did not end in time"));
        }
        got += kernels::CopyAndSum(Lower(part, source, request.destination.at(copy.destination)));
        streamed_bytes_ += part.bytes();
        return absl::OkStatus();
      }));
      std::memcpy(&wanted, sums + i * sizeof wanted, sizeof wanted);
      // Sums that differ because the slot was overwritten meanwhile are no corruption.
      if (wanted != got) HR_RETURN_IF_ERROR(CheckSlot(slot, incarnation_, request.generation, edge.name));
      HR_RETURN_IF_ERROR(CheckSum(edge, edge.edge.first + i, wanted, got));
      ++stats->copies;
      stats->bytes += copy.bytes();
    }
  }
  stats->transfer_seconds += Seconds(begin);
  const absl::Time verify = absl::Now();
  for (size_t e = 0; e < edges_.size(); ++e) {
    HR_RETURN_IF_ERROR(
        CheckSlot(edges_[e].slots[request.slot_of_edge[e]]->bytes(), incarnation_, request.generation, edges_[e].name));
  }
  stats->verify_seconds += Seconds(verify);
  return absl::OkStatus();
}

absl::Status Executor::RunStreams(const Request& request, TransferStats* stats) {
  struct Progress {
    int64_t posted = 0, done = 0;
    bool active = false;
    std::vector<uint64_t> wanted, got;
  };
  struct Pending {
    size_t edge;
    int64_t message;
    std::unique_ptr<std::byte[]> chunk;
  };
  const absl::Time begin = absl::Now();
  std::vector<Progress> progress(edges_.size());
  std::unordered_map<OpId, Pending> pending;
  std::vector<std::unique_ptr<std::byte[]>> free;
  int64_t allocated = 0;
  size_t finished = 0, next_edge = 0, active = 0;

  auto post = [&](size_t e) -> absl::Status {
    Progress& p = progress[e];
    while (p.posted < streams_[e].messages() && p.posted - p.done < window_) {
      if (free.empty()) {
        if (allocated + options_.chunk_bytes > options_.staging_bytes) return absl::OkStatus();
        free.push_back(std::make_unique<std::byte[]>(options_.chunk_bytes));
        allocated += options_.chunk_bytes;
        stats->peak_staging_bytes = std::max(stats->peak_staging_bytes, allocated);
      }
      std::unique_ptr<std::byte[]> chunk = std::move(free.back());
      free.pop_back();
      const absl::Span<std::byte> message(chunk.get(), streams_[e].message_bytes(p.posted));
      absl::StatusOr<PeerId> peer = PeerOf(e, request.deadline);
      if (!peer.ok()) return Naming(peer.status(), edges_[e]);
      absl::StatusOr<OpId> op = transport_->Receive(*peer, StreamTag(request.generation), message);
      if (!op.ok()) return Naming(op.status(), edges_[e]);
      pending.emplace(*op, Pending{e, p.posted++, std::move(chunk)});
    }
    return absl::OkStatus();
  };
  // Edges begin in plan order while there is staging for them.
  auto begin_edges = [&]() -> absl::Status {
    while (next_edge < edges_.size() &&
           static_cast<int64_t>(active + 1) * window_ * options_.chunk_bytes <= options_.staging_bytes) {
      Progress& p = progress[next_edge];
      p.wanted.assign(edges_[next_edge].edge.count, 0);
      p.got.assign(edges_[next_edge].edge.count, 0);
      p.active = true;
      ++active;
      HR_RETURN_IF_ERROR(post(next_edge));
      HR_RETURN_IF_ERROR(request.start(next_edge));
      ++next_edge;
    }
    return absl::OkStatus();
  };
  auto run = [&]() -> absl::Status {
    while (finished < edges_.size()) {
      HR_RETURN_IF_ERROR(begin_edges());
      HR_RETURN_IF_ERROR(request.interrupted());
      if (absl::Now() > request.deadline) {
        std::string waiting;
        for (size_t e = 0; e < edges_.size(); ++e) {
          if (progress[e].done < streams_[e].messages())
            absl::StrAppend(&waiting, waiting.empty() ? "" : ", ", edges_[e].name);
        }
        return Error(ErrorCode::kDeadline,
                     absl::StrCat("the transfer did not end in time; missing bytes of ", waiting));
      }
      std::vector<Completion> completions;
      transport_->Poll(absl::Milliseconds(20), &completions);
      for (const Completion& c : completions) {
        auto it = pending.find(c.op);
        if (it == pending.end()) continue;
        Pending done = std::move(it->second);
        pending.erase(it);
        if (!c.status.ok()) return Naming(c.status, edges_[done.edge]);
        Progress& p = progress[done.edge];
        const EdgeStream& stream = streams_[done.edge];
        stream.Unpack(
            done.message, {done.chunk.get(), static_cast<size_t>(stream.message_bytes(done.message))},
            [&](int destination) { return request.destination.at(destination); }, absl::MakeSpan(p.wanted),
            absl::MakeSpan(p.got));
        streamed_bytes_ += stream.message_bytes(done.message);
        free.push_back(std::move(done.chunk));
        if (++p.done == stream.messages()) {
          ++finished;
          --active;
        } else {
          HR_RETURN_IF_ERROR(post(done.edge));
        }
      }
    }
    return absl::OkStatus();
  };
  absl::Status status = run();
  // Chunks belong to the transport until their receives end: cancel what is left before they are freed. The publisher
  // drops its end too, so the next generation connects anew.
  if (!status.ok()) {
    for (size_t e = 0; e < edges_.size(); ++e) {
      if (!progress[e].active || !peers_[e] || progress[e].done == streams_[e].messages()) continue;
      transport_->Disconnect(*peers_[e]);
      peers_[e].reset();
    }
    const absl::Time give_up = absl::Now() + absl::Seconds(2);
    while (!pending.empty() && absl::Now() < give_up) {
      std::vector<Completion> completions;
      transport_->Poll(absl::Milliseconds(20), &completions);
      for (const Completion& c : completions) pending.erase(c.op);
    }
    // A transport that does not cancel keeps its memory: leaking it is the only safe choice.
    for (auto& [op, left] : pending) (void)left.chunk.release();
  }
  HR_RETURN_IF_ERROR(status);
  stats->transfer_seconds += Seconds(begin);
  const absl::Time verify = absl::Now();
  for (size_t e = 0; e < edges_.size(); ++e) {
    for (size_t i = 0; i < edges_[e].edge.count; ++i) {
      const size_t copy = edges_[e].edge.first + i;
      HR_RETURN_IF_ERROR(CheckSum(edges_[e], copy, progress[e].wanted[i], progress[e].got[i]));
      ++stats->copies;
      stats->bytes += plan_.copies[copy].bytes();
    }
  }
  stats->verify_seconds += Seconds(verify);
  return absl::OkStatus();
}

}  // namespace headrace
