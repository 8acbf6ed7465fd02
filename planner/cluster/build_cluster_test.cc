#include "planner/cluster/build_cluster.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cluster/expand.h"
#include "planner/cluster/layout_json.h"
#include "planner/models/records.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Shards = std::vector<std::vector<int32_t>>;

constexpr char kMoe[] = R"({"family": "qwen3_moe", "arch": {"hidden": 8, "layers": 3, "heads": 4, "kv_heads": 2,
    "head_dim": 2, "experts": 5, "moe_inter": 4, "vocab": 33, "tied": false}})";
constexpr char kTied[] = R"({"family": "llama", "arch": {"hidden": 12, "layers": 4, "heads": 4, "kv_heads": 2,
    "head_dim": 3, "inter": 20, "vocab": 37, "tied": true}})";
constexpr char kStacked[] = R"({"family": "gpt_oss", "arch": {"hidden": 8, "layers": 2, "heads": 4, "kv_heads": 2,
    "head_dim": 2, "experts": 5, "moe_inter": 4, "vocab": 35, "tied": false}})";

absl::StatusOr<Cluster> Build(const char* record, const std::string& train, const std::string& gen) {
  HR_ASSIGN_OR_RETURN(const Model model, ParseModelRecord("small", record));
  HR_ASSIGN_OR_RETURN(
      const JobLayout layout,
      ParseLayout(R"({"id": "job", "model": "small", "gpu": "H100", "train": )" + train + R"(, "gen": )" + gen + "}"));
  return BuildCluster(model, layout);
}

const ClusterUnit& UnitOf(const Cluster& cluster, const std::string& name) {
  return *std::find_if(cluster.units.begin(), cluster.units.end(),
                       [&](const ClusterUnit& u) { return u.unit.name == name; });
}

