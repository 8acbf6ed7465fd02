#include "planner/cost/simulate.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/testing/clusters.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr double kTolerance = 1e-9;

// 1 GB/s on every wire, chunks of 1 MB (1 ms each), nothing else costs anything.
CostModel PlainModel() {
  CostModel model;
  model.nic.bytes_per_second = 1e9;
  model.nvlink.bytes_per_second = 1e10;
  model.chunk_bytes = 1000000;
  model.window = 1000;
  return model;
}

// Nodes on hosts and in domains of their own.
Traffic Apart(int32_t sources, int32_t destinations) {
  Traffic traffic;
  traffic.source_ranks = sources;
  for (int32_t node = 0; node < sources + destinations; ++node) {
    traffic.host.push_back(node);
    traffic.domain.push_back(node);
  }
  return traffic;
}

// Nodes on one host and in one domain.
Traffic Together(int32_t sources, int32_t destinations) {
  Traffic traffic = Apart(sources, destinations);
  std::fill(traffic.host.begin(), traffic.host.end(), 0);
  std::fill(traffic.domain.begin(), traffic.domain.end(), 0);
  return traffic;
}

Simulation Simulated(const Traffic& traffic, const CostModel& model, const SimulateOptions& options = {}) {
  absl::StatusOr<Simulation> result = Simulate(traffic, model, options);
  EXPECT_TRUE(result.ok()) << result.status();
  const double sum = std::accumulate(result->by_phase.begin(), result->by_phase.end(), 0.0);
  EXPECT_NEAR(sum, result->seconds, kTolerance);
  return *std::move(result);
}

double PhaseSeconds(const Simulation& simulation, Phase phase) {
  return simulation.by_phase[static_cast<size_t>(phase)];
}

TEST(Simulate, NothingToDo) {
  const Simulation result = Simulated(Traffic{}, PlainModel());
  EXPECT_EQ(result.seconds, 0);
  EXPECT_EQ(result.chunks, 0);
}

TEST(Simulate, OneSenderOneReceiver) {
  Traffic traffic = Apart(1, 1);
  traffic.flows = {{10500000, 1, {{0, 1, -1}}}};
  CostModel model = PlainModel();
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.0105, kTolerance);
  model.nic.latency_ns = 3000;
  const Simulation late = Simulated(traffic, model);
  EXPECT_NEAR(late.seconds, 0.010503, kTolerance);
  EXPECT_NEAR(PhaseSeconds(late, Phase::kWaiting), 0.000003, kTolerance);
  EXPECT_NEAR(PhaseSeconds(late, Phase::kNic), 0.0105, kTolerance);
  EXPECT_EQ(late.messages, 11);
  EXPECT_EQ(late.nodes[0].sent_bytes, 10500000);
  EXPECT_EQ(late.nodes[1].received_bytes, 10500000);
  EXPECT_NEAR(late.nodes[1].finished_seconds, 0.010503, kTolerance);
  EXPECT_NEAR(late.nodes[0].busy_seconds[static_cast<size_t>(Port::kNicSend)], 0.0105, kTolerance);
}

TEST(Simulate, InsideADomainNvlinkIsUsed) {
  Traffic traffic = Together(1, 1);
  traffic.flows = {{10000000, 1, {{0, 1, -1}}}};
  const Simulation result = Simulated(traffic, PlainModel());
  EXPECT_NEAR(result.seconds, 0.001, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kNvlink), 0.001, kTolerance);
}

TEST(Simulate, EachMessageCosts) {
  Traffic traffic = Apart(1, 1);
  traffic.flows = {{10000000, 1, {{0, 1, -1}}}};
  CostModel model = PlainModel();
  model.nic.message_ns = 100000;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 10 * 0.0011, kTolerance);
}

