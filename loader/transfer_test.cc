// Sender and executor against each other over the memory transport; one thread drives all endpoints, so that a run
// repeats by its seed.
#include <cstring>
#include <map>
#include <memory>
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
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/memory/memory.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SideMemory;

constexpr uint64_t kIncarnation = 99;

std::string NameOfSource(int64_t rank) { return "publisher rank " + std::to_string(rank); }

// All ranks of a manifest: publishers with one slot each and their senders, workers with an executor each.
class World {
 public:
  World(Manifest m, MemoryOptions memory, int64_t chunk_bytes = 64, int64_t staging_bytes = 1 << 20)
      : manifest_(std::move(m)),
        fabric_(memory),
        source_(manifest_.source),
        live_(manifest_.destination),
        wanted_(manifest_.destination),
        chunk_bytes_(chunk_bytes),
        staging_bytes_(staging_bytes) {
    auto plan = BuildPlan(manifest_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    for (const Edge& edge : plan_.edges) {
      if (!sources_.contains(edge.source_rank)) AddSource(edge.source_rank);
      if (!targets_.contains(edge.destination_rank)) targets_[edge.destination_rank].transport = fabric_.NewEndpoint();
    }
    for (auto& [rank, target] : targets_) AddExecutor(rank, &target);
  }

  // Writes the generation at all publishers and brings it to all ranks; the first error.
  absl::Status Move(uint64_t generation, absl::Duration timeout = absl::Seconds(60)) {
    Publish(generation);
    for (auto& [rank, target] : targets_) HR_RETURN_IF_ERROR(Receive(rank, generation, timeout));
    return absl::OkStatus();
  }

  void Publish(uint64_t generation) {
    testing::PaintSource(manifest_, generation, &source_);
    for (auto& [rank, s] : sources_) s.writer->Write(s.slot->bytes(), kIncarnation, generation);
  }

  absl::Status Receive(int64_t rank, uint64_t generation, absl::Duration timeout = absl::Seconds(60)) {
    Target& target = targets_.at(rank);
    Executor::Request request;
    request.generation = generation;
    request.slot_of_edge.assign(target.edges.size(), 0);
    for (size_t i = 0; i < manifest_.destination.size(); ++i) {
      const Buffer& b = manifest_.destination[i];
      if (b.rank == rank) request.destination[static_cast<int>(i)] = live_.First(b);
    }
    request.deadline = absl::Now() + timeout;
    request.start = [&](size_t e) {
      const Edge& edge = target.edges[e];
      Source& s = sources_.at(edge.source_rank);
      To& to = s.to.at(rank);
      if (s.sender->TakeFailure(to.peer)) {
        s.transport->Disconnect(to.peer);
        HR_ASSIGN_OR_RETURN(to.peer, s.transport->Connect(target.transport->address(), absl::InfiniteFuture()));
      }
      s.sender->Start(to.peer, to.stream.get(), &s.writer->layout(), s.slot->bytes(), generation);
      return absl::OkStatus();
    };
    int steps = 0;
    request.interrupted = [&] {
      for (auto& [source, s] : sources_) {
        if (s.sender != nullptr) s.sender->Progress(absl::ZeroDuration());
      }
      return on_step ? on_step(steps++) : absl::OkStatus();
    };
    stats = {};
    absl::Status status = target.executor->Run(request, &stats);
    peak_staging_bytes = std::max(peak_staging_bytes, stats.peak_staging_bytes);
    // The session would tell the publishers.
    if (!status.ok()) {
      for (auto& [source, s] : sources_) {
        if (s.sender != nullptr && s.to.contains(rank)) s.sender->Drop(s.to.at(rank).peer);
      }
    } else {
      testing::PaintDestination(manifest_, rank, generation, &wanted_);
    }
    return status;
  }

  // What was received is what was published. Zero fills are the committer's work.
  std::string Difference() {
    for (const Buffer& b : manifest_.destination) {
      for (const Piece& p : b.pieces) {
        if (p.kind != PieceKind::kZero) continue;
        testing::VisitPiece(manifest_, b, p, [&](Index, Index place) {
          testing::SetBits(live_.First(b), place, DtypeBits(b.dtype), 0);
          testing::SetBits(wanted_.First(b), place, DtypeBits(b.dtype), 0);
        });
      }
    }
    return live_.Difference(wanted_);
  }

  MemoryFabric& fabric() { return fabric_; }
  std::string SourceAddress(int64_t rank) { return sources_.at(rank).transport->address(); }
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

  std::function<absl::Status(int step)> on_step;
  TransferStats stats;  // of the last Receive
  int64_t peak_staging_bytes = 0;

 private:
  struct To {
    PeerId peer = 0;
    std::unique_ptr<EdgeStream> stream;
  };
  struct Source {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<SnapshotWriter> writer;
    std::unique_ptr<Region> slot;
    std::unique_ptr<Sender> sender;
    std::map<int64_t, To> to;
  };
  struct Target {
    std::unique_ptr<Transport> transport;
    std::vector<Edge> edges;
    std::unique_ptr<Executor> executor;
  };

  void AddSource(int64_t rank) {
    Source& s = sources_[rank];
    s.transport = fabric_.NewEndpoint();
    std::map<int, const std::byte*> memory;
    for (size_t i = 0; i < manifest_.source.size(); ++i) {
      if (manifest_.source[i].rank == rank) memory[static_cast<int>(i)] = source_.First(manifest_.source[i]);
    }
    s.writer = std::make_unique<SnapshotWriter>(manifest_, plan_, rank, std::move(memory));
    auto slot = s.transport->AllocateRegion(s.writer->layout().bytes());
    EXPECT_TRUE(slot.ok()) << slot.status();
    s.slot = *std::move(slot);
    if (s.transport->capabilities().map) return;
    auto sender = Sender::Create(s.transport.get(), chunk_bytes_, staging_bytes_);
    EXPECT_TRUE(sender.ok()) << sender.status();
    s.sender = *std::move(sender);
  }

  void AddExecutor(int64_t rank, Target* target) {
    std::vector<IncomingEdge> incoming;
    for (const Edge& edge : plan_.edges) {
      if (edge.destination_rank != rank) continue;
      Source& s = sources_.at(edge.source_rank);
      IncomingEdge in;
      in.edge = edge;
      in.name = NameOfSource(edge.source_rank);
      in.address = s.transport->address();
      in.layout = std::make_shared<SlotLayout>(manifest_, plan_, edge.source_rank);
      if (s.transport->capabilities().map) {
        auto peer = target->transport->Connect(in.address, absl::InfiniteFuture());
        EXPECT_TRUE(peer.ok()) << peer.status();
        auto mapping = target->transport->Map(*peer, s.slot->key(), absl::InfiniteFuture());
        EXPECT_TRUE(mapping.ok()) << mapping.status();
        in.slots.push_back(*std::move(mapping));
      } else {
        auto peer = s.transport->Connect(target->transport->address(), absl::InfiniteFuture());
        EXPECT_TRUE(peer.ok()) << peer.status();
        s.to[rank] = {*peer, std::make_unique<EdgeStream>(plan_, edge, chunk_bytes_)};
      }
      target->edges.push_back(edge);
      incoming.push_back(std::move(in));
    }
    auto executor = Executor::Create(manifest_, plan_, target->transport.get(), std::move(incoming), kIncarnation,
                                     {chunk_bytes_, staging_bytes_});
    EXPECT_TRUE(executor.ok()) << executor.status();
    target->executor = *std::move(executor);
  }

  const Manifest manifest_;
  Plan plan_;
  MemoryFabric fabric_;
  SideMemory source_, live_, wanted_;
  const int64_t chunk_bytes_, staging_bytes_;
  std::map<int64_t, Source> sources_;
  std::map<int64_t, Target> targets_;
};

MemoryOptions Streams(uint64_t seed = 1) {
  MemoryOptions options;
  options.map = false;
  options.seed = seed;
  return options;
}

// Publishers 3 and 4 hold halves of "w", 3 alone holds "b"; ranks 0 and 1 want columns of w, both want b.
Manifest SmallManifest() {
  const TensorSpec w{"w", {16, 24}, Dtype::kBF16}, b{"b", {40}, Dtype::kF32};
  Manifest m;
  m.tensors = {w, b};
  m.source = {BufferOf(3, "w.lower", w.dtype, {8, 24}, {PieceOf("w", {0, 0}, {8, 24}, {0, 0})}),
              BufferOf(4, "w.upper", w.dtype, {8, 24}, {PieceOf("w", {8, 0}, {8, 24}, {0, 0})}), WholeBuffer(3, b)};
  for (int64_t r : {0, 1}) {
    m.destination.push_back(BufferOf(r, "w", w.dtype, {16, 12}, {PieceOf("w", {0, 12 * r}, {16, 12}, {0, 0})}));
    m.destination.push_back(WholeBuffer(r, b));
  }
  return m;
}

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a, const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

TEST(TransferTest, RandomManifestsUnderDelaysAndReordering) {
  for (int seed = 0; seed < testing::Share(200); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Manifest m = RandomManifest(random);
    if (SourcesContradict(m)) continue;
    MemoryOptions options = Streams(seed);
    options.map = seed % 4 == 0;
    options.reorder_completions = true;
    options.delay_probability = 0.3;
    options.max_delay_steps = 5;
    const int64_t chunk = Uniform(random, 64, 100), staging = chunk * Uniform(random, 1, 9);
    World world(m, options, chunk, staging);
    for (uint64_t generation : {1, 2, 5}) {
      const absl::Status status = world.Move(generation);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(world.Difference(), "");
    }
    if (options.map) continue;
    EXPECT_LE(world.peak_staging_bytes, staging);
    for (int64_t rank : world.SourceRanks()) EXPECT_LE(world.SenderPeak(rank), staging);
  }
}

TEST(TransferTest, CountsBytesAndStaging) {
  World world(SmallManifest(), Streams(), 64, 1 << 20);
  ASSERT_TRUE(world.Move(1).ok());
  EXPECT_EQ(world.stats.bytes, 16 * 12 * 2 + 160);  // of rank 1
  EXPECT_GT(world.stats.copies, 0);
  EXPECT_GE(world.peak_staging_bytes, 64);
  World narrow(SmallManifest(), Streams(), 64, 64);
  ASSERT_TRUE(narrow.Move(1).ok());
  EXPECT_EQ(narrow.Difference(), "");
  EXPECT_EQ(narrow.peak_staging_bytes, 64);
  EXPECT_EQ(narrow.SenderPeak(3), 64);
}

TEST(TransferTest, ACapBelowAChunkSaysBoth) {
  MemoryFabric fabric(Streams());
  const auto transport = fabric.NewEndpoint();
  ExpectError(Sender::Create(transport.get(), 256, 255).status(), ErrorCode::kStagingTooSmall, "255", "256");
  const Manifest m = WholeManifest({{"t", {4}, Dtype::kF32}});
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok());
  IncomingEdge edge;
  edge.edge = plan->edges[0];
  ExpectError(Executor::Create(m, *plan, transport.get(), {edge}, 1, {256, 255}).status(), ErrorCode::kStagingTooSmall,
              "255", "256");
  ExpectError(Executor::Create(m, *plan, transport.get(), {edge}, 1, {63, 255}).status(), ErrorCode::kInvalidOption,
              "63");
  ExpectError(Executor::Create(m, *plan, transport.get(), {edge}, 1, {int64_t{8} << 20, int64_t{64} << 20}).status(),
              ErrorCode::kInvalidOption, "8388608");
}

