// Streams: chains of receivers that pass bytes on, or that read a publisher's slot side by side.
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "loader/testing/fixed_chunks.h"
#include "loader/testing/naive_copy.h"
#include "loader/transfer_world.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using testing::ExpectError;
using testing::FixedChunks;
using testing::NameOfSource;
using testing::NameOfTarget;
using testing::Streams;
using testing::World;

std::string HostOf(const std::vector<Placement>& placed, int64_t rank) {
  for (const Placement& p : placed) {
    if (p.rank == rank) return p.host;
  }
  return "";
}

// What went over the wire in one generation is what the plan says, and with plain resharding each distinct byte entered
// each host once.
void CheckWire(const Manifest& m, Policy policy, const World& world) {
  const PlanFigures figures = Measure(m, world.plan());
  // Sums go along with each hop of the bytes.
  std::map<std::pair<int64_t, int64_t>, int64_t> published = world.wire.published, passed_on = world.wire.passed_on;
  for (const Edge& e : world.plan().edges) {
    if (e.stream < 0) published[{e.source_rank, e.destination_rank}] -= 8 * static_cast<int64_t>(e.count);
  }
  for (const Stream& s : world.plan().streams) {
    const int64_t sums = 8 * static_cast<int64_t>(s.parts.size());
    published[{s.source_rank, s.chain[0]}] -= sums;
    for (size_t i = 1; i < s.chain.size(); ++i) passed_on[{s.chain[i - 1], s.chain[i]}] -= sums;
  }
  int64_t wire = 0, entering = 0, busiest = 0;
  std::map<int64_t, int64_t> sent;
  const auto count = [&](const auto& by_ranks, const std::vector<Placement>& senders) {
    for (const auto& [ranks, bytes] : by_ranks) {
      wire += bytes;
      if (HostOf(senders, ranks.first) != HostOf(m.topology.destination, ranks.second)) entering += bytes;
    }
  };
  count(published, m.topology.source);
  count(passed_on, m.topology.destination);
  for (const auto& [ranks, bytes] : published) busiest = std::max(busiest, sent[ranks.first] += bytes);
  EXPECT_EQ(wire, figures.wire_bytes);
  EXPECT_EQ(entering, figures.host_wire_bytes);
  if (policy == Policy::kAuto) {
    EXPECT_EQ(entering, figures.distinct_host_bytes);
  }
  EXPECT_EQ(busiest, figures.busiest_sender_bytes);
}

Manifest RandomPlaced(Random& random) {
  RandomManifestOptions options;
  options.max_hosts = static_cast<int>(Uniform(random, 1, 4));
  options.max_ranks = 6;
  options.broadcast_percent = 40;
  return RandomManifest(random, options);
}

TEST(StreamTransferTest, RandomTopologiesUnderDelaysAndReordering) {
  constexpr int kSeed = 40000;
  size_t streams = 0, longest = 0, transfers = 0;
  for (int n = 0; n < testing::Share(500); ++n) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed + n);
    Random random(kSeed + n);
    const Manifest m = RandomPlaced(random);
    if (SourcesContradict(m)) continue;
    const Policy policy = n % 2 == 0 ? Policy::kAuto : Policy::kHybrid;
    MemoryOptions options = Streams(kSeed + n);
    options.map = n % 7 == 0;
    options.reorder_completions = true;
    options.delay_probability = 0.3;
    options.max_delay_steps = 5;
    const int64_t chunk = Uniform(random, 64, 100), staging = chunk * Uniform(random, 1, n % 3 == 0 ? 9 : 1);
    World world(m, options, chunk, staging, policy);
    for (const Stream& s : world.plan().streams) longest = std::max(longest, s.chain.size());
    streams += world.plan().streams.size();
    for (uint64_t generation : {1, 2, 5}) {
      const absl::Status status = world.Move(generation);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(world.Difference(), "");
      if (HasFailure()) return;
      if (generation == 1 && !options.map) CheckWire(m, policy, world);
      ++transfers;
    }
    if (options.map) continue;
    EXPECT_LE(world.peak_staging_bytes, staging);
    for (int64_t rank : world.SourceRanks()) EXPECT_LE(world.SenderPeak(rank), staging);
    if (HasFailure()) return;
  }
  std::cout << "from seed " << kSeed << ": " << transfers << " transfers, " << streams << " streams, chains of up to "
            << longest << "\n";
  EXPECT_GT(streams, 0u);
  if (testing::Share(500) == 500) {
    EXPECT_GE(longest, 4u);
  }
}

