#include "planner/cost/bounds.h"

#include <iostream>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/algorithms.h"
#include "planner/cost/simulate.h"
#include "planner/cost/testing/clusters.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr double kTolerance = 1e-12;

CostModel Model() {
  CostModel model;
  model.nic.bytes_per_second = 1e9;
  model.nvlink.bytes_per_second = 1e10;
  return model;
}

// One tensor of [12, 1000] BF16 = 24,000 bytes; `stages` source ranks each hold some instances of it.
Cluster OneTensor(Cut source, Cut destination) {
  Cluster cluster;
  cluster.units = {UnitOf("t", 12, 1000, source, destination)};
  return cluster;
}

LowerBounds Find(const Cluster& cluster, const CostModel& model) {
  absl::StatusOr<LowerBounds> bounds = FindLowerBounds(cluster, model);
  EXPECT_TRUE(bounds.ok()) << bounds.status();
  return *std::move(bounds);
}

// Rank 0 holds three instances, rank 1 one; four ranks want all: 24,000 bytes an instance.
TEST(LowerBounds, TheBusiestHolder) {
  Cluster cluster = OneTensor({1, -1}, {4, 0});
  cluster.source = {.ranks = 2};
  cluster.destination = {.ranks = 4};
  cluster.source_stage = {0, 1};
  ClusterUnit& unit = cluster.units[0];
  unit.source_groups = {{{{0}}}, {{{1}}}};
  unit.destination_groups = {{{{0}, {1}, {2}, {3}}}};
  unit.instances = {{0, -1, 0, 0}, {1, -1, 0, 0}, {2, -1, 0, 0}, {3, -1, 1, 0}};
  const LowerBounds bounds = Find(cluster, Model());
  EXPECT_NEAR(bounds.leaving.seconds, 72000 / 1e9, kTolerance);
  EXPECT_EQ(bounds.leaving.of, "trainer rank 0");
  EXPECT_NEAR(bounds.entering.seconds, 24000 / 1e9, kTolerance);
  EXPECT_NEAR(bounds.seconds, bounds.leaving.seconds, kTolerance);
  EXPECT_EQ(bounds.distinct_bytes, 96000);
  EXPECT_EQ(bounds.needed_bytes, 96000);

  // A neighbour's NIC may help: NVLink carries to it what rank 0 does not send itself.
  cluster.source = {.ranks = 2, .ranks_per_host = 2, .ranks_per_domain = 2};
  const LowerBounds helped = Find(cluster, Model());
  EXPECT_NEAR(helped.leaving.seconds, 48000 / 1e9, kTolerance);
  EXPECT_EQ(helped.leaving.of, "trainer ranks 0..1 (2)");
  EXPECT_NEAR(helped.leaving_directly.seconds, 72000 / 1e9, kTolerance);
}

// Replicas share what they hold.
TEST(LowerBounds, ReplicasShare) {
  Cluster cluster = OneTensor({1, -1}, {1, -1});
  cluster.source = {.ranks = 3};
  cluster.destination = {.ranks = 1};
  cluster.source_stage = {0, 0, 0};
  ClusterUnit& unit = cluster.units[0];
  unit.source_groups = {{{{0, 1, 2}}}};
  unit.destination_groups = {{{{0}}}};
  unit.instances = {{0, -1, 0, 0}};
  const LowerBounds bounds = Find(cluster, Model());
  EXPECT_NEAR(bounds.leaving.seconds, 8000 / 1e9, kTolerance);
  EXPECT_NEAR(bounds.entering.seconds, 24000 / 1e9, kTolerance);
  EXPECT_EQ(bounds.entering.of, "engine rank 0");
}

// What all ranks of a domain want enters it once, by all its NICs.
TEST(LowerBounds, DomainsShareWhatTheirRanksWant) {
  Cluster cluster = OneTensor({1, -1}, {1, -1});
  cluster.source = {.ranks = 1};
  cluster.destination = {.ranks = 8, .ranks_per_host = 4, .ranks_per_domain = 4};
  cluster.source_stage = {0};
  ClusterUnit& unit = cluster.units[0];
  unit.source_groups = {{{{0}}}};
  unit.destination_groups = {{{{0, 1, 2, 3, 4, 5, 6, 7}}}};
  unit.instances = {{0, -1, 0, 0}};
  const LowerBounds bounds = Find(cluster, Model());
  EXPECT_NEAR(bounds.entering.seconds, 24000 / 4e9, kTolerance);
  EXPECT_EQ(bounds.entering.of, "engine domain 0");
  EXPECT_NEAR(bounds.seconds, 24000 / 1e9, kTolerance);
  EXPECT_EQ(bounds.distinct_bytes, 24000);
  EXPECT_EQ(bounds.needed_bytes, 8 * 24000);
}

