// The published layouts with their own models: what their plans must reach.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "planner/cluster/build_cluster.h"
#include "planner/cluster/cluster_figures.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cluster/cluster_proof.h"
#include "planner/cluster/layout_json.h"
#include "planner/cluster/rank_plan.h"
#include "planner/cluster/rank_proof.h"
#include "planner/layout/case_share.h"
#include "planner/models/records.h"

namespace headrace {
namespace {

Cluster ClusterOf(const JobLayout& layout) {
  const absl::StatusOr<Model> model = ModelNamed(layout.model);
  EXPECT_TRUE(model.ok()) << model.status();
  absl::StatusOr<Cluster> cluster = BuildCluster(*model, layout);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

TEST(ClusterLayoutsTest, AllPublishedLayoutsArePlannedEvenlyAndProven) {
  CaseShare share("published layouts", 1, 20);
  int planned = 0;
  std::set<std::tuple<std::string, Index, Index, int32_t>> proven;
  for (const std::string& id : LayoutIds()) {
    SCOPED_TRACE(id);
    const absl::StatusOr<JobLayout> layout = LayoutNamed(id);
    if (!layout.ok() || !ModelNamed(layout->model).ok()) continue;  // sizes or the model were not published
    if (!share.Take()) continue;
    ++planned;
    const Cluster cluster = ClusterOf(*layout);
    for (Policy policy : {Policy::kAuto, Policy::kHybrid}) {
      const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, policy);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const ClusterFigures f = MeasureCluster(*plan);
      EXPECT_LE(f.worst_stage_max_over_mean, 1.02);
      EXPECT_LE(f.receiver_max_over_mean, 1.02);
      if (policy == Policy::kAuto) {
        EXPECT_EQ(f.domain_wire_bytes, f.domain_needed_bytes);
        EXPECT_EQ(f.wire_bytes, f.needed_bytes);
      }
      // Many rows are of one layout.
      if (!proven.emplace(layout->model, f.copies, f.wire_bytes, cluster.source.ranks).second) continue;
      const absl::Status proof = ProveCluster(cluster, *plan);
      EXPECT_TRUE(proof.ok()) << proof;
      const RankPlan last = *ReceiverPlan(*plan, cluster.destination.ranks - 1);
      const absl::Status receiver = ProveReceiver(cluster, *plan, last);
      EXPECT_TRUE(receiver.ok()) << receiver;
      const absl::Status sender = ProveSender(cluster, *plan, *SenderPlan(*plan, 0));
      EXPECT_TRUE(sender.ok()) << sender;
    }
  }
  EXPECT_GT(planned, 0);
}

TEST(ClusterLayoutsTest, SizesOfTheKnownPlans) {
  const Cluster deepseek = ClusterOf(*LayoutNamed("doc-h100-dsv3"));
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(deepseek, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(MeasureCluster(*plan).tensors, 45395);
  const Cluster llama = ClusterOf(*ParseLayout(R"({"id": "llama", "model": "llama3.1-70b", "gpu": "H100",
      "train": {"gpus": 32, "tp": 1, "fsdp": 32}, "gen": {"gpus": 8, "tp": 8}})"));
  const absl::StatusOr<ClusterPlan> small = PlanCluster(llama, Policy::kAuto);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(ReceiverPlan(*small, 3)->copies.size(), 11880u);
  const Cluster kimi = ClusterOf(*ParseLayout(R"({"id": "kimi", "model": "kimi-k3-bf16", "gpu": "H100",
      "train": {"gpus": 4096, "tp": 8, "pp": 8, "ep": 32}, "gen": {"gpus": 4096, "tp": 8}})"));
  const absl::StatusOr<ClusterPlan> large = PlanCluster(kimi, Policy::kAuto);
  ASSERT_TRUE(large.ok()) << large.status();
  const ClusterFigures f = MeasureCluster(*large);
  EXPECT_EQ(f.tensors, 249756);
  EXPECT_EQ(f.domain_wire_bytes, f.domain_needed_bytes);
  EXPECT_LE(f.worst_stage_max_over_mean, 1.02);
}

}  // namespace
}  // namespace headrace