// `tensors` of 48 KiB on publishers of host "s" in turn, each wanted by all `ranks` workers of host "a".
Manifest Shared(int tensors, int publishers, int ranks) {
  Manifest m;
  for (int p = 0; p < publishers; ++p) m.topology.source.push_back({p, "s", "", ""});
  for (int r = 0; r < ranks; ++r) m.topology.destination.push_back({r, "a", "", ""});
  for (int t = 0; t < tensors; ++t) {
    m.tensors.push_back({"w" + std::to_string(t), {48 << 10}, Dtype::kU8});
    m.source.push_back(WholeBuffer(t % publishers, m.tensors.back()));
    for (int r = 0; r < ranks; ++r) m.destination.push_back(WholeBuffer(r, m.tensors.back()));
  }
  return m;
}

// Streams that cross each other between the same ranks, each rank and publisher with one chunk of memory.
TEST(StreamTransferTest, CrossingStreamsWithTheSmallestStaging) {
  for (int seed = 0; seed < testing::Share(9); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Manifest m = Shared(6, 1 + seed % 3, 2 + seed % 4);
    MemoryOptions options = Streams(seed);
    options.reorder_completions = true;
    options.delay_probability = 0.2;
    options.max_delay_steps = 9;
    const int64_t chunk = 1000 + seed;
    World world(m, options, chunk, chunk);
    std::set<std::pair<int64_t, int64_t>> hops;
    for (const Stream& s : world.plan().streams) {
      for (size_t i = 1; i < s.chain.size(); ++i) hops.insert({s.chain[i - 1], s.chain[i]});
    }
    // Two ranks pass bytes on to each other, more form a ring.
    ASSERT_EQ(hops.size(), m.topology.destination.size());
    for (uint64_t generation : {1, 2}) {
      const absl::Status status = world.Move(generation);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(world.Difference(), "");
      if (HasFailure()) return;
    }
    EXPECT_EQ(world.peak_staging_bytes, chunk);
  }
}

// A tensor that goes from publisher 0 along a chain of four.
Manifest Chain() {
  Manifest m;
  m.tensors = {{"w", {2000}, Dtype::kU8}};
  m.source = {WholeBuffer(0, m.tensors[0])};
  m.topology.source = {{0, "s", "", ""}};
  for (int r = 0; r < 4; ++r) {
    m.destination.push_back(WholeBuffer(r, m.tensors[0]));
    m.topology.destination.push_back({r, "a", "", ""});
  }
  return m;
}

std::vector<int64_t> ChainOf(const World& world) {
  EXPECT_EQ(world.plan().streams.size(), 1u);
  EXPECT_EQ(world.plan().streams[0].chain.size(), 4u);
  return world.plan().streams[0].chain;
}

