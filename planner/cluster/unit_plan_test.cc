#include "planner/cluster/unit_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/balance.h"
#include "planner/cluster/testing/random_cluster.h"

namespace headrace {
namespace {

using testing::ElementsAre;

UnitPlan PlanOf(const ClusterUnit& unit, Policy policy = Policy::kAuto) {
  absl::StatusOr<UnitPlan> plan = UnitPlan::Make(unit, policy);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(UnitPlanTest, TheExampleOfTheHeader) {
  const ClusterUnit unit = MatrixUnit("w", 4, 2, 2, 2);
  const UnitPlan plan = PlanOf(unit);
  ASSERT_EQ(plan.cells().size(), 4u);
  EXPECT_EQ(plan.classes().size(), 4u);
  EXPECT_THAT(plan.source_sets(), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(plan.destination_sets(), ElementsAre(ElementsAre(0), ElementsAre(1)));
  const UnitCell& second = plan.cells()[1];  // rows 2:4 of column 0
  EXPECT_EQ(second.bytes, 4);
  EXPECT_THAT(second.box.start, ElementsAre(2, 0));
  EXPECT_EQ(second.sources[0].shard, 1);
  EXPECT_EQ(second.wanted_by[0].shard, 0);
  std::vector<Copy> copies;
  plan.AppendCopies(1, 0, 0, 4, 0, 1, &copies);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].source, 1);
  EXPECT_EQ(copies[0].destination, 0);
  EXPECT_EQ(copies[0].source_offset, 0);
  EXPECT_EQ(copies[0].destination_offset, 4);
  EXPECT_EQ(copies[0].position, 8);
  EXPECT_EQ(copies[0].run_bytes, 2);
  EXPECT_EQ(copies[0].loops[0], (CopyLoop{2, 4, 2, 4}));
}

TEST(UnitPlanTest, ReplicatedShardsAreOneCellWithSeveralSourcesAndPlaces) {
  ClusterUnit unit = MatrixUnit("w", 4, 2, 1, 1);
  unit.manifest.source.push_back(unit.manifest.source[0]);
  unit.manifest.source[1].rank = 1;
  for (int64_t rank : {1, 1}) {
    unit.manifest.destination.push_back(unit.manifest.destination[0]);
    unit.manifest.destination.back().rank = rank;
    unit.manifest.destination.back().name = absl::StrCat("w", unit.manifest.destination.size());
  }
  const UnitPlan plan = PlanOf(unit);
  ASSERT_EQ(plan.cells().size(), 1u);
  EXPECT_THAT(plan.source_sets(), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(plan.destination_sets(), ElementsAre(ElementsAre(0, 1)));
  EXPECT_EQ(plan.cells()[0].wanted_by.size(), 3u);  // shard 1 has it twice
  for (int source : {0, 1}) {
    std::vector<Copy> copies;
    plan.AppendCopies(0, source, 0, 16, 1, 2, &copies);
    ASSERT_EQ(copies.size(), 2u);
    EXPECT_EQ(copies[0].source, source);
    EXPECT_EQ(copies[0].part, 0);
    EXPECT_EQ(copies[1].part, 0);
    EXPECT_EQ(plan.Parts(0, source), 1);
  }
}

TEST(UnitPlanTest, StripesTileACellsCopies) {
  const ClusterUnit unit = MatrixUnit("w", 512, 300, 1, 2);
  const UnitPlan plan = PlanOf(unit);
  ASSERT_EQ(plan.cells().size(), 2u);
  const UnitCell& cell = plan.cells()[1];
  EXPECT_GE(cell.stripe_unit, kMinStripeBytes);
  EXPECT_EQ(cell.stripe_unit % 300, 0);  // rows of 150 elements
  std::vector<Copy> copies;
  plan.AppendCopies(1, 0, 0, cell.stripe_unit, 0, 1, &copies);
  plan.AppendCopies(1, 0, cell.stripe_unit, cell.bytes - cell.stripe_unit, 0, 1, &copies);
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].bytes(), cell.stripe_unit);
  EXPECT_EQ(copies[0].bytes() + copies[1].bytes(), cell.bytes);
  EXPECT_EQ(copies[1].destination_offset, copies[0].bytes());
  EXPECT_EQ(copies[1].source_offset, 300 + cell.stripe_unit * 2);
}

TEST(UnitPlanTest, HybridSendsCellsToAllHoldersOfTheTensor) {
  const ClusterUnit unit = MatrixUnit("model.q_proj.weight", 4, 6, 2, 3);
  EXPECT_EQ(PlanOf(unit).destination_sets().size(), 3u);
  const UnitPlan plan = PlanOf(unit, Policy::kHybrid);
  EXPECT_THAT(plan.destination_sets(), ElementsAre(ElementsAre(0, 1, 2)));
  for (const UnitCell& cell : plan.cells()) EXPECT_EQ(cell.wanted_by.size(), 1u);
}

}  // namespace
}  // namespace headrace