// Each further hop costs the time of one chunk.
TEST(Simulate, ChainIsPipelined) {
  for (int32_t length : {1, 2, 5, 9}) {
    Traffic traffic = Apart(1, length);
    Flow flow{20000000, 1, {}};
    for (int32_t h = 0; h < length; ++h) flow.hops.push_back({h, h + 1, h - 1});
    traffic.flows = {flow};
    CostModel model = PlainModel();
    model.nic.latency_ns = 1000;
    EXPECT_NEAR(Simulated(traffic, model).seconds, 0.020 + (length - 1) * 0.001 + length * 1e-6, kTolerance) << length;
  }
}

TEST(Simulate, SenderOfManyIsLimitedByItsPort) {
  Traffic traffic = Apart(1, 7);
  for (int32_t d = 1; d <= 7; ++d) traffic.flows.push_back({5000000, 1, {{0, d, -1}}});
  EXPECT_NEAR(Simulated(traffic, PlainModel()).seconds, 0.035, kTolerance);
}

TEST(Simulate, ReceiverOfManyIsLimitedByItsPort) {
  Traffic traffic = Apart(7, 1);
  for (int32_t s = 0; s < 7; ++s) traffic.flows.push_back({5000000, 1, {{s, 7, -1}}});
  const Simulation result = Simulated(traffic, PlainModel());
  EXPECT_NEAR(result.seconds, 0.035, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kNic), 0.035, kTolerance);
}

// Both directions of a port work at the same time.
TEST(Simulate, PortsAreFullDuplex) {
  Traffic traffic = Apart(2, 0);
  traffic.flows = {{5000000, 1, {{0, 1, -1}}}, {5000000, 1, {{1, 0, -1}}}};
  EXPECT_NEAR(Simulated(traffic, PlainModel()).seconds, 0.005, kTolerance);
}

// Two hosts of two, 4 GB/s of NICs together. A spine of a quarter carries 1 GB/s: one NIC's worth, which two flows that
// cross share chunk by chunk; what stays on its rail is not held up.
TEST(Simulate, TheSpineCarriesItsShare) {
  Traffic traffic = Apart(2, 2);
  traffic.rail = {0, 1, 0, 1};
  const std::vector<Flow> crossing = {{10000000, 1, {{0, 3, -1}}}, {10000000, 1, {{1, 2, -1}}}};
  const std::vector<Flow> straight = {{10000000, 1, {{0, 2, -1}}}, {10000000, 1, {{1, 3, -1}}}};
  CostModel model = PlainModel();
  traffic.flows = crossing;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.010, kTolerance);
  model.spine_share = 0.25;
  const Simulation both = Simulated(traffic, model);
  EXPECT_NEAR(both.seconds, 0.020, kTolerance);
  EXPECT_NEAR(PhaseSeconds(both, Phase::kNic), 0.020, kTolerance);
  EXPECT_NEAR(both.nodes[3].finished_seconds, 0.019, kTolerance);
  traffic.flows = straight;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.010, kTolerance);
  traffic.flows = {crossing[0]};
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.010, kTolerance);
  // A single chunk needs 2 ms through a spine of 0.5 GB/s.
  model.spine_share = 0.125;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.020, kTolerance);
  traffic.flows = crossing;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.040, kTolerance);
  // Without rails, and within a domain, there is no spine.
  traffic.rail = {};
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.010, kTolerance);
  traffic = Together(2, 2);
  traffic.rail = {0, 1, 0, 1};
  traffic.flows = crossing;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.001, kTolerance);
}

// Node 2 gets a chunk through the spine every 4 ms, and ten others on its rail, which it passes on to 3. Of the former
// two come before the last of the latter.
TEST(Simulate, WhatStaysOnItsRailDoesNotWaitForTheSpine) {
  Traffic traffic = Apart(2, 2);
  traffic.rail = {0, 1, 0, 0};
  traffic.flows = {{10000000, 1, {{1, 2, -1}}}, {10000000, 1, {{0, 2, -1}, {2, 3, 0}}}};
  CostModel model = PlainModel();
  model.spine_share = 0.0625;
  const Simulation result = Simulated(traffic, model);
  EXPECT_NEAR(result.nodes[3].finished_seconds, 0.013, kTolerance);
  EXPECT_NEAR(result.nodes[2].finished_seconds, 0.040, kTolerance);
}

