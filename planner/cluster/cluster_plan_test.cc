#include "planner/cluster/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/balance.h"
#include "planner/cluster/cluster_proof.h"
#include "planner/cluster/rank_plan.h"
#include "planner/cluster/rank_proof.h"
#include "planner/cluster/testing/carry_out.h"
#include "planner/cluster/testing/random_cluster.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"

namespace headrace {
namespace {

struct AllPlans {
  std::vector<RankPlan> senders, receivers;
};

AllPlans PlansOf(const ClusterPlan& plan) {
  AllPlans out;
  for (int32_t r = 0; r < plan.cluster().source.ranks; ++r) out.senders.push_back(*SenderPlan(plan, r));
  for (int32_t r = 0; r < plan.cluster().destination.ranks; ++r) out.receivers.push_back(*ReceiverPlan(plan, r));
  return out;
}

// Planned, proven and carried out.
void ExpectRight(const Cluster& cluster, Policy policy) {
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, policy);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status proof = ProveCluster(cluster, *plan);
  ASSERT_TRUE(proof.ok()) << proof;
  const AllPlans plans = PlansOf(*plan);
  for (const RankPlan& p : plans.senders) ASSERT_TRUE(ProveSender(cluster, *plan, p).ok());
  for (const RankPlan& p : plans.receivers) {
    const absl::Status proof_of_rank = ProveReceiver(cluster, *plan, p);
    ASSERT_TRUE(proof_of_rank.ok()) << proof_of_rank;
    for (const std::vector<RankPlan>* side : {&plans.senders, &plans.receivers}) {
      for (const RankPlan& from : *side) ASSERT_TRUE(ProveHandover(from, p).ok());
    }
  }
  ASSERT_EQ(CarryOut(cluster, plans.senders, plans.receivers), "");
}

// TP-like matrices over even groups, one unit.
Cluster Even(ClusterUnit unit, int layers, int source_groups, int source_replicas, int destination_replicas,
             int per_domain) {
  Cluster cluster;
  const int source_shards = static_cast<int>(unit.manifest.source.size());
  const int destination_shards = static_cast<int>(unit.manifest.destination.size());
  unit.source_groups = EvenGroups(source_groups, source_shards, source_replicas);
  unit.destination_groups = EvenGroups(1, destination_shards, destination_replicas);
  for (int32_t l = 0; l < layers; ++l) unit.instances.push_back({l, -1, l % source_groups, 0, 0, 0});
  cluster.source = {source_groups * source_shards * source_replicas, 8, 8};
  cluster.destination = {destination_shards * destination_replicas, per_domain, per_domain};
  for (int32_t r = 0; r < cluster.source.ranks; ++r) {
    cluster.source_stage.push_back(r / (source_shards * source_replicas));
  }
  cluster.units.push_back(std::move(unit));
  return cluster;
}

TEST(ClusterPlanTest, RandomClustersAreCarriedOut) {
  CaseShare share("random clusters", 1, 10);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    if (!share.Take()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const Cluster cluster = RandomCluster(random);
    for (Policy policy : {Policy::kAuto, Policy::kHybrid}) ExpectRight(cluster, policy);
    if (HasFatalFailure()) return;
  }
}

TEST(ClusterPlanTest, LargeMatricesAreStripedAndCarriedOut) {
  RandomClusterOptions options;
  options.large = true;
  options.max_units = 2;
  options.max_ranks = 8;
  CaseShare share("random clusters", 1, 10);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    if (!share.Take()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const Cluster cluster = RandomCluster(random, options);
    for (Policy policy : {Policy::kAuto, Policy::kHybrid}) ExpectRight(cluster, policy);
    if (HasFatalFailure()) return;
  }
}

TEST(ClusterPlanTest, ReplicasSendEvenShares) {
  // 5 layers of 1 MiB from 8 replicas.
  const Cluster cluster = Even(MatrixUnit("w", 1024, 512, 1, 1), 5, 1, 8, 1, 1);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int32_t r = 0; r < 8; ++r) {
    Index sent = 0;
    const RankPlan mine = *SenderPlan(*plan, r);
    for (const Passage& p : mine.passages) {
      EXPECT_GE(p.bytes, kMinStripeBytes);
      sent += p.bytes;
    }
    EXPECT_NEAR(sent, 5 * 1024 * 1024 / 8, kMinStripeBytes) << r;
  }
  ExpectRight(cluster, Policy::kAuto);
}

