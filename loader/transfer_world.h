#ifndef HEADRACE_LOADER_TRANSFER_WORLD_H_
#define HEADRACE_LOADER_TRANSFER_WORLD_H_

// Test only. Senders and executors of all ranks of a manifest over the memory transport; one thread drives all
// endpoints, so that a run repeats by its seed.

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/executor.h"
#include "loader/sender.h"
#include "loader/snapshot.h"
#include "loader/stream_signal.h"
#include "loader/stream_tags.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/memory/memory.h"
#include "planner/status.h"
#include "planner/testing/random_manifest.h"

namespace headrace::testing {

constexpr uint64_t kIncarnation = 99;
constexpr uint64_t kEpoch = 3;

inline std::string NameOfSource(int64_t rank) { return "publisher rank " + std::to_string(rank); }
inline std::string NameOfTarget(int64_t rank) { return "worker of rank " + std::to_string(rank); }

// A memory transport that sends.
inline MemoryOptions Streams(uint64_t seed = 1) {
  MemoryOptions options;
  options.map = false;
  options.seed = seed;
  return options;
}

inline void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a, const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::AllOf(::testing::HasSubstr(a), ::testing::HasSubstr(b)));
}

// What does not complete yet, though it could.
struct Withheld {
  bool cancelled = false;    // what was cancelled
  bool all_but_one = false;  // what completes at one time with another operation
};

// Counts what goes over the wire from one endpoint, but for signals.
class Tap : public Transport {
 public:
  using Count = std::function<void(const std::string& to, int64_t bytes)>;
  Tap(std::unique_ptr<Transport> under, Count count, const Withheld* withheld)
      : under_(std::move(under)), count_(std::move(count)), withheld_(withheld) {}

  absl::string_view name() const override { return under_->name(); }
  const Capabilities& capabilities() const override { return under_->capabilities(); }
  std::string address() const override { return under_->address(); }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t n) override { return under_->AllocateRegion(n); }
  absl::StatusOr<PeerId> Connect(absl::string_view address, absl::Time deadline) override {
    auto peer = under_->Connect(address, deadline);
    if (peer.ok()) addresses_[*peer] = std::string(address);
    return peer;
  }
  void Disconnect(PeerId peer) override { under_->Disconnect(peer); }
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId peer, absl::string_view key, absl::Time deadline) override {
    return under_->Map(peer, key, deadline);
  }
  absl::StatusOr<OpId> Send(PeerId peer, uint64_t tag, absl::Span<const std::byte> message) override {
    if (message.data() != StreamSignal().data()) count_(addresses_[peer], static_cast<int64_t>(message.size()));
    return under_->Send(peer, tag, message);
  }
  absl::StatusOr<OpId> Receive(PeerId peer, uint64_t tag, absl::Span<std::byte> message) override {
    return under_->Receive(peer, tag, message);
  }
  void Poll(absl::Duration max_wait, std::vector<Completion>* out) override {
    std::vector<Completion> completions = std::exchange(later_, {});
    under_->Poll(max_wait, &completions);
    const size_t before = out->size();
    for (Completion& c : completions) {
      const bool later = (withheld_->cancelled && HasCode(c.status, ErrorCode::kAborted)) ||
                         (withheld_->all_but_one && out->size() > before);
      (later ? later_ : *out).push_back(std::move(c));
    }
  }
  void Wake() override { under_->Wake(); }
  void Abort(const absl::Status& reason) override { under_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> under_;
  const Count count_;
  const Withheld* const withheld_;
  std::vector<Completion> later_;
  std::map<PeerId, std::string> addresses_;
};

// Payload bytes and sums that endpoints sent to each other, by their ranks.
struct Wire {
  std::map<std::pair<int64_t, int64_t>, int64_t> published, passed_on;
};

