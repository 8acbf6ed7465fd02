#include "loader/session/simulation.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

// A share of the seeds under sanitizers.
int Seeds(int all) {
  const char* share = std::getenv("HEADRACE_TEST_SHARE");
  return share == nullptr ? all : std::max(1, all * std::atoi(share) / 100);
}

TEST(SimulationTest, KeepsItsPromisesWhoeverDies) {
  int committed = 0, aborted = 0, poisoned = 0, killed = 0, killed_coordinator = 0;
  for (int seed = 1; seed <= Seeds(10'000); ++seed) {
    const SimulationResult result = Simulate({.seed = static_cast<uint64_t>(seed)});
    ASSERT_EQ(result.violation, "");
    committed += result.committed;
    aborted += result.aborted;
    poisoned += result.poisoned;
    killed += result.killed;
    killed_coordinator += result.killed_coordinator;
  }
  // The runs are about something.
  EXPECT_GT(committed, 0);
  EXPECT_GT(aborted, 0);
  EXPECT_GT(poisoned, 0);
  EXPECT_GT(killed_coordinator, 0);
  std::cout << committed << " engine commits, " << aborted << " aborts, " << poisoned << " poisoned workers, " << killed
            << " kills, " << killed_coordinator << " of the coordinator\n";
}

TEST(SimulationTest, DecidesEveryGenerationWhenNobodyDies) {
  for (int seed = 1; seed <= Seeds(5'000); ++seed) {
    const SimulationResult result = Simulate({.seed = static_cast<uint64_t>(seed), .kill = false});
    ASSERT_EQ(result.violation, "");
    ASSERT_GT(result.committed + result.aborted, 0) << "seed " << seed;
  }
}

TEST(SimulationTest, ReplaysBySeed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(Simulate({.seed = seed}).steps, Simulate({.seed = seed}).steps);
}

// Each checker sees the fault that it is there for.
class PlantedBugTest : public testing::TestWithParam<std::pair<PlantedBug, const char*>> {};

TEST_P(PlantedBugTest, IsFound) {
  const auto [bug, checker] = GetParam();
  std::string found;
  for (uint64_t seed = 1; seed <= 3'000 && !absl::StartsWith(found, checker); ++seed)
    found = Simulate({.seed = seed, .bug = bug}).violation;
  EXPECT_TRUE(absl::StartsWith(found, checker)) << "found: " << found;
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedBugTest,
                         testing::Values(std::pair{PlantedBug::kEarlyRelease, "slots:"},
                                         std::pair{PlantedBug::kServeAlone, "agreement:"},
                                         std::pair{PlantedBug::kCommitStaleBytes, "agreement:"},
                                         std::pair{PlantedBug::kAnyEngineCounts, "monotonic:"},
                                         std::pair{PlantedBug::kDeaf, "liveness:"}));

}  // namespace
}  // namespace headrace