TEST(StreamTransferTest, WhoBreaksOffEndsThoseBehindItAlone) {
  int heard = 0;
  for (int when : {1, 2, 3, 5, 8, 13, 21, 34, 55, 89}) {
    for (size_t who = 0; who < 4; ++who) {
      SCOPED_TRACE(::testing::Message() << "rank " << who << " of the chain at its step " << when);
      // A message may arrive before those in front of it.
      MemoryOptions options = Streams(when);
      options.reorder_completions = true;
      const int64_t staging = 1 + when % 5;
      FixedChunks chunks(4 * staging, 64);  // of all ranks
      World world(Chain(), options, 64, 64 * staging, Policy::kAuto, &chunks);
      world.withheld.all_but_one = true;
      const std::vector<int64_t> chain = ChainOf(world);
      world.Publish(1);
      world.on_rank_step = [&](int64_t rank, int step) {
        return rank == chain[who] && step == when ? Error(ErrorCode::kAborted, "out of luck") : absl::OkStatus();
      };
      auto statuses = world.ReceiveAll(1);
      ASSERT_EQ(statuses.size(), 4u);
      if (!statuses[chain[who]].ok()) ExpectError(statuses[chain[who]], ErrorCode::kAborted, "out of luck");
      for (size_t i = 0; i < 4; ++i) {
        const absl::Status& status = statuses[chain[i]];
        if (!status.ok()) world.Excuse(chain[i]);
        if (i == who || status.ok()) continue;
        EXPECT_GT(i, who) << status;
        EXPECT_TRUE(HasCode(status, ErrorCode::kPeerLost)) << status;
        EXPECT_NE(status.message().find(NameOfTarget(chain[i - 1])), std::string::npos) << status;
        ++heard;
      }
      EXPECT_EQ(chunks.free(), 4 * staging);  // whoever receives next may need them all
      EXPECT_EQ(world.Difference(), "");
      world.on_rank_step = nullptr;
      const absl::Status status = world.Move(2);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(world.Difference(), "");
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(heard, 0);
}

TEST(StreamTransferTest, WhoDiesEndsThoseBehindItAlone) {
  for (int when : {1, 5, 9, 14}) {
    for (size_t who = 0; who < 4; ++who) {
      SCOPED_TRACE(::testing::Message() << "rank " << who << " of the chain at its step " << when);
      World world(Chain(), Streams(when), 64, 128);
      const std::vector<int64_t> chain = ChainOf(world);
      world.Publish(1);
      world.on_rank_step = [&](int64_t rank, int step) {
        if (rank == chain[who] && step == when) world.fabric().Cut(world.TargetAddress(rank));
        return absl::OkStatus();
      };
      auto statuses = world.ReceiveAll(1);
      for (size_t i = 0; i < 4; ++i) {
        const absl::Status& status = statuses[chain[i]];
        if (!status.ok()) world.Excuse(chain[i]);
        EXPECT_TRUE(i >= who || status.ok()) << status;
        EXPECT_TRUE(i != who || HasCode(status, ErrorCode::kPeerLost)) << status;
        if (i == who + 1) ExpectError(status, ErrorCode::kPeerLost, NameOfTarget(chain[who]));
        if (i > who + 1) ExpectError(status, ErrorCode::kPeerLost, NameOfTarget(chain[i - 1]));
      }
      EXPECT_EQ(world.Difference(), "");
    }
  }
}

// Random worlds in which one rank breaks off: everybody comes to an end, whoever says that it has the generation has
// it, and the next one is whole.
TEST(StreamTransferTest, RandomBreakOffs) {
  int failed = 0, moved = 0;
  for (int seed = 0; seed < testing::Share(250); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomPlaced(random);
    if (SourcesContradict(m)) continue;
    MemoryOptions options = Streams(seed);
    options.reorder_completions = true;
    options.delay_probability = 0.3;
    options.max_delay_steps = 5;
    const int64_t staging = Uniform(random, 1, 4);
    FixedChunks chunks(6 * staging, 64);  // of all ranks
    World world(m, options, 64, 64 * staging, seed % 2 == 0 ? Policy::kAuto : Policy::kHybrid, &chunks);
    const int64_t unlucky = Uniform(random, 0, 5);
    const int when = static_cast<int>(Uniform(random, 0, 30));
    world.Publish(1);
    world.on_rank_step = [&](int64_t rank, int step) {
      return rank == unlucky && step == when ? Error(ErrorCode::kAborted, "out of luck") : absl::OkStatus();
    };
    for (const auto& [rank, status] : world.ReceiveAll(1)) {
      ++(status.ok() ? moved : failed);
      if (!status.ok()) world.Excuse(rank);
      EXPECT_TRUE(rank == unlucky || !HasCode(status, ErrorCode::kAborted)) << status;
    }
    EXPECT_EQ(chunks.free(), 6 * staging);
    EXPECT_EQ(world.Difference(), "");
    world.on_rank_step = nullptr;
    const absl::Status status = world.Move(2);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(world.Difference(), "");
    if (HasFailure()) return;
  }
  std::cout << failed << " ranks failed, " << moved << " did not\n";
  EXPECT_GT(failed, 0);
  EXPECT_GT(moved, 0);
}

// One tensor from publisher 0 to rank 0 alone.
Manifest Pair() {
  Manifest m;
  m.tensors = {{"w", {2000}, Dtype::kU8}};
  m.source = {WholeBuffer(0, m.tensors[0])};
  m.destination = {WholeBuffer(0, m.tensors[0])};
  return m;
}

// The transport has not ended what was cancelled when the executor gives up waiting: the chunks are not used, and not
// lost either, whoever receives next.
TEST(StreamTransferTest, ChunksThatATransportKeepsComeBackWhenItEndsTheirOperations) {
  for (const bool renew : {false, true}) {
    SCOPED_TRACE(renew);
    constexpr int64_t kChunk = 64;
    constexpr int64_t kChunks = 2;
    FixedChunks chunks(kChunks, kChunk);
    World world(Pair(), Streams(), kChunk, kChunks * kChunk, Policy::kAuto, &chunks);
    ASSERT_EQ(world.Move(1), absl::OkStatus());
    ASSERT_EQ(chunks.free(), kChunks);
    // The receives of the sums and of the first data wait for ever.
    MemoryOptions drop = Streams();
    drop.drop_probability = 1;
    world.fabric().SetFaults(drop);
    world.Publish(2);
    world.withheld.cancelled = true;
    world.on_step = [](int step) { return step == 4 ? Error(ErrorCode::kAborted, "out of luck") : absl::OkStatus(); };
    ExpectError(world.Receive(0, 2), ErrorCode::kAborted, "out of luck");
    world.fabric().SetFaults(Streams());
    EXPECT_EQ(chunks.free(), kChunks - 1);
    if (renew) world.RenewExecutors();
    EXPECT_EQ(chunks.free(), kChunks - 1);
    // The next transfer has room when they are back.
    world.on_step = [&](int step) {
      world.withheld.cancelled = step < 9;
      return absl::OkStatus();
    };
    ASSERT_EQ(world.Move(3), absl::OkStatus());
    EXPECT_EQ(world.Difference(), "");
    EXPECT_LE(world.peak_staging_bytes, kChunks * kChunk);
    EXPECT_EQ(chunks.free(), kChunks);
  }
}

// Bytes that were spoiled on the way to one rank are found by it and by all behind it.
TEST(StreamTransferTest, CorruptionIsNeverMissed) {
  int failed = 0, moved = 0;
  for (int seed = 0; seed < testing::Share(300); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MemoryOptions options = Streams(seed);
    options.corrupt_probability = 0.01;
    World world(Chain(), options, 64, 256);
    world.Publish(1);
    const std::vector<int64_t> chain = ChainOf(world);
    bool spoiled = false;
    auto statuses = world.ReceiveAll(1);
    for (int64_t rank : chain) {
      const absl::Status& status = statuses[rank];
      ++(status.ok() ? moved : failed);
      EXPECT_FALSE(spoiled && status.ok());
      if (status.ok()) continue;
      spoiled = true;
      ExpectError(status, ErrorCode::kVerificationFailed, "tensor \"w\"", NameOfSource(0));
      world.Excuse(rank);
    }
    ASSERT_EQ(world.Difference(), "");
  }
  EXPECT_GT(failed, 0);
  EXPECT_GT(moved, 0);
}

TEST(StreamTransferTest, AWorkerThatTakesNoPartIsNamed) {
  World world(Chain(), Streams(), 64, 128);
  const std::vector<int64_t> chain = ChainOf(world);
  world.Publish(1);
  ExpectError(world.Receive(chain[0], 1, absl::Milliseconds(100)), ErrorCode::kDeadline, NameOfSource(0),
              NameOfTarget(chain[1]));
  ExpectError(world.Receive(chain[3], 1, absl::Milliseconds(100)), ErrorCode::kDeadline, NameOfTarget(chain[2]));
  ASSERT_TRUE(world.Move(2).ok());
  EXPECT_EQ(world.Difference(), "");
}

// Who holds a generation takes no part in it; chains go round it.
TEST(StreamTransferTest, ChainsLeaveOutWhoIsAbsent) {
  for (int n = 0; n < testing::Share(200); ++n) {
    SCOPED_TRACE(::testing::Message() << "seed " << n);
    Random random(n);
    const Manifest m = RandomPlaced(random);
    if (SourcesContradict(m)) continue;
    World world(m, Streams(n), 64, 64 * Uniform(random, 1, 4), n % 2 == 0 ? Policy::kAuto : Policy::kHybrid);
    ASSERT_TRUE(world.Move(1).ok());
    for (int64_t rank = 0; rank < 6; ++rank) {
      if (random() % 3 == 0) world.absent.insert(rank);
    }
    const absl::Status status = world.Move(2);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(world.Difference(), "");
    if (HasFailure()) return;
  }
}

// A rank that says so is not waited for, whether the others began before it or after.
TEST(StreamTransferTest, WhoDeclinesEndsThoseBehindItAlone) {
  for (bool before : {false, true}) {
    for (size_t who = 0; who < 4; ++who) {
      SCOPED_TRACE(::testing::Message() << "rank " << who << " of the chain " << (before ? "first" : "later"));
      World world(Chain(), Streams(who), 64, 128);
      const std::vector<int64_t> chain = ChainOf(world);
      world.Publish(1);
      if (before) world.Decline(chain[who], 1);
      bool declined = before;
      world.on_rank_step = [&](int64_t, int step) {
        if (step == 20 && !std::exchange(declined, true)) world.Decline(chain[who], 1);
        return absl::OkStatus();
      };
      world.without = {chain[who]};
      auto statuses = world.ReceiveAll(1);
      for (size_t i = 0; i < 4; ++i) {
        if (i == who) continue;
        const absl::Status& status = statuses[chain[i]];
        EXPECT_TRUE(i > who || status.ok()) << status;
        if (!status.ok()) world.Excuse(chain[i]);
        if (i > who) ExpectError(status, ErrorCode::kPeerLost, NameOfTarget(chain[i - 1]));
      }
      EXPECT_EQ(world.Difference(), "");
      world.without.clear();
      world.on_rank_step = nullptr;
      const absl::Status status = world.Move(2);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(world.Difference(), "");
    }
  }
}

// Where memory is mapped, each rank of a chain reads for itself.
TEST(StreamTransferTest, MappedChainsNeedNobodyElse) {
  MemoryOptions mapped;
  World world(Chain(), mapped);
  world.Publish(1);
  ASSERT_TRUE(world.Receive(ChainOf(world)[3], 1).ok());
  EXPECT_EQ(world.stats.bytes, 2000);
  world.Slot(0)[world.Layout(0).BufferOffset(world.CopyOutOf(0)) + 17] ^= std::byte{4};
  ExpectError(world.Receive(ChainOf(world)[1], 1), ErrorCode::kVerificationFailed, "tensor \"w\"", NameOfSource(0));
}

}  // namespace
}  // namespace headrace