TEST(TransferTest, ACorruptedMessageNamesTheTensorAndThePublisher) {
  World world(WholeManifest({{"model.norm", {100}, Dtype::kBF16}}), Streams());
  ASSERT_TRUE(world.Move(1).ok());
  MemoryOptions corrupt = Streams();
  corrupt.corrupt_probability = 1;
  world.fabric().SetFaults(corrupt);
  ExpectError(world.Move(2), ErrorCode::kVerificationFailed, "\"model.norm\"", NameOfSource(0));
  world.fabric().SetFaults(Streams());
  ASSERT_TRUE(world.Move(3).ok());
  EXPECT_EQ(world.Difference(), "");
}

TEST(TransferTest, RareCorruptionIsNeverMissed) {
  int failed = 0, clean = 0;
  for (int seed = 0; seed < testing::Share(200); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MemoryOptions options = Streams(seed);
    options.corrupt_probability = 0.03;
    World world(SmallManifest(), options);
    const absl::Status status = world.Move(1);
    if (status.ok()) {
      ++clean;
      ASSERT_EQ(world.Difference(), "");
    } else {
      ++failed;
      ExpectError(status, ErrorCode::kVerificationFailed, "tensor \"");
    }
  }
  if (testing::Share(200) > 10) {
    EXPECT_GT(failed, 0);
    EXPECT_GT(clean, 0);
  }
}