TEST(BuildCluster, ReplicasAreRanksOfOneShard) {
  const auto cluster = Build(kTied, R"({"gpus": 8, "tp": 2, "pp": 2})", R"({"gpus": 4, "tp": 2})");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->model, "small");
  EXPECT_EQ(cluster->layout, "job");
  EXPECT_THAT(cluster->source_stage, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  const ClusterUnit& mlp = UnitOf(*cluster, "mlp");
  ASSERT_EQ(mlp.source_groups.size(), 2u);
  EXPECT_EQ(mlp.source_groups[1].shards, (Shards{{4, 6}, {5, 7}}));
  EXPECT_EQ(mlp.destination_groups[0].shards, (Shards{{0, 2}, {1, 3}}));
  ASSERT_EQ(mlp.instances.size(), 4u);
  EXPECT_EQ(mlp.instances[1].source_group, 0);
  EXPECT_EQ(mlp.instances[2].source_group, 1);
  EXPECT_EQ(mlp.instances[2].layer, 2);
  // The embedding is the head, too: on both ends.
  const ClusterUnit& embedding = UnitOf(*cluster, "embedding");
  ASSERT_EQ(embedding.source_groups.size(), 1u);
  EXPECT_EQ(embedding.source_groups[0].shards, (Shards{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(embedding.instances.size(), 1u);
  EXPECT_EQ(embedding.instances[0].layer, -1);
}

TEST(BuildCluster, ExpertsAreDealtOutToGroups) {
  const auto cluster = Build(kMoe, R"({"gpus": 10, "tp": 2, "ep": 5, "etp": 2})", R"({"gpus": 8, "tp": 2, "ep": 4})");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ClusterUnit& expert = UnitOf(*cluster, "expert");
  EXPECT_FALSE(expert.source_stacked);
  EXPECT_TRUE(expert.destination_stacked);
  EXPECT_EQ(expert.source_groups.size(), 5u);
  EXPECT_EQ(expert.source_groups[3].shards, (Shards{{6}, {7}}));
  // 5 experts on 4 ranks, twice: 2 1 1 1.
  EXPECT_EQ(expert.destination_groups[1].shards, (Shards{{1, 5}}));
  ASSERT_EQ(expert.instances.size(), 15u);
  std::vector<int32_t> groups, places;
  for (size_t e = 5; e < 10; ++e) {
    EXPECT_EQ(expert.instances[e].layer, 1);
    groups.push_back(expert.instances[e].destination_group);
    places.push_back(expert.instances[e].destination_expert);
  }
  EXPECT_THAT(groups, ElementsAre(0, 0, 1, 2, 3));
  EXPECT_THAT(places, ElementsAre(0, 1, 0, 0, 0));
  // Megatron deals out equal numbers only.
  const auto uneven = Build(kMoe, R"({"gpus": 4, "tp": 1, "ep": 4})", R"({"gpus": 1, "tp": 1})");
  EXPECT_EQ(CodeOf(uneven.status()), "shape_mismatch");
  EXPECT_THAT(uneven.status().message(), HasSubstr("unit \"expert\", trainer: 5 experts do not divide over EP 4"));
}

TEST(BuildCluster, FsdpCutsTheAxisOfStackedExperts) {
  const auto cluster = Build(kStacked, R"({"gpus": 8, "fsdp": 4})", R"({"gpus": 1, "tp": 1})");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ClusterUnit& expert = UnitOf(*cluster, "expert");
  EXPECT_TRUE(expert.source_stacked);
  ASSERT_EQ(expert.source_groups.size(), 4u);
  EXPECT_EQ(expert.source_groups[2].shards, (Shards{{2, 6}}));
  std::vector<int32_t> groups;
  for (size_t e = 0; e < 5; ++e) groups.push_back(expert.instances[e].source_group);
  EXPECT_THAT(groups, ElementsAre(0, 0, 1, 1, 2));  // chunks of two
  EXPECT_EQ(UnitOf(*cluster, "attention").source_groups[0].shards, (Shards{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(BuildCluster, EnginesOfDifferentLayoutsShareGroups) {
  // The example of cluster.h: experts 0 to 2 and 3 to 4 of the second layout, all in one buffer of the first.
  const auto cluster =
      Build(kMoe, R"({"gpus": 1, "tp": 1})", R"([{"gpus": 2, "tp": 2}, {"gpus": 2, "tp": 1, "ep": 2}])");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_THAT(cluster->engine_borders, ElementsAre(2));
  const ClusterUnit& expert = UnitOf(*cluster, "expert");
  EXPECT_TRUE(expert.destination_stacked);
  ASSERT_EQ(expert.destination_groups.size(), 2u);
  EXPECT_EQ(expert.destination_groups[0].shards, (Shards{{0}, {1}, {2}}));
  EXPECT_THAT(expert.destination_groups[0].experts_before, IsEmpty());
  EXPECT_EQ(expert.destination_groups[1].shards, (Shards{{0}, {1}, {3}}));
  EXPECT_THAT(expert.destination_groups[1].experts_before, ElementsAre(3, 3, 0));
  EXPECT_EQ(expert.instances[9].layer, 1);
  EXPECT_EQ(expert.instances[9].expert, 4);
  EXPECT_EQ(expert.instances[9].destination_group, 1);
  EXPECT_EQ(expert.instances[9].destination_expert, 1);
  EXPECT_EQ(DestinationPlace(expert, expert.instances[9], 0), 4);
  EXPECT_EQ(DestinationPlace(expert, expert.instances[9], 2), 1);
  // Replicas of the second layout's dense shard beside the halves of the first.
  EXPECT_EQ(UnitOf(*cluster, "attention").destination_groups[0].shards, (Shards{{0}, {1}, {2, 3}}));
  const Manifest manifest = ExpandManifest(*cluster);
  std::vector<std::string> engines;
  for (const Placement& placed : manifest.topology.destination) engines.push_back(placed.engine);
  EXPECT_THAT(engines, ElementsAre("engine0", "engine0", "engine1", "engine1"));
}

TEST(BuildCluster, StagesOfDifferentEnginesMakeRunsOfLayers) {
  // Layers 0 1 | 2 3 and, of the second layout, 0 | 1 2 | 3 (vLLM's extra layer is in the middle).
  const auto cluster =
      Build(kTied, R"({"gpus": 1, "tp": 1})", R"([{"gpus": 2, "tp": 1, "pp": 2}, {"gpus": 3, "tp": 1, "pp": 3}])");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ClusterUnit& mlp = UnitOf(*cluster, "mlp");
  std::vector<Shards> groups;
  for (const RankGroup& group : mlp.destination_groups) groups.push_back(group.shards);
  EXPECT_THAT(groups, ElementsAre(Shards{{0}, {2}}, Shards{{0}, {3}}, Shards{{1}, {3}}, Shards{{1}, {4}}));
  std::vector<int32_t> of_layers;
  for (const UnitInstance& instance : mlp.instances) of_layers.push_back(instance.destination_group);
  EXPECT_THAT(of_layers, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(UnitOf(*cluster, "embedding").destination_groups[0].shards, (Shards{{0, 1}, {2, 4}}));
}

TEST(BuildCluster, ErrorsSayWhere) {
  const auto cluster = Build(kMoe, R"({"gpus": 1, "tp": 1})", R"({"gpus": 3, "tp": 3})");
  EXPECT_EQ(CodeOf(cluster.status()), "shape_mismatch");
  EXPECT_THAT(cluster.status().message(), HasSubstr("model \"small\", layout \"job\": unit \"embedding\""));
  Model model = ParseModelRecord("small", kMoe).value();
  JobLayout layout = LayoutNamed("pr2413-4b-dp8-dp8").value();
  layout.source.ranks = 9;
  EXPECT_EQ(CodeOf(BuildCluster(model, layout).status()), "shape_mismatch");
  layout.source.ranks = 8;
  const std::vector<EngineLayout> engines = std::move(layout.engines);
  layout.engines.clear();
  EXPECT_EQ(CodeOf(BuildCluster(model, layout).status()), "invalid_option");
  layout.engines = engines;
  const auto second = Build(kMoe, R"({"gpus": 1, "tp": 1})", R"([{"gpus": 4, "tp": 4}, {"gpus": 3, "tp": 3}])");
  EXPECT_EQ(CodeOf(second.status()), "shape_mismatch");
  EXPECT_THAT(second.status().message(), HasSubstr("engine layout 1: unit \"embedding\""));
  model.units.back().layers.push_back(3);
  EXPECT_EQ(CodeOf(BuildCluster(model, layout).status()), "malformed");
}

TEST(BuildCluster, RefusesMoreInstancesThanCanBeListed) {
  Model model = ParseModelRecord("small", kMoe).value();
  const JobLayout layout = LayoutNamed("pr2413-4b-dp8-dp8").value();
  for (ModelUnit& unit : model.units) unit.experts = unit.experts > 0 ? 1 << 20 : 0;
  const absl::Status status = BuildCluster(model, layout).status();
  EXPECT_EQ(CodeOf(status), "out_of_bounds");
  EXPECT_THAT(status.message(), HasSubstr("1048576 experts"));
}

}  // namespace
}  // namespace headrace