// Two flows in a group, of which one goes on to node 2: that begins when all 5 chunks are there, and each launch takes
// 1 ms.
TEST(Simulate, AGroupArrivesAsAWhole) {
  Traffic traffic = Apart(1, 2);
  traffic.flows = {{3000000, 1, {{0, 1, -1, 0}, {1, 2, 0, 0}}}, {2000000, 1, {{0, 1, -1, 0}}}};
  CostModel model = PlainModel();
  model.group_ns = 1000000;
  model.window = 1;  // does not count
  const Simulation result = Simulated(traffic, model);
  EXPECT_NEAR(result.nodes[1].finished_seconds, 0.006, kTolerance);
  EXPECT_NEAR(result.nodes[2].finished_seconds, 0.010, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kWaiting), 0.002, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kNic), 0.008, kTolerance);
  // Each in its own: the first goes on after 3 chunks, and does not wait for the second launch.
  traffic.flows[1].hops[0].group = 1;
  EXPECT_NEAR(Simulated(traffic, model).nodes[2].finished_seconds, 0.008, kTolerance);
  // In none: chunk by chunk.
  for (Flow& flow : traffic.flows) {
    for (Hop& hop : flow.hops) hop.group = -1;
  }
  model.window = 1000;
  EXPECT_NEAR(Simulated(traffic, model).nodes[2].finished_seconds, 0.004, kTolerance);
}

// Launches take 5 ms, chunks 1 ms: the third group is launched when the first is over, at 6 ms. Hops of both directions
// are of one pair; other pairs have their own.
TEST(Simulate, TwoGroupsOfAPairAreUnderWay) {
  Traffic traffic = Apart(2, 1);
  traffic.flows = {{1000000, 1, {{0, 1, -1, 0}}}, {1000000, 1, {{0, 1, -1, 7}}}, {1000000, 1, {{0, 1, -1, 8}}}};
  CostModel model = PlainModel();
  model.group_ns = 5000000;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.012, kTolerance);
  traffic.flows[2].hops[0] = {1, 0, -1, 8};
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.012, kTolerance);
  traffic.flows[2].hops[0] = {1, 2, -1, 8};
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.007, kTolerance);
}

// The group of 0 and 1 waits for that of 2 and 0, which waits for it by way of 1 and 2.
TEST(Simulate, GroupsThatWaitForEachOtherAreRefused) {
  Traffic traffic = Apart(3, 0);
  traffic.flows = {{1000, 1, {{0, 1, -1, 0}, {1, 2, 0, 0}, {2, 0, 1, 0}}}, {1000, 1, {{2, 0, -1, 0}, {0, 1, 0, 0}}}};
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel()).status()), "malformed");
  traffic.flows[1].hops[1].group = 1;
  Simulated(traffic, PlainModel());
  traffic.flows[1].hops[1].group = -2;
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel()).status()), "malformed");
}

TEST(Simulate, EarlierFlowsGoFirst) {
  Traffic traffic = Apart(1, 2);
  traffic.flows = {{3000000, 1, {{0, 2, -1}}}, {4000000, 1, {{0, 1, -1}}}};
  const Simulation result = Simulated(traffic, PlainModel());
  EXPECT_NEAR(result.nodes[2].finished_seconds, 0.003, kTolerance);
  EXPECT_NEAR(result.nodes[1].finished_seconds, 0.007, kTolerance);
}

// A window of one: each chunk waits until the one before it is there.
TEST(Simulate, WindowLimits) {
  Traffic traffic = Apart(1, 1);
  traffic.flows = {{10000000, 1, {{0, 1, -1}}}};
  CostModel model = PlainModel();
  model.nic.latency_ns = 500000;
  model.window = 1;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 10 * 0.0015, kTolerance);
  model.window = 2;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.0105, kTolerance);
}