TEST(TransferTest, ACutPublisherIsNamed) {
  for (int when : {0, 1}) {
    World world(SmallManifest(), Streams(), 64, 128);
    ASSERT_TRUE(world.Move(1).ok());
    world.Publish(2);
    world.on_step = [&](int step) {
      if (step == when) world.fabric().Cut(world.SourceAddress(4));
      return absl::OkStatus();
    };
    ExpectError(world.Receive(0, 2), ErrorCode::kPeerLost, NameOfSource(4));
  }
}

// Nor does a publisher that is dead before its first byte is asked for hide behind the transport's words.
TEST(TransferTest, APublisherThatIsGoneIsNamed) {
  World world(SmallManifest(), Streams());
  world.Publish(1);
  world.fabric().Cut(world.SourceAddress(4));
  ExpectError(world.Receive(0, 1), ErrorCode::kPeerLost, NameOfSource(4));
  World connected(SmallManifest(), Streams());
  ASSERT_TRUE(connected.Move(1).ok());
  connected.fabric().Cut(connected.SourceAddress(4));
  ExpectError(connected.Receive(0, 2), ErrorCode::kPeerLost, NameOfSource(4));
}

TEST(TransferTest, DroppedMessagesEndAtTheDeadlineAndTheNextGenerationIsWhole) {
  for (int64_t staging : {64, 128, 1 << 20}) {
    World world(SmallManifest(), Streams(), 64, staging);
    ASSERT_TRUE(world.Move(1).ok());
    MemoryOptions drop = Streams();
    drop.drop_probability = 1;
    world.fabric().SetFaults(drop);
    world.Publish(2);
    ExpectError(world.Receive(0, 2, absl::Milliseconds(100)), ErrorCode::kDeadline, NameOfSource(3));
    ExpectError(world.Receive(1, 2, absl::Milliseconds(100)), ErrorCode::kDeadline, NameOfSource(3));
    world.fabric().SetFaults(Streams());
    for (uint64_t generation : {3, 4}) {
      const absl::Status status = world.Move(generation, absl::Seconds(10));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(world.Difference(), "");
    }
  }
}

