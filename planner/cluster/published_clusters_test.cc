// Every published layout, and what becomes of it: a cluster, or the error that says what was not published.

#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cluster/build_cluster.h"
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

}  // namespace
}  // namespace headrace
