// Every published layout, and what becomes of it: a cluster, or the error that says what was not published.

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/expand.h"
#include "planner/cluster/layout_json.h"
#include "planner/models/records.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Cluster> Published(const std::string& id) {
  HR_ASSIGN_OR_RETURN(const JobLayout layout, LayoutNamed(id));
  HR_ASSIGN_OR_RETURN(const Model model, ModelNamed(layout.model));
  return BuildCluster(model, layout);
}

// What cluster.h promises of a unit's side.
void ExpectGroups(const std::vector<RankGroup>& groups, const std::vector<Buffer>& buffers, int32_t ranks,
                  const std::string& what) {
  ASSERT_FALSE(groups.empty()) << what;
  for (const RankGroup& group : groups) {
    ASSERT_EQ(group.shards.size(), groups[0].shards.size()) << what;
    for (const std::vector<int32_t>& shard : group.shards) {
      ASSERT_FALSE(shard.empty()) << what;
      ASSERT_TRUE(std::is_sorted(shard.begin(), shard.end())) << what;
      ASSERT_GE(shard.front(), 0) << what;
      ASSERT_LT(shard.back(), ranks) << what;
    }
  }
  for (const Buffer& buffer : buffers) ASSERT_LT(buffer.rank, static_cast<int64_t>(groups[0].shards.size())) << what;
}

void ExpectWellFormed(const Cluster& cluster) {
  ASSERT_EQ(cluster.source_stage.size(), static_cast<size_t>(cluster.source.ranks));
  for (const ClusterUnit& unit : cluster.units) {
    const std::string what = cluster.layout + ", " + unit.unit.name;
    ExpectGroups(unit.source_groups, unit.manifest.source, cluster.source.ranks, what);
    ExpectGroups(unit.destination_groups, unit.manifest.destination, cluster.destination.ranks, what);
    for (const UnitInstance& instance : unit.instances) {
      ASSERT_LT(static_cast<size_t>(instance.source_group), unit.source_groups.size()) << what;
      ASSERT_LT(static_cast<size_t>(instance.destination_group), unit.destination_groups.size()) << what;
    }
  }
}

TEST(PublishedClusters, AreBuiltWhereModelAndGpusAreKnown) {
  const std::map<std::string, std::pair<const char*, const char*>> refused = {
      {"blog-qwen3.8-2.4t-rs", {"malformed", "train.gpus is null"}},
      {"peer-perplexity-k2", {"malformed", "train.tp is null"}},
      {"peer-miles-k2", {"malformed", "train.gpus is null"}},
      {"peer-miles-dsv4", {"invalid_option", "DeepSeek-V4-Flash-FP8, no record"}},
      {"peer-nemo-mxfp8-235b", {"malformed", "train.tp is null"}},
      {"peer-ce-k2-bcast", {"malformed", "train.tp is null"}},
      {"peer-ce-k2-p2p", {"malformed", "train.tp is null"}},
      {"peer-ce-dsv3.1", {"malformed", "train.gpus is null"}},
      {"peer-ce-235b", {"malformed", "train.tp is null"}},
  };
  size_t built = 0;
  for (const std::string& id : LayoutIds()) {
    const auto cluster = Published(id);
    const auto want = refused.find(id);
    std::cout << id << ": ";
    if (cluster.ok()) {
      std::cout << cluster->units.size() << " units, " << cluster->source.ranks << " -> " << cluster->destination.ranks
                << "\n";
      ++built;
      ExpectWellFormed(*cluster);
    } else {
      std::cout << cluster.status().message() << " (" << CodeOf(cluster.status()) << ")\n";
    }
    if (want == refused.end()) {
      EXPECT_TRUE(cluster.ok()) << id << ": " << cluster.status();
      continue;
    }
    EXPECT_EQ(CodeOf(cluster.status()), want->second.first) << id;
    EXPECT_THAT(cluster.status().message(), HasSubstr(want->second.second)) << id;
  }
  EXPECT_EQ(built, LayoutIds().size() - refused.size());
}

TEST(PublishedClusters, OfDeepSeekHasItsTensors) {
  const auto cluster = Published("blog-h100-dsv3-rs");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(ClusterTensors(*cluster).size(), 45395u);  // as the rows with 45,395 tensors say
}

// The largest one that is asked for: its rules are small.
TEST(PublishedClusters, KimiK3OnFourThousandRanksASide) {
  const auto layout = ParseLayout(R"({"id": "k3", "model": "kimi-k3-bf16", "gpu": "GB200",
      "train": {"gpus": 4096, "tp": 1, "pp": 8, "ep": 128}, "gen": {"gpus": 4096, "tp": 32, "ep": 128}})");
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto cluster = BuildCluster(ModelNamed("kimi-k3-bf16").value(), *layout);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ExpectWellFormed(*cluster);
  size_t pieces = 0;
  for (const ClusterUnit& unit : cluster->units) {
    for (const auto* side : {&unit.manifest.source, &unit.manifest.destination}) {
      for (const Buffer& buffer : *side) pieces += buffer.pieces.size();
    }
  }
  EXPECT_LT(pieces, 10000u);
  EXPECT_EQ(ClusterTensors(*cluster).size(), 249756u);
  const auto rank = RankBuffers(*cluster, ClusterSide::kDestination, 4095);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(CodeOf(RankBuffers(*cluster, ClusterSide::kDestination, 4096).status()), "out_of_bounds");
}

}  // namespace
}  // namespace headrace