TEST(TransferTest, AnInterruptionEndsItAndTheNextGenerationIsWhole) {
  for (int when = 0; when < 6; ++when) {
    World world(SmallManifest(), Streams(), 64, 128);
    world.Publish(1);
    world.on_step = [&](int step) {
      return step == when ? Error(ErrorCode::kAborted, "engine 0 worker 1: out of luck") : absl::OkStatus();
    };
    ExpectError(world.Receive(0, 1), ErrorCode::kAborted, "out of luck");
    world.on_step = nullptr;
    const absl::Status status = world.Move(2, absl::Seconds(10));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(world.Difference(), "");
  }
}

TEST(TransferTest, AMappedSlotOfAnotherGenerationIsNotRead) {
  World world(SmallManifest(), {});
  SideMemory before(world.live());
  world.Publish(2);
  ExpectError(world.Receive(0, 1), ErrorCode::kGenerationChanged, NameOfSource(3));
  EXPECT_EQ(world.live().Difference(before), "");
}

TEST(TransferTest, AMappedSlotThatIsOverwrittenWhileItIsRead) {
  for (int when : {0, 1, 2}) {
    World world(SmallManifest(), {});
    world.Publish(1);
    world.on_step = [&](int step) {
      if (step == when) world.Publish(3);
      return absl::OkStatus();
    };
    ExpectError(world.Receive(0, 1), ErrorCode::kGenerationChanged, "generation 3");
  }
}