TEST(Simulate, PackSendUnpackIsAPipeline) {
  Traffic traffic = Apart(1, 1);
  traffic.flows = {{10000000, 20, {{0, 1, -1}}}};
  CostModel model = PlainModel();
  model.pack.bytes_per_second = 2e9;    // 0.5 ms a chunk
  model.unpack.bytes_per_second = 5e8;  // 2 ms a chunk: the slowest
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.0005 + 0.001 + 10 * 0.002, kTolerance);
  model.unpack.ns_per_copy = 250000;  // 2 copies a chunk
  const Simulation result = Simulated(traffic, model);
  EXPECT_NEAR(result.seconds, 0.0005 + 0.001 + 10 * 0.0025, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kPack), 0.0005, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kNic), 0.001, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kUnpack), 0.025, kTolerance);
}

// A relay sends on what it has received before it is unpacked, and does not pack.
TEST(Simulate, RelaysNeitherPackNorWaitForUnpacking) {
  Traffic traffic = Apart(1, 2);
  traffic.flows = {{1000000, 1, {{0, 1, -1}, {1, 2, 0}}}};
  CostModel model = PlainModel();
  model.pack.bytes_per_second = 1e9;
  model.unpack.bytes_per_second = 1e9;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.001 * 4, kTolerance);
}

TEST(Simulate, MappedWireIsOneCopyByTheReceiver) {
  Traffic traffic = Together(2, 1);
  traffic.flows = {{4000000, 4, {{0, 2, -1}}}, {6000000, 6, {{1, 2, -1}}}};
  CostModel model = PlainModel();
  model.nvlink = {.mapped = true};
  model.pack.bytes_per_second = 1;
  model.unpack.bytes_per_second = 1;
  model.direct = {.bytes_per_second = 2e9, .ns_per_copy = 1000};
  const Simulation result = Simulated(traffic, model);
  EXPECT_NEAR(result.seconds, 10 * (0.0005 + 1e-6), kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kUnpack), result.seconds, kTolerance);
}

TEST(Simulate, WorkersShareCores) {
  Traffic traffic = Together(1, 4);
  for (int32_t d = 1; d <= 4; ++d) traffic.flows.push_back({1000000 * d, 0, {{0, d, -1}}});
  CostModel model = PlainModel();
  model.nvlink = {.mapped = true};
  model.direct.bytes_per_second = 1e9;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.004, kTolerance);  // each has its own
  model.cores = 2;
  // 1, 2, 3 and 4 ms of work at half speed: one ends after 2 ms; three at 2/3 speed: 1.5 ms more; two at full speed:
  // 1 ms; the last 1 ms.
  const Simulation result = Simulated(traffic, model);
  EXPECT_NEAR(result.seconds, 0.0055, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kUnpack), 0.004, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kWaiting), 0.0015, kTolerance);
  EXPECT_NEAR(result.nodes[1].finished_seconds, 0.002, kTolerance);
  EXPECT_NEAR(result.nodes[2].finished_seconds, 0.0035, kTolerance);
}

TEST(Simulate, WorkersShareMemory) {
  Traffic traffic = Together(1, 2);
  traffic.flows = {{1000000, 0, {{0, 1, -1}}}, {1000000, 0, {{0, 2, -1}}}};
  CostModel model = PlainModel();
  model.nvlink = {.mapped = true};
  model.direct.bytes_per_second = 1e9;
  model.cores = 2;
  model.memory_bytes_per_second = 1.25e9;
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.0016, kTolerance);
}

