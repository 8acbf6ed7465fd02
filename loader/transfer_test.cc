// Sender and executor against each other: direct edges, and what both kinds of transport have in common. Streams:
// stream_transfer_test.cc.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "loader/testing/naive_copy.h"
#include "loader/transfer_world.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using testing::ExpectError;
using testing::kIncarnation;
using testing::NameOfSource;
using testing::SideMemory;
using testing::Streams;
using testing::World;

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
  CancelledChunks cancelled;
  ExpectError(Executor::Create(m, *plan, transport.get(), {edge}, 1, {256, 255}, &cancelled).status(),
              ErrorCode::kStagingTooSmall, "255", "256");
  ExpectError(Executor::Create(m, *plan, transport.get(), {edge}, 1, {63, 255}, &cancelled).status(),
              ErrorCode::kInvalidOption, "63");
  ExpectError(Executor::Create(m, *plan, transport.get(), {edge}, 1, {int64_t{8} << 20, int64_t{64} << 20}, &cancelled)
                  .status(),
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
  // A step for each publisher, whose copies are small.
  for (int when : {0, 1}) {
    World world(SmallManifest(), {});
    world.Publish(1);
    int steps = 0;
    world.on_step = [&](int step) {
      ++steps;
      if (step == when) world.Publish(3);
      return absl::OkStatus();
    };
    ExpectError(world.Receive(0, 1), ErrorCode::kGenerationChanged, "generation 3");
    EXPECT_GT(steps, when);
  }
}

TEST(TransferTest, ABadByteInAMappedSlotNamesTheTensor) {
  World world(SmallManifest(), {});
  world.Publish(1);
  world.Slot(3)[world.Layout(3).BufferOffset(world.CopyOutOf(2)) + 17] ^= std::byte{4};
  ExpectError(world.Receive(1, 1), ErrorCode::kVerificationFailed, "tensor \"b\"", NameOfSource(3));
}

// Copies above a part's size are cut: along the run, and along the outermost loop. A step is as many parts as are worth
// one.
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
  auto sums = owner->AllocateRegion(writer.sums_layout().bytes());
  ASSERT_TRUE(sums.ok()) << sums.status();
  const auto write = [&](uint64_t generation) {
    ASSERT_EQ(
        writer.Write((*slot)->bytes(), writer.sums_layout().Of(0, (*sums)->bytes()), kIncarnation, generation).status(),
        absl::OkStatus());
  };
  write(1);
  auto peer = reader->Connect(owner->address(), absl::InfiniteFuture());
  ASSERT_TRUE(peer.ok());
  auto mapping = reader->Map(*peer, (*slot)->key(), absl::InfiniteFuture());
  ASSERT_TRUE(mapping.ok());
  auto sums_mapping = reader->Map(*peer, (*sums)->key(), absl::InfiniteFuture());
  ASSERT_TRUE(sums_mapping.ok());
  IncomingEdge edge;
  edge.edge = plan->edges[0];
  edge.name = "publisher rank 0";
  edge.layout = std::make_shared<SlotLayout>(m, 0);
  edge.sums_layout = std::make_shared<SumsLayout>(*plan, 0);
  edge.slots.push_back(*std::move(mapping));
  edge.sums = *std::move(sums_mapping);
  CancelledChunks cancelled;
  auto executor = Executor::Create(m, *plan, reader.get(), {edge}, kIncarnation, {}, &cancelled);
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
  EXPECT_EQ(steps, 4);  // of 64, 64, 2 + 45 + 45 and 45 MiB
  EXPECT_EQ(std::memcmp(a2.data(), a.data(), a.size()), 0);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(std::memcmp(b2.data() + r * (kRow + 7), b.data() + r * kRow, kRow), 0);
    for (int k = 0; k < 7; ++k) EXPECT_EQ(b2[r * (kRow + 7) + kRow + k], testing::kPoison);
  }
  // A slot that is overwritten between two steps of one copy is named as that, not as corruption.
  request.interrupted = [&] {
    if (++steps == 4 + 2) {
      a.back() ^= std::byte{1};
      write(3);
    }
    return absl::OkStatus();
  };
  ExpectError((*executor)->Run(request, &stats), ErrorCode::kGenerationChanged, "publisher rank 0", "generation 3");
}

}  // namespace
}  // namespace headrace