TEST(LowerBounds, WorkersCopyWhatTheirRanksWant) {
  Cluster cluster = OneTensor({2, 0}, {1, -1});
  cluster.source = {.ranks = 2};
  cluster.destination = {.ranks = 2, .ranks_per_host = 2};
  cluster.source_stage = {0, 0};
  ClusterUnit& unit = cluster.units[0];
  unit.source_groups = {{{{0}, {1}}}};
  unit.destination_groups = {{{{0, 1}}}};
  unit.instances = {{0, -1, 0, 0}};
  CostModel model = Model();
  model.unpack.bytes_per_second = 1e8;
  EXPECT_NEAR(Find(cluster, model).copying.seconds, 24000 / 1e8, kTolerance);
  model.cores = 1;
  EXPECT_NEAR(Find(cluster, model).copying.seconds, 48000 / 1e8, kTolerance);
  model.memory_bytes_per_second = 5e7;
  EXPECT_NEAR(Find(cluster, model).copying.seconds, 48000 / 5e7, kTolerance);
  model = Model();
  model.pack.bytes_per_second = 1e7;
  EXPECT_NEAR(Find(cluster, model).copying.seconds, 12000 / 1e7, kTolerance);
}

TEST(LowerBounds, RefusesDomainsThatCannotBeCounted) {
  std::mt19937_64 random(1);
  Cluster cluster = RandomCluster(random);
  cluster.destination.ranks_per_domain = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(CodeOf(FindLowerBounds(cluster, Model()).status()), "malformed");
}

CostModel RandomModel(std::mt19937_64& random) {
  const auto any = [&random](std::initializer_list<double> values) {
    return *(values.begin() + random() % values.size());
  };
  CostModel model;
  for (WireCost* wire : {&model.nic, &model.nvlink}) {
    wire->bytes_per_second = any({0, 1e8, 1e9, 5e9});
    wire->latency_ns = static_cast<Index>(any({0, 100, 5000}));
    wire->message_ns = static_cast<Index>(any({0, 50}));
    wire->sender_ns_per_byte = any({0, 0, 0.5});
    wire->receiver_ns_per_byte = any({0, 0, 0.5});
    wire->mapped = any({0, 0, 1}) > 0;
  }
  model.pack.bytes_per_second = any({0, 1e9});
  model.unpack.bytes_per_second = any({0, 1e9});
  model.direct.bytes_per_second = any({0, 1e9});
  model.chunk_bytes = static_cast<Index>(any({50, 500, 1e6}));
  model.window = static_cast<Index>(any({1, 2, 8}));
  model.cores = static_cast<Index>(any({0, 0, 1, 2}));
  model.spine_share = any({1, 1, 0.5, 0.1});
  if (model.cores > 0) model.memory_bytes_per_second = any({0, 1e9});
  return model;
}

// Whatever the schedule, whatever the machines: nothing is faster than the bound.
TEST(LowerBounds, NoScheduleIsFaster) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  int tight = 0;
  for (int i = 0; i < 1000; ++i) {
    const Cluster cluster = RandomCluster(random);
    const CostModel model = RandomModel(random);
    const LowerBounds bounds = Find(cluster, model);
    const absl::StatusOr<Simulation> any = Simulate(RandomTraffic(cluster, random), model);
    ASSERT_TRUE(any.ok()) << any.status();
    ASSERT_GE(any->transfer_seconds * (1 + 1e-9), bounds.seconds) << "case " << i << " " << bounds.leaving.of;
    tight += any->transfer_seconds < 1.1 * bounds.seconds ? 1 : 0;
  }
  EXPECT_GT(tight, 30);  // bounds that are no use would pass, too
}

TEST(LowerBounds, NoAlgorithmIsFaster) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const Cluster cluster = RandomCluster(random);
    const CostModel model = RandomModel(random);
    const LowerBounds bounds = Find(cluster, model);
    for (int algorithm = 0; algorithm < 7; ++algorithm) {
      const absl::StatusOr<std::vector<Round>> rounds =
          algorithm == 6
              ? GatherBroadcast(cluster, TensorPart::kAll)
              : Reshard(cluster, {.way = static_cast<ReshardWay>(algorithm % 3), .node_aware = algorithm / 3 == 0});
      ASSERT_TRUE(rounds.ok()) << rounds.status();
      double seconds = 0;
      for (const Round& round : *rounds) {
        const absl::StatusOr<Simulation> simulation = Simulate(round.traffic, model);
        ASSERT_TRUE(simulation.ok()) << simulation.status();
        seconds += simulation->transfer_seconds;
      }
      ASSERT_GE(seconds * (1 + 1e-9), bounds.seconds) << "case " << i << " algorithm " << algorithm;
    }
  }
}

}  // namespace
}  // namespace headrace