TEST(Simulate, SnapshotAndCommitAreBeforeAndAfter) {
  Traffic traffic = Apart(2, 1);
  traffic.flows = {{1000000, 1, {{0, 2, -1}}}};
  CostModel model = PlainModel();
  model.snapshot.bytes_per_second = 1e9;
  model.commit.bytes_per_second = 1e10;
  model.fixed_ns = 7000;
  model.rank_ns = 1000;
  const Simulation result =
      Simulated(traffic, model, {.snapshot_bytes = {1000000, 5000000}, .commit_bytes = {2000000}});
  EXPECT_NEAR(result.transfer_seconds, 0.006, kTolerance);
  EXPECT_NEAR(result.seconds, 0.00621, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kSnapshot), 0.005, kTolerance);
  EXPECT_NEAR(PhaseSeconds(result, Phase::kCommit), 0.00021, kTolerance);
}

// What the kernel's protocol costs is the workers' time, on both sides, and a relay passes on what it has received.
TEST(Simulate, SendingAndReceivingTakeTheWorkers) {
  Traffic traffic = Apart(1, 2);
  traffic.flows = {{4000000, 1, {{0, 1, -1}, {1, 2, 0}}}};
  CostModel model = PlainModel();
  model.nic = {.sender_ns_per_byte = 1, .sender_ns_per_message = 100, .receiver_ns_per_byte = 0.5};
  model.pack.bytes_per_second = 1e9;
  model.unpack.bytes_per_second = 2e9;
  // Node 0: 2 ms a chunk. Node 1: 1 ms to receive and 1 ms to send each. The last leaves node 0 at 8 ms, is received by
  // 9 ms, sent on by 10 ms, received at node 2 by 11 ms; and the message costs of five messages in a row.
  EXPECT_NEAR(Simulated(traffic, model).seconds, 0.011 + 5e-7, kTolerance);
}

// Twice the rates of everything: half of the time, whatever the traffic.
TEST(Simulate, TimeIsInProportionToTheRates) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const Traffic traffic = RandomTraffic(RandomCluster(random), random);
    CostModel model = PlainModel();
    model.chunk_bytes = 100;
    model.window = 1 + static_cast<Index>(random() % 4);
    model.pack.bytes_per_second = 2e9;
    model.unpack.bytes_per_second = 1e9;
    const Simulation once = Simulated(traffic, model);
    for (double* rate : {&model.nic.bytes_per_second, &model.nvlink.bytes_per_second, &model.pack.bytes_per_second,
                         &model.unpack.bytes_per_second}) {
      *rate *= 2;
    }
    // Whole picoseconds, rounded up, of each of the steps.
    ASSERT_NEAR(Simulated(traffic, model).seconds, once.seconds / 2,
                1e-12 * (2 + 5 * static_cast<double>(once.chunks)));
  }
}

// A tree of one flow is never slower where anything is faster. (Of several flows that is not so: which chunk comes
// first may change.)
TEST(Simulate, AFasterWireIsNeverSlower) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    Traffic traffic = Apart(1, 6);
    Flow flow{1 + static_cast<Index>(random() % 9000000), 0, {}};
    for (int32_t h = 0; h < 6; ++h) {
      const int32_t parent = static_cast<int32_t>(random() % static_cast<uint64_t>(h + 1)) - 1;
      flow.hops.push_back({parent < 0 ? 0 : flow.hops[parent].to, h + 1, parent});
    }
    traffic.flows = {flow};
    CostModel model = PlainModel();
    model.window = 1 + static_cast<Index>(random() % 5);
    model.nic.latency_ns = static_cast<Index>(random() % 1000000);
    double last = 1e9;
    for (double rate : {1e8, 3e8, 1e9, 5e9}) {
      model.nic.bytes_per_second = rate;
      const double seconds = Simulated(traffic, model).seconds;
      ASSERT_LE(seconds, last);
      last = seconds;
    }
  }
}