// All ranks of a manifest: publishers with one slot each and their senders, workers with an executor each.
class World {
 public:
  World(Manifest m, MemoryOptions memory, int64_t chunk_bytes = 64, int64_t staging_bytes = 1 << 20,
        Policy policy = Policy::kAuto, BoxWork* unpacking = OnCpu())
      : manifest_(std::move(m)),
        fabric_(memory),
        random_(memory.seed),
        source_(manifest_.source),
        live_(manifest_.destination),
        wanted_(manifest_.destination),
        chunk_bytes_(chunk_bytes),
        staging_bytes_(staging_bytes),
        unpacking_(unpacking) {
    auto plan = BuildPlan(manifest_, {.policy = policy});
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    for (const Edge& edge : plan_.edges) {
      if (!sources_.contains(edge.source_rank)) AddSource(edge.source_rank);
      if (targets_.contains(edge.destination_rank)) continue;
      targets_[edge.destination_rank].transport = NewEndpoint(edge.destination_rank, &wire.passed_on, &withheld);
    }
    for (const auto& [rank, target] : targets_) ranks_[target.transport->address()] = rank;
    for (auto& [rank, target] : targets_) AddEdges(rank, &target);
    RenewExecutors();
  }

  // Writes the generation at all publishers and brings it to all ranks, all at once; the first error.
  absl::Status Move(uint64_t generation, absl::Duration timeout = absl::Seconds(60)) {
    Publish(generation);
    for (const auto& [rank, status] : ReceiveAll(generation, timeout)) HR_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  void Publish(uint64_t generation) {
    PaintSource(manifest_, generation, &source_);
    for (auto& [rank, s] : sources_) {
      EXPECT_EQ(s.writer->Write(s.slot->bytes(), s.Sums(), kIncarnation, generation).status(), absl::OkStatus());
    }
  }

  // One rank alone, where it depends on no other one.
  absl::Status Receive(int64_t rank, uint64_t generation, absl::Duration timeout = absl::Seconds(60)) {
    stats = {};
    absl::Status status = targets_.at(rank).executor->Run(RequestOf(rank, generation, timeout), &stats);
    return Over(rank, generation, std::move(status));
  }

  // The ranks take steps in an order by the seed; none of them waits.
  std::map<int64_t, absl::Status> ReceiveAll(uint64_t generation, absl::Duration timeout = absl::Seconds(60)) {
    std::map<int64_t, absl::Status> statuses;
    std::vector<int64_t> moving;
    for (auto& [rank, target] : targets_) {
      if (absent.contains(rank) || without.contains(rank)) continue;
      target.executor->Begin(RequestOf(rank, generation, timeout));
      moving.push_back(rank);
    }
    for (size_t steps = 0; !moving.empty(); ++steps) {
      const size_t i = random_() % moving.size();
      // What locks up does so for ever.
      constexpr size_t kMost = 2'000'000;
      if (steps > kMost) ADD_FAILURE() << "nothing moves any more";
      if (steps > kMost) return statuses;
      std::optional<absl::Status> over = targets_.at(moving[i]).executor->Step(absl::ZeroDuration());
      if (!over) continue;
      stats = targets_.at(moving[i]).executor->stats();
      statuses[moving[i]] = Over(moving[i], generation, *over);
      moving.erase(moving.begin() + static_cast<int64_t>(i));
    }
    return statuses;
  }

  void Decline(int64_t rank, uint64_t generation) {
    targets_.at(rank).executor->Decline(RequestOf(rank, generation, absl::Seconds(60)));
  }

  // What was received is what was published. Zero fills are the committer's work.
  std::string Difference() {
    for (const Buffer& b : manifest_.destination) {
      for (const Piece& p : b.pieces) {
        if (p.kind != PieceKind::kZero) continue;
        VisitPiece(manifest_, b, p, [&](Index, Index place) {
          SetBits(live_.First(b), place, DtypeBits(b.dtype), 0);
          SetBits(wanted_.First(b), place, DtypeBits(b.dtype), 0);
        });
      }
    }
    return live_.Difference(wanted_);
  }
  // As for another epoch, but for its number: the transports stay.
  void RenewExecutors() {
    for (auto& [rank, target] : targets_) {
      auto executor = Executor::Create(manifest_, plan_, target.transport.get(), target.incoming, kIncarnation,
                                       {chunk_bytes_, staging_bytes_, kEpoch}, &target.cancelled, unpacking_);
      EXPECT_TRUE(executor.ok()) << executor.status();
      target.executor = *std::move(executor);
    }
  }
  // Ranks whose transfer broke off hold anything: takes their bytes for right.
  void Excuse(int64_t rank) {
    for (const Buffer& b : manifest_.destination) {
      if (b.rank == rank) std::memcpy(wanted_.First(b), live_.First(b), SpanBytes(b, b.dtype));
    }
  }

  const Plan& plan() const { return plan_; }
  MemoryFabric& fabric() { return fabric_; }
  std::string SourceAddress(int64_t rank) { return sources_.at(rank).transport->address(); }
  std::string TargetAddress(int64_t rank) { return targets_.at(rank).transport->address(); }
  absl::Span<std::byte> Slot(int64_t rank) { return sources_.at(rank).slot->bytes(); }
  // A copy out of a source buffer.
  const Copy& CopyOutOf(int source) {
    return *std::find_if(plan_.copies.begin(), plan_.copies.end(), [&](const Copy& c) { return c.source == source; });
  }
  const SlotLayout& Layout(int64_t rank) { return sources_.at(rank).writer->layout(); }
  int64_t SenderPeak(int64_t rank) { return sources_.at(rank).sender->peak_staging_bytes(); }
  std::set<int64_t> SourceRanks() const {
    std::set<int64_t> ranks;
    for (const auto& [rank, s] : sources_) ranks.insert(rank);
    return ranks;
  }
  SideMemory& live() { return live_; }

  std::function<absl::Status(int step)> on_step;                     // of any rank
  std::function<absl::Status(int64_t rank, int step)> on_rank_step;  // of each rank's own
  std::set<int64_t> absent;                                          // ranks that take no part, as all know
  std::set<int64_t> without;                                         // ranks that take none, as nobody knows
  Withheld withheld;                                                 // from all ranks
  TransferStats stats;                                               // of the last rank that was over
  int64_t peak_staging_bytes = 0;
  Wire wire;

 private:
  struct To {
    PeerId peer = 0;
    std::vector<EdgeStream> streams;
  };
  struct Source {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<SnapshotWriter> writer;
    std::unique_ptr<Region> slot, sums;
    std::unique_ptr<Sender> sender;
    std::map<int64_t, To> to;

    absl::Span<std::byte> Sums() const { return writer->sums_layout().Of(0, sums->bytes()); }
  };
  struct Target {
    CancelledChunks cancelled;
    std::unique_ptr<Transport> transport;
    std::vector<Edge> edges;
    std::vector<IncomingEdge> incoming;
    std::unique_ptr<Executor> executor;
    int steps = 0;
  };

  std::unique_ptr<Transport> NewEndpoint(int64_t rank, std::map<std::pair<int64_t, int64_t>, int64_t>* sent,
                                         const Withheld* withheld) {
    const auto count = [this, rank, sent](const std::string& to, int64_t bytes) {
      (*sent)[{rank, ranks_.at(to)}] += bytes;
    };
    return std::make_unique<Tap>(fabric_.NewEndpoint(), count, withheld);
  }

  Executor::Request RequestOf(int64_t rank, uint64_t generation, absl::Duration timeout) {
    Target& target = targets_.at(rank);
    target.steps = 0;
    Executor::Request request;
    request.generation = generation;
    request.slot_of_edge.assign(target.edges.size(), 0);
    for (size_t i = 0; i < manifest_.destination.size(); ++i) {
      const Buffer& b = manifest_.destination[i];
      if (b.rank == rank) request.destination[static_cast<int>(i)] = live_.First(b);
    }
    request.deadline = absl::Now() + timeout;
    request.absent = absent;
    auto started = std::make_shared<std::set<int64_t>>();
    request.start = [this, &target, rank, generation, started](size_t e) {
      Source& s = sources_.at(target.edges[e].source_rank);
      EXPECT_TRUE(started->insert(target.edges[e].source_rank).second) << "ordered twice";
      To& to = s.to.at(rank);
      if (s.sender->TakeFailure(to.peer)) {
        s.transport->Disconnect(to.peer);
        HR_ASSIGN_OR_RETURN(to.peer, s.transport->Connect(target.transport->address(), absl::InfiniteFuture()));
      }
      const auto tags = StreamTags::Create(*s.transport, plan_, kEpoch);
      for (const EdgeStream& stream : to.streams) {
        const int index = stream.edge().stream;
        if (index >= 0 && FirstOf(plan_.streams[index].chain, absent) != rank) continue;
        s.sender->Start(to.peer, &stream, s.writer->Published(s.slot->bytes()), /*slot=*/0,
                        s.Sums().subspan(s.writer->sums_layout().Offset(stream.edge())),
                        tags->Of(stream.edge(), generation));
      }
      return absl::OkStatus();
    };
    request.interrupted = [this, &target, rank] {
      for (int turn = 0; turn < 2; ++turn) {
        for (auto& [source, s] : sources_) {
          if (s.sender != nullptr) {
            EXPECT_EQ(s.sender->Progress(absl::ZeroDuration()), absl::OkStatus());
          }
        }
      }
      if (on_rank_step) return on_rank_step(rank, target.steps++);
      return on_step ? on_step(target.steps++) : absl::OkStatus();
    };
    return request;
  }

  absl::Status Over(int64_t rank, uint64_t generation, absl::Status status) {
    peak_staging_bytes = std::max(peak_staging_bytes, stats.peak_staging_bytes);
    if (status.ok()) {
      PaintDestination(manifest_, rank, generation, &wanted_);
      return status;
    }
    // The session would tell the publishers.
    for (auto& [source, s] : sources_) {
      if (s.sender != nullptr && s.to.contains(rank)) s.sender->Drop(s.to.at(rank).peer);
    }
    return status;
  }

  void AddSource(int64_t rank) {
    Source& s = sources_[rank];
    s.transport = NewEndpoint(rank, &wire.published, &nothing_withheld_);
    std::map<int, const std::byte*> memory;
    for (size_t i = 0; i < manifest_.source.size(); ++i) {
      if (manifest_.source[i].rank == rank) memory[static_cast<int>(i)] = source_.First(manifest_.source[i]);
    }
    s.writer = std::make_unique<SnapshotWriter>(manifest_, plan_, rank, std::move(memory));
    auto slot = s.transport->AllocateRegion(s.writer->layout().bytes());
    EXPECT_TRUE(slot.ok()) << slot.status();
    s.slot = *std::move(slot);
    auto sums = s.transport->AllocateRegion(s.writer->sums_layout().bytes());
    EXPECT_TRUE(sums.ok()) << sums.status();
    s.sums = *std::move(sums);
    if (s.transport->capabilities().map) return;
    auto sender = Sender::Create(s.transport.get(), chunk_bytes_, staging_bytes_);
    EXPECT_TRUE(sender.ok()) << sender.status();
    s.sender = *std::move(sender);
  }

  void AddEdges(int64_t rank, Target* target) {
    for (const Edge& edge : plan_.edges) {
      if (edge.destination_rank != rank) continue;
      Source& s = sources_.at(edge.source_rank);
      IncomingEdge in;
      in.edge = edge;
      in.name = NameOfSource(edge.source_rank);
      in.address = s.transport->address();
      if (edge.stream >= 0) {
        for (int64_t r : plan_.streams[edge.stream].chain) {
          in.chain.push_back({r, NameOfTarget(r), TargetAddress(r)});
        }
      }
      if (s.transport->capabilities().map) {
        in.layout = std::make_shared<SlotLayout>(manifest_, edge.source_rank);
        in.sums_layout = std::make_shared<SumsLayout>(plan_, edge.source_rank);
        auto peer = target->transport->Connect(in.address, absl::InfiniteFuture());
        EXPECT_TRUE(peer.ok()) << peer.status();
        auto mapping = target->transport->Map(*peer, s.slot->key(), absl::InfiniteFuture());
        EXPECT_TRUE(mapping.ok()) << mapping.status();
        in.slots.push_back(*std::move(mapping));
        auto sums = target->transport->Map(*peer, s.sums->key(), absl::InfiniteFuture());
        EXPECT_TRUE(sums.ok()) << sums.status();
        in.sums = *std::move(sums);
      } else {
        auto peer = s.transport->Connect(target->transport->address(), absl::InfiniteFuture());
        EXPECT_TRUE(peer.ok()) << peer.status();
        s.to[rank].peer = *peer;
        s.to[rank].streams.emplace_back(plan_, edge, chunk_bytes_);
      }
      target->edges.push_back(edge);
      target->incoming.push_back(std::move(in));
    }
  }

  const Manifest manifest_;
  Plan plan_;
  MemoryFabric fabric_;
  Random random_;
  SideMemory source_, live_, wanted_;
  const int64_t chunk_bytes_, staging_bytes_;
  BoxWork* const unpacking_;
  const Withheld nothing_withheld_;
  std::map<std::string, int64_t> ranks_;  // of the targets, by address
  std::map<int64_t, Source> sources_;
  std::map<int64_t, Target> targets_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TRANSFER_WORLD_H_
