#include "planner/cost/plan_traffic.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

Buffer Rows(const std::string& tensor, int64_t rank, Index first, Index rows, Index columns) {
  Buffer b;
  b.rank = rank;
  b.name = tensor;
  b.shape = {rows, columns};
  b.strides = RowMajorStrides(b.shape);
  Piece p;
  p.tensor = tensor;
  p.shape = b.shape;
  p.tensor_offset = {first, 0};
  p.buffer_offset = {0, 0};
  b.pieces.push_back(std::move(p));
  return b;
}

// Two tensors, whose rows are 40 bytes together. Two trainers with half of the rows each; `workers` that want rows
// [first, first + rows).
Manifest Job(const std::vector<std::pair<Index, Index>>& workers, const std::string& trainers_host,
             const std::string& workers_host) {
  Manifest m;
  m.tensors = {{"w", {8, 16}, Dtype::kBF16}, {"v", {8, 4}, Dtype::kBF16}};
  for (int64_t rank : {0, 1}) {
    for (const TensorSpec& t : m.tensors) m.source.push_back(Rows(t.name, rank, rank * 4, 4, t.shape[1]));
    m.topology.source.push_back({rank, trainers_host, "", ""});
  }
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    for (const TensorSpec& t : m.tensors) {
      m.destination.push_back(
          Rows(t.name, static_cast<int64_t>(rank), workers[rank].first, workers[rank].second, t.shape[1]));
    }
    m.topology.destination.push_back({static_cast<int64_t>(rank), workers_host, "", ""});
  }
  return m;
}

TEST(TrafficOf, ADirectEdgeIsAFlow) {
  // Worker 0 wants rows 0..5, of both trainers; worker 1 rows 6 and 7, of the second one.
  const Manifest manifest = Job({{0, 6}, {6, 2}}, "a", "a");
  const absl::StatusOr<Plan> plan = BuildPlan(manifest);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Traffic traffic = TrafficOf(manifest, *plan);
  EXPECT_EQ(traffic.source_ranks, 2);
  EXPECT_THAT(traffic.host, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(traffic.domain, ElementsAre(0, 0, 0, 0));
  ASSERT_EQ(traffic.flows.size(), 3u);
  std::map<std::pair<int32_t, int32_t>, Index> bytes;
  for (const Flow& flow : traffic.flows) {
    ASSERT_EQ(flow.hops.size(), 1u);
    EXPECT_EQ(flow.hops[0].after, -1);
    EXPECT_EQ(flow.copies, 2);
    bytes[{flow.hops[0].from, flow.hops[0].to}] = flow.bytes;
  }
  const std::map<std::pair<int32_t, int32_t>, Index> wanted = {{{0, 2}, 4 * 40}, {{1, 2}, 2 * 40}, {{1, 3}, 2 * 40}};
  EXPECT_EQ(bytes, wanted);
}

TEST(TrafficOf, AStreamIsOneFlowAlongItsChain) {
  // Both workers want everything and are on another host, so each byte goes there once and is passed on.
  const Manifest manifest = Job({{0, 8}, {0, 8}}, "a", "b");
  const absl::StatusOr<Plan> plan = BuildPlan(manifest);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_FALSE(plan->streams.empty());
  const Traffic traffic = TrafficOf(manifest, *plan);
  EXPECT_THAT(traffic.host, ElementsAre(0, 0, 1, 1));
  ASSERT_EQ(traffic.flows.size(), plan->streams.size());
  Index from_trainers = 0, passed_on = 0;
  for (const Flow& flow : traffic.flows) {
    ASSERT_EQ(flow.hops.size(), 2u);
    EXPECT_LT(flow.hops[0].from, 2);
    EXPECT_EQ(flow.hops[0].after, -1);
    EXPECT_EQ(flow.hops[1].from, flow.hops[0].to);
    EXPECT_EQ(flow.hops[1].to, flow.hops[0].to == 2 ? 3 : 2);
    EXPECT_EQ(flow.hops[1].after, 0);
    from_trainers += flow.bytes;
    passed_on += flow.bytes;
  }
  EXPECT_EQ(from_trainers, 8 * 40);
  EXPECT_EQ(passed_on, 8 * 40);
}

TEST(TrafficOf, DomainsOfOneNameAreOneAcrossHosts) {
  Manifest manifest = Job({{0, 8}}, "a", "b");
  manifest.topology.source[1].domain = manifest.topology.destination[0].domain = "nvl";
  const absl::StatusOr<Plan> plan = BuildPlan(manifest);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(TrafficOf(manifest, *plan).domain, ElementsAre(0, 1, 1));
}

}  // namespace
}  // namespace headrace