TEST(ClusterPlanTest, EachDomainIsEnteredOnceByItsRanksInTurn) {
  // 32 layers to 8 replicas in 2 domains of 4.
  const Cluster cluster = Even(MatrixUnit("w", 64, 64, 1, 1), 32, 1, 1, 8, 4);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int32_t r = 0; r < 8; ++r) {
    const RankPlan mine = *ReceiverPlan(*plan, r);
    EXPECT_EQ(mine.passages.size(), 32u);
    int entered = 0;
    for (const Passage& p : mine.passages) {
      const int32_t from = p.from - 1;  // nodes: one sender, then the receivers
      if (from < 0 || from / 4 != r / 4) ++entered;
    }
    EXPECT_EQ(entered, 8) << r;
  }
}

TEST(ClusterPlanTest, HybridSendsTheWholeTensorToAllWhoHoldAnyOfIt) {
  const Cluster cluster = Even(MatrixUnit("layer.q_proj.weight", 8, 8, 2, 4), 2, 1, 1, 2, 4);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kHybrid);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int32_t r = 0; r < 8; ++r) {
    Index got = 0;
    const RankPlan mine = *ReceiverPlan(*plan, r);
    for (const Passage& p : mine.passages) got += p.bytes;
    EXPECT_EQ(got, 2 * 8 * 8 * 2);
  }
  ExpectRight(cluster, Policy::kHybrid);
}

TEST(ClusterPlanTest, RefusesRanksThatAreNot) {
  const Cluster cluster = Even(MatrixUnit("w", 4, 4, 1, 1), 1, 1, 1, 1, 1);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (int32_t r : {-1, 1}) {
    EXPECT_TRUE(HasCode(ReceiverPlan(*plan, r).status(), ErrorCode::kInvalidOption));
    EXPECT_TRUE(HasCode(SenderPlan(*plan, r).status(), ErrorCode::kInvalidOption));
  }
}

TEST(RankPlanTest, MoreItemsThanFitAreRefused) {
  // 3,000 rows, each of another source rank, in 3,000 instances.
  const Cluster cluster = Even(MatrixUnit("w", 3000, 1, 3000, 1), 3000, 1, 1, 1, 1);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::StatusOr<RankPlan> receiver = ReceiverPlan(*plan, 0);
  EXPECT_TRUE(HasCode(receiver.status(), ErrorCode::kOutOfMemory)) << receiver.status();
  EXPECT_TRUE(SenderPlan(*plan, 0).ok());
}

TEST(ClusterPlanTest, RefusesTablesThatDoNotFit) {
  const Cluster good = Even(MatrixUnit("w", 4, 4, 2, 2), 2, 1, 2, 2, 2);
  auto refuses = [&](auto&& spoil) {
    Cluster bad = good;
    spoil(bad, bad.units[0]);
    return HasCode(PlanCluster(bad, Policy::kAuto).status(), ErrorCode::kMalformed);
  };
  EXPECT_TRUE(refuses([](Cluster& c, ClusterUnit&) { c.source.ranks = 0; }));
  EXPECT_TRUE(refuses([](Cluster& c, ClusterUnit&) { c.destination.ranks_per_domain = 0; }));
  EXPECT_TRUE(refuses([](Cluster& c, ClusterUnit&) { c.source_stage.pop_back(); }));
  EXPECT_TRUE(refuses([](Cluster& c, ClusterUnit&) { c.source_stage[0] = -1; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.instances[1].source_group = 1; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.instances[1].destination_group = -1; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.instances[1].source_expert = -1; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.destination_groups[0].experts_before = {1}; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.source_groups[0].experts_before = {0, -1}; }));
  EXPECT_TRUE(refuses([](Cluster& c, ClusterUnit&) { c.engine_borders = {2, 2}; }));
  EXPECT_TRUE(refuses([](Cluster& c, ClusterUnit&) { c.engine_borders = {4}; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.source_groups[0].shards.pop_back(); }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.destination_groups[0].shards[1].clear(); }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.destination_groups[0].shards[1].back() = 4; }));
  EXPECT_TRUE(refuses([](Cluster&, ClusterUnit& u) { u.destination_groups[0].shards[1].front() = 0; }));
  EXPECT_TRUE(refuses(
      [](Cluster&, ClusterUnit& u) { std::swap(u.source_groups[0].shards[0][0], u.source_groups[0].shards[0][1]); }));
}

TEST(ClusterPlanTest, NamesTheUnitOfAnErrorInItsManifest) {
  Cluster cluster = Even(MatrixUnit("w", 4, 4, 2, 2), 2, 1, 2, 2, 2);
  cluster.units[0].manifest.source.pop_back();
  const absl::Status status = PlanCluster(cluster, Policy::kAuto).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kUncovered)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("unit \"w\""));
}

}  // namespace
}  // namespace headrace
