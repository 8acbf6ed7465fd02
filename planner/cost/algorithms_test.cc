#include "planner/cost/algorithms.h"

#include <iostream>
#include <map>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/testing/clusters.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

std::vector<std::vector<int32_t>> HopsOf(const Flow& flow) {
  std::vector<std::vector<int32_t>> hops;
  for (const Hop& hop : flow.hops) hops.push_back({hop.from, hop.to, hop.after});
  return hops;
}

// Four source replicas of the whole tensor (24,000 bytes); two destination shards of four replicas, which are ranks
// 0, 2, 4, 6 and 1, 3, 5, 7: two in each of two domains.
Cluster Replicas() {
  Cluster cluster;
  cluster.source = {.ranks = 4};
  cluster.destination = {.ranks = 8, .ranks_per_host = 4, .ranks_per_domain = 4};
  cluster.source_stage = {0, 0, 0, 0};
  cluster.units = {UnitOf("up_proj", 12, 1000, {1, -1}, {2, 0})};
  cluster.units[0].source_groups = {{{{0, 1, 2, 3}}}};
  cluster.units[0].destination_groups = {{{{0, 2, 4, 6}, {1, 3, 5, 7}}}};
  cluster.units[0].instances = {{0, -1, 0, 0}};
  return cluster;
}

std::vector<Round> Rounds(absl::StatusOr<std::vector<Round>> rounds) {
  EXPECT_TRUE(rounds.ok()) << rounds.status();
  return *std::move(rounds);
}

std::set<std::vector<std::vector<int32_t>>> TreesOf(const Round& round) {
  std::set<std::vector<std::vector<int32_t>>> trees;
  for (const Flow& flow : round.traffic.flows) trees.insert(HopsOf(flow));
  return trees;
}

// Destination rank r is node 4 + r.
TEST(M2n, UniformDirectIsOneSourceForEachReplica) {
  const std::vector<Round> rounds = Rounds(Reshard(Replicas(), {.way = ReshardWay::kDirect}));
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].operations, 1);
  EXPECT_THAT(TreesOf(rounds[0]),
              UnorderedElementsAre(ElementsAre(ElementsAre(0, 4, -1)), ElementsAre(ElementsAre(1, 6, -1)),
                                   ElementsAre(ElementsAre(2, 8, -1)), ElementsAre(ElementsAre(3, 10, -1)),
                                   ElementsAre(ElementsAre(0, 5, -1)), ElementsAre(ElementsAre(1, 7, -1)),
                                   ElementsAre(ElementsAre(2, 9, -1)), ElementsAre(ElementsAre(3, 11, -1))));
  for (const Flow& flow : rounds[0].traffic.flows) EXPECT_EQ(flow.bytes, 12000);
}

// Two domains: sources 0 and 1 serve one each, 2 and 3 are idle. The leader puts to the other replica of its domain.
TEST(M2n, NodeAwareRingIsOneSourceForEachDomain) {
  const std::vector<Round> rounds = Rounds(Reshard(Replicas(), {.node_aware = true}));
  EXPECT_THAT(TreesOf(rounds[0]), UnorderedElementsAre(ElementsAre(ElementsAre(0, 4, -1), ElementsAre(4, 6, 0)),
                                                       ElementsAre(ElementsAre(1, 8, -1), ElementsAre(8, 10, 0)),
                                                       ElementsAre(ElementsAre(0, 5, -1), ElementsAre(5, 7, 0)),
                                                       ElementsAre(ElementsAre(1, 9, -1), ElementsAre(9, 11, 0))));
}

// One source for both domains: a ring from leader to leader. Its two shards have leaders of their own.
TEST(M2n, RingGoesFromDomainToDomain) {
  Cluster cluster = Replicas();
  cluster.units = {UnitOf("up_proj", 12, 1000, {2, 0}, {1, -1})};
  cluster.units[0].source_groups = {{{{0}, {1}}}};
  cluster.units[0].destination_groups = {{{{0, 1, 4, 5}}}};
  cluster.units[0].instances = {{0, -1, 0, 0}};
  for (bool node_aware : {false, true}) {
    const std::vector<Round> rounds = Rounds(Reshard(cluster, {.node_aware = node_aware}));
    EXPECT_THAT(
        TreesOf(rounds[0]),
        UnorderedElementsAre(
            ElementsAre(ElementsAre(0, 4, -1), ElementsAre(4, 5, 0), ElementsAre(4, 8, 0), ElementsAre(8, 9, 2)),
            ElementsAre(ElementsAre(1, 5, -1), ElementsAre(5, 4, 0), ElementsAre(5, 9, 0), ElementsAre(9, 8, 2))));
  }
}

TEST(M2n, MoreSourcesThanDestinations) {
  Cluster cluster = Replicas();
  cluster.destination = {.ranks = 2};
  cluster.units[0].source_groups = {{{{0, 1, 2, 3}}}};
  cluster.units[0].destination_groups = {{{{0}, {1}}}};
  const std::vector<Round> rounds = Rounds(Reshard(cluster, {}));
  EXPECT_THAT(TreesOf(rounds[0]),
              UnorderedElementsAre(ElementsAre(ElementsAre(0, 4, -1)), ElementsAre(ElementsAre(0, 5, -1))));
}