TEST(Simulate, SameInputSameResult) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 50; ++i) {
    const Traffic traffic = RandomTraffic(RandomCluster(random), random);
    CostModel model = PlainModel();
    model.chunk_bytes = 50;
    model.nvlink.mapped = true;
    model.direct.bytes_per_second = 3e8;
    model.unpack.bytes_per_second = 7e8;
    model.cores = 2;
    model.memory_bytes_per_second = 9e8;
    const SimulateOptions options{.timeline_nodes = {0}, .max_intervals = 7};
    const Simulation once = Simulated(traffic, model, options);
    const Simulation again = Simulated(traffic, model, options);
    ASSERT_EQ(once.seconds, again.seconds);
    ASSERT_EQ(once.by_phase, again.by_phase);
    for (size_t node = 0; node < once.nodes.size(); ++node) {
      ASSERT_EQ(once.nodes[node].busy_seconds, again.nodes[node].busy_seconds);
      ASSERT_EQ(once.nodes[node].finished_seconds, again.nodes[node].finished_seconds);
      for (double busy : once.nodes[node].busy_seconds) ASSERT_LE(busy, once.seconds * (1 + kTolerance));
    }
    ASSERT_EQ(once.timeline.size(), again.timeline.size());
  }
}

TEST(Simulate, LargeTrafficIsSimulatedInLargerChunks) {
  Traffic traffic = Apart(1, 1);
  traffic.flows = {{64000000, 64, {{0, 1, -1}}}};
  CostModel model = PlainModel();
  model.nic.message_ns = 1000;
  const Simulation fine = Simulated(traffic, model);
  EXPECT_EQ(fine.chunks, 64);
  const Simulation coarse = Simulated(traffic, model, {.max_chunks = 10});
  EXPECT_EQ(coarse.chunk_bytes, 8000000);
  EXPECT_EQ(coarse.chunks, 8);
  EXPECT_EQ(coarse.messages, 64);
  EXPECT_NEAR(coarse.seconds, fine.seconds, kTolerance);
  // One chunk a flow is the least.
  EXPECT_EQ(Simulated(traffic, model, {.max_chunks = 1}).chunks, 1);
}

TEST(Simulate, TimelineShowsTheNodesThatWereAskedFor) {
  Traffic traffic = Apart(2, 1);
  traffic.flows = {{5000000, 1, {{0, 2, -1}}}, {3000000, 1, {{1, 2, -1}}}};
  const Simulation result = Simulated(traffic, PlainModel(), {.timeline_nodes = {2}});
  ASSERT_EQ(result.timeline.size(), 1u);
  EXPECT_EQ(result.timeline[0].node, 2);
  EXPECT_EQ(result.timeline[0].port, Port::kNicReceive);
  EXPECT_NEAR(result.timeline[0].begin_seconds, 0, kTolerance);
  EXPECT_NEAR(result.timeline[0].end_seconds, 0.008, kTolerance);
}

TEST(Simulate, RefusesWhatIsNoTraffic) {
  Traffic traffic = Apart(1, 2);
  for (const Flow& flow : std::vector<Flow>{{-1, 1, {{0, 1, -1}}},
                                            {1, -1, {{0, 1, -1}}},
                                            {1, 1, {{0, 3, -1}}},
                                            {1, 1, {{-1, 1, -1}}},
                                            {1, 1, {{0, 0, -1}}},
                                            {1, 1, {{1, 2, -1}}},
                                            {1, 1, {{0, 1, -1}, {0, 2, 0}}},
                                            {1, 1, {{0, 1, 1}, {1, 2, -1}}}}) {
    traffic.flows = {flow};
    EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel()).status()), "malformed");
  }
  traffic.flows = {};
  traffic.rail = {0};
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel()).status()), "malformed");
  traffic.rail = {};
  traffic.domain.pop_back();
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel()).status()), "malformed");
}