TEST(TransferTest, ABadByteInAMappedSlotNamesTheTensor) {
  World world(SmallManifest(), {});
  world.Publish(1);
  world.Slot(3)[world.Layout(3).BufferOffset(world.CopyOutOf(2)) + 17] ^= std::byte{4};
  ExpectError(world.Receive(1, 1), ErrorCode::kVerificationFailed, "tensor \"b\"", NameOfSource(3));
}

// Copies above the step's size are cut: along the run, and along the outermost loop.
TEST(TransferTest, LargeCopiesInSteps) {
  const Index kRow = (Index{45} << 20) + 3;
  const TensorSpec run{"run", {(Index{130} << 20) + 5}, Dtype::kU8}, rows{"rows", {3, kRow}, Dtype::kU8};
  Manifest m = WholeManifest({run, rows});
  m.destination[1].strides = {kRow + 7, 1};
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  MemoryFabric fabric;
  const auto owner = fabric.NewEndpoint(), reader = fabric.NewEndpoint();
  std::vector<std::byte> a(run.shape[0]), b(3 * kRow);
  for (size_t i = 0; i < a.size(); i += 101) a[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (size_t i = 0; i < b.size(); i += 103) b[i] = static_cast<std::byte>(i * 5 + i / 256);
  const SnapshotWriter writer(m, *plan, 0, {{0, a.data()}, {1, b.data()}});
  auto slot = owner->AllocateRegion(writer.layout().bytes());
  ASSERT_TRUE(slot.ok()) << slot.status();
  writer.Write((*slot)->bytes(), kIncarnation, 1);
  auto peer = reader->Connect(owner->address(), absl::InfiniteFuture());
  ASSERT_TRUE(peer.ok());
  auto mapping = reader->Map(*peer, (*slot)->key(), absl::InfiniteFuture());
  ASSERT_TRUE(mapping.ok());
  IncomingEdge edge;
  edge.edge = plan->edges[0];
  edge.name = "publisher rank 0";
  edge.layout = std::make_shared<SlotLayout>(m, *plan, 0);
  edge.slots.push_back(*std::move(mapping));
  auto executor = Executor::Create(m, *plan, reader.get(), {edge}, kIncarnation, {});
  ASSERT_TRUE(executor.ok()) << executor.status();
  std::vector<std::byte> a2(a.size()), b2(3 * (kRow + 7), testing::kPoison);
  Executor::Request request;
  request.generation = 1;
  request.slot_of_edge = {0};
  request.destination = {{0, a2.data()}, {1, b2.data()}};
  request.deadline = absl::InfiniteFuture();
  int steps = 0;
  request.interrupted = [&] {
    ++steps;
    return absl::OkStatus();
  };
  TransferStats stats;
  const absl::Status status = (*executor)->Run(request, &stats);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(steps, 3 + 3);
  EXPECT_EQ(std::memcmp(a2.data(), a.data(), a.size()), 0);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(std::memcmp(b2.data() + r * (kRow + 7), b.data() + r * kRow, kRow), 0);
    for (int k = 0; k < 7; ++k) EXPECT_EQ(b2[r * (kRow + 7) + kRow + k], testing::kPoison);
  }
  // A slot that is overwritten between two steps of one copy is named as that, not as corruption.
  request.interrupted = [&] {
    if (++steps == 8) {
      a[0] ^= std::byte{1};
      writer.Write((*slot)->bytes(), kIncarnation, 3);
    }
    return absl::OkStatus();
  };
  ExpectError((*executor)->Run(request, &stats), ErrorCode::kGenerationChanged, "publisher rank 0", "generation 3");
}

}  // namespace
}  // namespace headrace
