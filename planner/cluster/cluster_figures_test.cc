#include "planner/cluster/cluster_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cluster/cluster_traffic.h"
#include "planner/cluster/rank_plan.h"
#include "planner/cluster/testing/random_cluster.h"
#include "planner/layout/case_share.h"

namespace headrace {
namespace {

// The same figures, counted on the plans of all ranks and on the elements of the manifests.
struct Counted {
  ClusterFigures figures;
  std::vector<Index> sent, entered;
};

// Visits (tensor, element) of each element of the pieces of one shard, one per piece that wants it.
template <typename F>
void ForEachWanted(const Manifest& m, int shard, F&& visit) {
  for (const Buffer& b : m.destination) {
    if (b.rank != shard) continue;
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      const auto tensor =
          std::find_if(m.tensors.begin(), m.tensors.end(), [&](const TensorSpec& t) { return t.name == p.tensor; });
      const Extents& counted = p.view ? *p.view : tensor->shape;
      Index count = 1;
      for (Index e : p.shape) count *= e;
      for (Index n = 0; n < count; ++n) {
        Index rest = n, element = 0, weight = 1;
        for (size_t a = p.shape.size(); a-- > 0;) {
          element += (p.tensor_offset[a] + rest % p.shape[a]) * weight;
          rest /= p.shape[a];
          weight *= counted[a];
        }
        visit(static_cast<int>(tensor - m.tensors.begin()), element);
      }
    }
  }
}

Counted Count(const ClusterPlan& plan) {
  const Cluster& cluster = plan.cluster();
  Counted out;
  ClusterFigures& f = out.figures;
  Index needed_bits = 0, domain_bits = 0;
  const int32_t per_domain = cluster.destination.ranks_per_domain;
  for (const ClusterUnit& unit : cluster.units) {
    f.tensors += static_cast<Index>(unit.instances.size() * unit.manifest.tensors.size());
    for (const UnitInstance& i : unit.instances) {
      std::set<std::tuple<int32_t, int, Index>> distinct;  // domain, tensor, element
      const RankGroup& group = unit.destination_groups[i.destination_group];
      for (size_t s = 0; s < group.shards.size(); ++s) {
        ForEachWanted(unit.manifest, static_cast<int>(s), [&](int tensor, Index element) {
          const int bits = DtypeBits(unit.manifest.tensors[tensor].dtype);
          for (int32_t rank : group.shards[s]) {
            needed_bits += bits;
            if (distinct.insert({rank / per_domain, tensor, element}).second) domain_bits += bits;
          }
        });
      }
    }
  }
  f.needed_bytes = needed_bits / 8;
  f.domain_needed_bytes = domain_bits / 8;
  for (int32_t r = 0; r < cluster.source.ranks; ++r) {
    const RankPlan mine = *SenderPlan(plan, r);
    Index sent = 0;
    for (const Passage& p : mine.passages) sent += p.bytes;
    f.operations_max = std::max(f.operations_max, static_cast<Index>(mine.passages.size()));
    out.sent.push_back(sent);
    f.busiest_sender_bytes = std::max(f.busiest_sender_bytes, sent);
  }
  for (int32_t r = 0; r < cluster.destination.ranks; ++r) {
    const RankPlan mine = *ReceiverPlan(plan, r);
    Index entered = 0, operations = 0;
    for (const Passage& p : mine.passages) {
      operations += 1 + (p.next_domain >= 0) + (p.next_inside >= 0);
      f.wire_bytes += p.bytes;
      const int32_t from = p.from - cluster.source.ranks;
      if (from >= 0 && from / per_domain == r / per_domain) continue;
      entered += p.bytes;
      const int32_t rail =
          from < 0 ? p.from % cluster.source.ranks_per_host : from % cluster.destination.ranks_per_host;
      if (rail != r % cluster.destination.ranks_per_host) f.cross_rail_bytes += p.bytes;
    }
    out.entered.push_back(entered);
    f.operations_max = std::max(f.operations_max, operations);
    f.domain_wire_bytes += entered;
    f.copies += static_cast<Index>(mine.copies.size());
    f.busiest_receiver_copies = std::max(f.busiest_receiver_copies, static_cast<Index>(mine.copies.size()));
  }
  return out;
}

// What each node sends and gets, on which leg, by the plans of all ranks.
std::map<std::pair<int32_t, int32_t>, Index> BytesOnLegs(const ClusterPlan& plan) {
  std::map<std::pair<int32_t, int32_t>, Index> out;
  for (int32_t r = 0; r < plan.cluster().destination.ranks; ++r) {
    const RankPlan mine = *ReceiverPlan(plan, r);
    for (const Passage& p : mine.passages) out[{p.from, mine.node}] += p.bytes;
  }
  return out;
}

TEST(ClusterFiguresTest, AreWhatTheRanksPlansAddUpTo) {
  CaseShare share("random clusters", 1, 10);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    if (!share.Take()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    RandomClusterOptions options;
    options.large = seed % 64 == 0;
    options.max_ranks = options.large ? 6 : 16;
    const Cluster cluster = RandomCluster(random, options);
    for (Policy policy : {Policy::kAuto, Policy::kHybrid}) {
      const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, policy);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const ClusterFigures have = MeasureCluster(*plan);
      const Counted want = Count(*plan);
      EXPECT_EQ(have.tensors, want.figures.tensors);
      EXPECT_EQ(have.copies, want.figures.copies);
      EXPECT_EQ(have.needed_bytes, want.figures.needed_bytes);
      EXPECT_EQ(have.wire_bytes, want.figures.wire_bytes);
      EXPECT_EQ(have.domain_wire_bytes, want.figures.domain_wire_bytes);
      EXPECT_EQ(have.domain_needed_bytes, want.figures.domain_needed_bytes);
      EXPECT_EQ(have.operations_max, want.figures.operations_max);
      EXPECT_EQ(have.cross_rail_bytes, want.figures.cross_rail_bytes);
      EXPECT_EQ(have.busiest_sender_bytes, want.figures.busiest_sender_bytes);
      EXPECT_EQ(have.busiest_receiver_copies, want.figures.busiest_receiver_copies);
      if (policy == Policy::kAuto) {
        EXPECT_EQ(have.domain_wire_bytes, have.domain_needed_bytes);
      }
      EXPECT_GE(have.domain_wire_bytes, have.domain_needed_bytes);
      EXPECT_GE(have.sender_max_over_mean, 1.0);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(ClusterFiguresTest, TrafficIsWhatTheRanksPlansAddUpTo) {
  CaseShare share("random clusters", 1, 10);
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    if (!share.Take()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    RandomClusterOptions options;
    options.large = seed % 10 == 0;
    const Cluster cluster = RandomCluster(random, options);
    const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, seed % 2 == 0 ? Policy::kAuto : Policy::kHybrid);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::map<std::pair<int32_t, int32_t>, Index> want = BytesOnLegs(*plan);
    for (Index piece_bytes : {Index{1}, Index{1000}, Index{0}}) {
      const Traffic traffic = piece_bytes > 0 ? PlanTraffic(*plan, piece_bytes) : PlanTraffic(*plan);
      std::map<std::pair<int32_t, int32_t>, Index> have;
      for (const Flow& flow : traffic.flows) {
        EXPECT_GT(flow.copies, 0);
        for (size_t h = 0; h < flow.hops.size(); ++h) {
          const Hop& hop = flow.hops[h];
          have[{hop.from, hop.to}] += flow.bytes;
          EXPECT_LT(hop.after, static_cast<int32_t>(h));
          EXPECT_EQ(hop.after < 0, hop.from < traffic.source_ranks);
          if (hop.after >= 0) {
            EXPECT_EQ(flow.hops[hop.after].to, hop.from);
          }
        }
      }
      EXPECT_EQ(have, want);
      ASSERT_EQ(traffic.host.size(), static_cast<size_t>(cluster.source.ranks + cluster.destination.ranks));
      for (int32_t a = 0; a < cluster.destination.ranks; ++a) {
        const int32_t node = cluster.source.ranks + a, size = cluster.destination.ranks_per_domain;
        EXPECT_EQ(traffic.domain[node] == traffic.domain[cluster.source.ranks], a / size == 0);
        EXPECT_NE(traffic.host[node], traffic.host[0]);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

Cluster Replicas(int replicas) {
  Cluster cluster;
  cluster.units.push_back(MatrixUnit("w.{layer}", 512, 512, 1, 1));
  cluster.units[0].source_groups = EvenGroups(1, 1, replicas);
  cluster.units[0].destination_groups = EvenGroups(1, 1, 8);
  for (int32_t l = 0; l < 6; ++l) cluster.units[0].instances.push_back({l, -1, 0, 0, 0, 0});
  cluster.source = {replicas, 8, 8};
  cluster.destination = {8, 4, 4};
  cluster.source_stage.assign(replicas, 0);
  return cluster;
}

// Eight senders that hold the same, eight receivers of one host: of a matrix for each, and of one for all of them, each
// byte has a way on which it stays on its rail.
TEST(ClusterFiguresTest, BytesThatManyHoldStayOnTheirRail) {
  Cluster cluster = Replicas(8);
  cluster.destination = {8, 8, 8};
  cluster.units.push_back(MatrixUnit("v.{layer}", 512, 4096, 1, 8));
  cluster.units[1].source_groups = EvenGroups(1, 1, 8);
  cluster.units[1].destination_groups = EvenGroups(1, 8, 1);
  for (int32_t l = 0; l < 6; ++l) cluster.units[1].instances.push_back({l, -1, 0, 0, 0, 0});
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const ClusterFigures figures = MeasureCluster(*plan);
  EXPECT_LE(figures.cross_rail_bytes, figures.domain_wire_bytes / 50);
  EXPECT_LE(figures.sender_max_over_mean, 1.02);
  EXPECT_LE(figures.receiver_max_over_mean, 1.02);
}

TEST(ClusterFiguresTest, NamesTheWorstStage) {
  Cluster cluster = Replicas(4);
  cluster.units[0].source_groups[0].shards[0] = {0, 1};  // ranks 2 and 3 hold the other unit, of one layer
  cluster.units.push_back(MatrixUnit("v", 512, 512, 1, 1));
  cluster.units[1].source_groups = {{{{2, 3}}}};
  cluster.units[1].destination_groups = EvenGroups(1, 1, 8);
  cluster.units[1].instances = {{-1, -1, 0, 0, 0, 0}};
  const absl::StatusOr<ClusterPlan> one = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_NEAR(MeasureCluster(*one).worst_stage_max_over_mean, 3.0 / 1.75, 0.01);
  cluster.source_stage = {0, 0, 1, 1};
  const absl::StatusOr<ClusterPlan> two = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_NEAR(MeasureCluster(*two).worst_stage_max_over_mean, 1.0, 0.01);
  EXPECT_NEAR(MeasureCluster(*two).sender_max_over_mean, 3.0 / 1.75, 0.01);
}

TEST(ClusterFiguresTest, TheDigestSealsAllOfThePlan) {
  const Cluster good = Replicas(3);
  std::set<std::string> digests;
  auto digest = [&](auto&& change, Policy policy = Policy::kAuto) {
    Cluster cluster = good;
    change(cluster, cluster.units[0]);
    const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, policy);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return ClusterDigest(*plan);
  };
  digests.insert(digest([](Cluster&, ClusterUnit&) {}));
  EXPECT_EQ(digests.size(), 1u);
  EXPECT_TRUE(digests.contains(digest([](Cluster&, ClusterUnit&) {})));
  EXPECT_EQ(digests.begin()->size(), 32u);
  auto differs = [&](const std::string& what, auto&& change, Policy policy = Policy::kAuto) {
    EXPECT_TRUE(digests.insert(digest(change, policy)).second) << what;
  };
  differs(
      "policy", [](Cluster&, ClusterUnit&) {}, Policy::kHybrid);
  differs("layout", [](Cluster& c, ClusterUnit&) { c.layout = "other"; });
  differs("domains", [](Cluster& c, ClusterUnit&) { c.destination.ranks_per_domain = 2; });
  differs("hosts", [](Cluster& c, ClusterUnit&) { c.destination.ranks_per_host = 2; });
  differs("candidates", [](Cluster&, ClusterUnit& u) { u.source_groups[0].shards[0] = {0, 2}; });
  differs("consumers", [](Cluster&, ClusterUnit& u) { u.destination_groups[0].shards[0].pop_back(); });
  differs("instances", [](Cluster&, ClusterUnit& u) { u.instances.pop_back(); });
  differs("layers", [](Cluster&, ClusterUnit& u) { u.instances[1].layer = 9; });
  differs("places of experts", [](Cluster&, ClusterUnit& u) { u.instances[1].destination_expert = 9; });
  differs("experts before others",
          [](Cluster&, ClusterUnit& u) { u.destination_groups[0].experts_before.assign(1, 7); });
  differs("engines", [](Cluster& c, ClusterUnit&) { c.engine_borders = {1}; });
  differs("stacking", [](Cluster&, ClusterUnit& u) { u.destination_stacked = true; });
  differs("buffers", [](Cluster&, ClusterUnit& u) { u.manifest.destination[0].name = "v"; });
  differs("strides", [](Cluster&, ClusterUnit& u) { u.manifest.destination[0].strides[0] = 1000; });
}

}  // namespace
}  // namespace headrace