// Two source replicas, one destination shard of three: each gets a third and passes it round.
TEST(PythonFallback, StripesAreGathered) {
  Cluster cluster;
  cluster.source = {.ranks = 2};
  cluster.destination = {.ranks = 3};
  cluster.source_stage = {0, 0};
  cluster.units = {UnitOf("up_proj", 12, 1000, {1, -1}, {1, -1})};
  cluster.units[0].source_groups = {{{{0, 1}}}};
  cluster.units[0].destination_groups = {{{{0, 1, 2}}}};
  cluster.units[0].instances = {{0, -1, 0, 0}};
  const std::vector<Round> rounds = Rounds(Reshard(cluster, {.way = ReshardWay::kStriped}));
  EXPECT_THAT(TreesOf(rounds[0]),
              UnorderedElementsAre(ElementsAre(ElementsAre(0, 2, -1), ElementsAre(2, 3, 0), ElementsAre(3, 4, 1)),
                                   ElementsAre(ElementsAre(1, 3, -1), ElementsAre(3, 4, 0), ElementsAre(4, 2, 1)),
                                   ElementsAre(ElementsAre(0, 4, -1), ElementsAre(4, 2, 0), ElementsAre(2, 3, 1))));
  for (const Flow& flow : rounds[0].traffic.flows) EXPECT_EQ(flow.bytes, 8000);
}

TEST(M2n, StagesInTurnAndExpertsOfALayerAtOnce) {
  Cluster cluster;
  cluster.source = {.ranks = 6};
  cluster.destination = {.ranks = 1};
  cluster.source_stage = {0, 0, 1, 1, 2, 2};
  cluster.units = {UnitOf("experts.{expert}.up_proj", 12, 10, {1, -1}, {1, -1})};
  ClusterUnit& unit = cluster.units[0];
  for (int32_t rank = 0; rank < 6; ++rank) unit.source_groups.push_back({{{rank}}});
  unit.destination_groups = {{{{0}}}};
  for (int32_t layer = 0; layer < 9; ++layer) {
    for (int32_t expert = 0; expert < 8; ++expert)
      unit.instances.push_back({layer, expert, layer / 3 * 2 + expert / 4});
  }
  const std::vector<Round> rounds = Rounds(Reshard(cluster, {.streams = 2}));
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].operations, 3);  // layers of a stage
  EXPECT_EQ(rounds[0].rank_tensors, 3 * 4);
  EXPECT_EQ(rounds[0].traffic.flows.size(), 4u);
  EXPECT_EQ(rounds[0].traffic.flows[0].bytes, 3 * 4 * 240);
  ASSERT_EQ(rounds[1].traffic.flows.size(), 2u);
  EXPECT_EQ(rounds[1].traffic.flows[0].hops[0].from, 4);
}

TEST(M2n, BulkAndMiscAreTheTwoPathsOfNemoRl) {
  Cluster cluster = Replicas();
  for (const char* name : {"mlp.shared_experts.up_proj.weight", "self_attn.o_proj.weight"}) {
    ClusterUnit unit = UnitOf(name, 12, 10, {1, -1}, {2, 0});
    unit.source_groups = cluster.units[0].source_groups;
    unit.destination_groups = cluster.units[0].destination_groups;
    unit.instances = {{0}, {1}};
    cluster.units.push_back(unit);
  }
  EXPECT_EQ(PartBytes(cluster, TensorPart::kBulk).value(), 24000);
  EXPECT_EQ(PartBytes(cluster, TensorPart::kMisc).value(), 2 * 2 * 240);
  EXPECT_EQ(PartBytes(cluster, TensorPart::kAll).value(), 24000 + 2 * 2 * 240);
  EXPECT_EQ(Rounds(GatherBroadcast(cluster, TensorPart::kMisc))[0].operations, 4);
  EXPECT_EQ(Rounds(Reshard(cluster, {.part = TensorPart::kBulk}))[0].operations, 1);
}

// Each destination rank receives exactly what it wants, by every algorithm but the broadcast, which brings everything
// to every rank.
TEST(Algorithms, ConserveBytes) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const Cluster cluster = RandomCluster(random);
    std::map<int32_t, Index> wanted;
    Index model_bytes = 0;
    for (const Flow& flow : RandomTraffic(cluster, random).flows) {
      for (const Hop& hop : flow.hops) wanted[hop.to] += flow.bytes;
      model_bytes += flow.bytes;
    }
    for (int algorithm = 0; algorithm < 6; ++algorithm) {
      std::map<int32_t, Index> received;
      for (const Round& round : Rounds(
               Reshard(cluster, {.way = static_cast<ReshardWay>(algorithm % 3), .node_aware = algorithm / 3 == 0}))) {
        for (const Flow& flow : round.traffic.flows) {
          for (const Hop& hop : flow.hops) received[hop.to] += flow.bytes;
        }
      }
      ASSERT_EQ(received, wanted) << "case " << i << " algorithm " << algorithm;
    }
    const std::vector<Round> rounds = Rounds(GatherBroadcast(cluster, TensorPart::kAll));
    std::map<int32_t, Index> received;
    for (const Flow& flow : rounds[1].traffic.flows) {
      for (const Hop& hop : flow.hops) received[hop.to] += flow.bytes;
    }
    for (int32_t rank = 0; rank < cluster.destination.ranks; ++rank) {
      ASSERT_EQ(received[cluster.source.ranks + rank], model_bytes) << "case " << i;
    }
    Index gathered = 0;
    for (const Flow& flow : rounds[0].traffic.flows) {
      std::set<int32_t> to;
      for (const Hop& hop : flow.hops) to.insert(hop.to);
      ASSERT_EQ(to.size(), flow.hops.size());
      ASSERT_EQ(static_cast<int32_t>(to.size()) + 1, cluster.source.ranks);
      gathered += flow.bytes;
    }
    ASSERT_EQ(gathered, cluster.source.ranks > 1 ? model_bytes : 0);
  }
}

}  // namespace
}  // namespace headrace