// Picoseconds are counted in 63 bits.
TEST(Simulate, RefusesWhatTakesLongerThanItCounts) {
  Traffic traffic = Apart(1, 1);
  traffic.rail = {0, 1};
  traffic.flows = {{4000000000000000, 1, {{0, 1, -1}}}};
  const SimulateOptions coarse = {.max_chunks = 1000};
  EXPECT_NEAR(Simulated(traffic, PlainModel(), coarse).seconds, 4e6, 1e5);
  const auto refused = [&](const CostModel& model, const SimulateOptions& options = {.max_chunks = 1000}) {
    const absl::Status status = Simulate(traffic, model, options).status();
    EXPECT_EQ(CodeOf(status), "out_of_bounds") << status;
  };
  CostModel model = PlainModel();
  model.spine_share = 1e-9;
  refused(model);
  model.spine_share = 1e-300;
  refused(model);
  traffic.flows = {{1000000, 1, {{0, 1, -1}}}};
  refused(model);
  const std::vector<std::function<void(CostModel&)>> slow = {
      [](CostModel& m) { m.nic.bytes_per_second = 1e-12; },
      [](CostModel& m) { m.nic.latency_ns = Index{1} << 62; },
      [](CostModel& m) { m.nic.message_ns = Index{1} << 62; },
      [](CostModel& m) { m.nic.sender_ns_per_byte = 1e300; },
      [](CostModel& m) { m.nic.sender_ns_per_message = Index{1} << 62; },
      [](CostModel& m) { m.nic.receiver_ns_per_byte = 1e300; },
      [](CostModel& m) { m.nic.receiver_ns_per_message = Index{1} << 62; },
      [](CostModel& m) { m.pack.ns_per_copy = 1e300; },
      [](CostModel& m) { m.unpack.bytes_per_second = 1e-300; },
      [](CostModel& m) { m.nic.mapped = true, m.direct.bytes_per_second = 1e-300; },
      [](CostModel& m) { m.fixed_ns = Index{1} << 62; },
      [](CostModel& m) { m.rank_ns = Index{1} << 62; },
      [](CostModel& m) { m.pack.bytes_per_second = 1e9, m.cores = 1, m.memory_bytes_per_second = 1e-9; },
  };
  for (const auto& change : slow) {
    model = PlainModel();
    change(model);
    refused(model);
  }
  model = PlainModel();
  model.snapshot.bytes_per_second = model.commit.bytes_per_second = 1;
  refused(model, {.snapshot_bytes = {Index{1} << 60}});
  refused(model, {.commit_bytes = {Index{1} << 60}});
  model.group_ns = Index{1} << 62;
  traffic.flows[0].hops[0].group = 0;
  refused(model);
}

TEST(Simulate, RefusesModelsAndOptionsThatMakeNoSense) {
  const Traffic traffic = Apart(1, 1);
  CostModel model = PlainModel();
  model.window = 0;
  EXPECT_EQ(CodeOf(Simulate(traffic, model).status()), "invalid_option");
  model = PlainModel();
  model.unpack.bytes_per_second = -1;
  EXPECT_EQ(CodeOf(Simulate(traffic, model).status()), "invalid_option");
  model = PlainModel();
  model.group_ns = -1;
  EXPECT_EQ(CodeOf(Simulate(traffic, model).status()), "invalid_option");
  for (double share : {0.0, -1.0, 1.5}) {
    model = PlainModel();
    model.spine_share = share;
    EXPECT_EQ(CodeOf(Simulate(traffic, model).status()), "invalid_option");
  }
  model = PlainModel();
  model.memory_bytes_per_second = 1;
  EXPECT_EQ(CodeOf(Simulate(traffic, model).status()), "invalid_option");
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel(), {.snapshot_bytes = {1, 2}}).status()), "invalid_option");
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel(), {.commit_bytes = {-1}}).status()), "invalid_option");
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel(), {.max_chunks = 0}).status()), "invalid_option");
  EXPECT_EQ(CodeOf(Simulate(traffic, PlainModel(), {.timeline_nodes = {2}}).status()), "invalid_option");
}

}  // namespace
}  // namespace headrace
