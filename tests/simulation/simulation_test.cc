// Random jobs that things happen to. Environment variables, of this test alone:
//   HEADRACE_SIM_SEED     the one seed to run, or the first of HEADRACE_SIM_SEEDS
//   HEADRACE_SIM_SEEDS    how many seeds of the fixed set (300)
//   HEADRACE_SIM_TRACE    prints every control message that arrives
//   HEADRACE_SIM_SECONDS  for how long random seeds are drawn (30)
#include "tests/simulation/simulation.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace headrace::simulation {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  uint64_t value = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name << " is no number: " << text;
  return value;
}

// Fewer under sanitizers, which are slow.
uint64_t Share(uint64_t all) { return std::max<uint64_t>(1, all * FromEnvironment("HEADRACE_TEST_SHARE", 100) / 100); }

bool Chosen() { return std::getenv("HEADRACE_SIM_SEED") != nullptr; }

SimulationResult RunSeed(uint64_t seed, Counters* counters) {
  SimulationOptions options = DrawOptions(seed);
  options.trace = std::getenv("HEADRACE_SIM_TRACE") != nullptr;
  SimulationResult result = Simulate(options);
  counters->Add(result.counters);
  counters->slowest_ns = std::max(counters->slowest_ns, result.healed_ns);
  EXPECT_EQ(result.violation, "") << "To repeat it: bazel test //tests/simulation:simulation_test "
                                  << "--test_output=all --test_env=HEADRACE_SIM_SEED=" << seed;
  return result;
}

void Report(const char* what, uint64_t seeds, const Counters& c) {
  std::cout << what << ": " << seeds << " seeds, " << c.sessions << " sessions, " << c.crashes << " crashes, "
            << c.leaves << " leaves, " << c.coordinators << " coordinators, " << c.runs << " new runs, " << c.epochs
            << " epochs, " << c.commits << " engine commits, " << c.aborts << " aborts (as each publisher heard), "
            << c.attempts_anew << " attempts anew, " << c.unverified << " sums that differed, " << c.moved
            << " moved buffers, " << c.peers_lost << " lost peers, " << c.deadlines << " deadlines, " << c.poisoned
            << " poisoned workers, " << c.requests << " requests of " << c.request_steps
            << " steps; all was well again after at most " << c.slowest_ns / kSecond << " s\n";
}

TEST(SimulationTest, ChosenSeeds) {
  if (!Chosen()) GTEST_SKIP() << "HEADRACE_SIM_SEED is not set";
  const uint64_t first = FromEnvironment("HEADRACE_SIM_SEED", 1), seeds = FromEnvironment("HEADRACE_SIM_SEEDS", 1);
  if (seeds == 1) std::cout << Describe(DrawOptions(first)) << "\n";
  Counters counters;
  for (uint64_t seed = first; seed < first + seeds; ++seed) RunSeed(seed, &counters);
  Report("chosen", seeds, counters);
}

TEST(SimulationTest, FixedSeeds) {
  if (Chosen()) GTEST_SKIP();
  Counters counters;
  const uint64_t seeds = Share(FromEnvironment("HEADRACE_SIM_SEEDS", 300));
  int violations = 0;
  uint64_t seed = 0;
  while (seed < seeds && violations < 25) violations += !RunSeed(++seed, &counters).violation.empty();
  Report("fixed", seed, counters);
  if (seed < 300) return;
  // The runs are about something.
  EXPECT_GT(counters.commits, 0);
  EXPECT_GT(counters.aborts, 0);
  EXPECT_GT(counters.attempts_anew, 0);
  EXPECT_GT(counters.unverified, 0);
  EXPECT_GT(counters.moved, 0);
  EXPECT_GT(counters.poisoned, 0);
  EXPECT_GT(counters.runs, 0);
  EXPECT_GT(counters.leaves, 0);
  EXPECT_GT(counters.request_steps, 0);
}

TEST(SimulationTest, RandomSeeds) {
  if (Chosen()) GTEST_SKIP();
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(Share(FromEnvironment("HEADRACE_SIM_SECONDS", 30)));
  const uint64_t first = std::random_device()() | uint64_t{1} << 32;
  std::cout << "from seed " << first << "\n";
  Counters counters;
  uint64_t seeds = 0;
  for (int violations = 0; std::chrono::steady_clock::now() < end && violations < 25; ++seeds)
    violations += !RunSeed(first + seeds, &counters).violation.empty();
  Report("random", seeds, counters);
}

TEST(SimulationTest, ReplaysBySeed) {
  for (uint64_t seed = 1; seed <= Share(10); ++seed) {
    const SimulationResult one = Simulate(DrawOptions(seed)), other = Simulate(DrawOptions(seed));
    EXPECT_EQ(one.events, other.events) << "seed " << seed;
    EXPECT_EQ(one.mark, other.mark) << "seed " << seed;
  }
}

TEST(SimulationTest, HundredsOfRanks) {
  if (Share(100) < 100) GTEST_SKIP() << "not under sanitizers";
  for (const bool map : {true, false}) {
    SimulationOptions o;
    o.publishers = 64;
    o.replicas = 2;
    o.workers.assign(24, 8);
    o.hosts = 8;
    o.tensors = 4;
    o.map = map;
    o.timeouts.heartbeat_period_ns = kSecond;
    o.timeouts.rejoin_ns = 20 * kSecond;
    o.publish_period_ns = 3 * kSecond;
    o.faults_ns = 6 * kSecond;
    o.request_period_ns = kSecond;
    o.trainer_crashes = o.worker_crashes = o.coordinator_crashes = 1;
    const SimulationResult result = Simulate(o);
    EXPECT_EQ(result.violation, "");
    EXPECT_GE(result.counters.commits, 24);
    Report(map ? "256 ranks, mapped" : "256 ranks, two-sided", 1, result.counters);
  }
}

// A trainer that writes where receivers may be reading, or will: nothing of it is ever committed.
TEST(SimulationTest, NoticesATrainerThatWritesEarly) {
  Counters counters;
  for (uint64_t seed = 1; seed <= Share(40); ++seed) {
    SimulationOptions o;
    o.seed = seed;
    o.map = seed % 2 == 0;
    o.workers = {2, 1};
    o.in_place = {seed % 3 == 0};
    o.publish_period_ns = 60 * kMillisecond;
    o.faults_ns = 6 * kSecond;
    o.early_writes = 60;
    const SimulationResult result = Simulate(o);
    counters.Add(result.counters);
    ASSERT_EQ(result.violation, "");
  }
  EXPECT_GT(counters.unverified + counters.changed, 0);
  Report("early", 40, counters);
}

SimulationOptions Diverging(uint64_t seed) {
  SimulationOptions o;
  o.seed = seed;
  o.map = seed % 2 == 0;
  o.publishers = 4;
  o.replicas = 2;
  o.workers = {2, 1};
  o.in_place = {seed % 3 == 0};
  o.late_engines = seed % 4 == 0 ? 1 : 0;  // a new epoch compares anew
  o.publish_period_ns = 200 * kMillisecond;
  o.faults_ns = 6 * kSecond;
  o.divergences = 15;
  return o;
}

// Replicas of a part that differ are not committed, on any worker; what follows is.
TEST(SimulationTest, NoticesReplicasThatDiffer) {
  Counters counters;
  for (uint64_t seed = 1; seed <= Share(40); ++seed) {
    const SimulationResult result = Simulate(Diverging(seed));
    counters.Add(result.counters);
    ASSERT_EQ(result.violation, "") << "seed " << seed;
  }
  EXPECT_GT(counters.divergences, 0);
  // Each is told to every worker that is there.
  EXPECT_GE(counters.given_up, counters.divergences);
  EXPECT_GT(counters.commits, counters.divergences);
  Report("differ", 40, counters);
  // That is seen by the checkers, were it not noticed.
  std::string found;
  for (uint64_t seed = 1; seed <= 40 && found.empty(); ++seed) {
    SimulationOptions options = Diverging(seed);
    options.bug = PlantedBug::kEqualSums;
    found = Simulate(options).violation;
  }
  EXPECT_TRUE(absl::StartsWith(found, "bytes:")) << "found: " << found;
}

// Each checker sees the fault that it is there for.
class PlantedBugTest : public ::testing::TestWithParam<std::pair<PlantedBug, const char*>> {};

TEST_P(PlantedBugTest, IsFound) {
  const auto [bug, checker] = GetParam();
  std::string found;
  for (uint64_t seed = 1; seed <= 400 && !absl::StartsWith(found, checker); ++seed) {
    SimulationOptions options = DrawOptions(seed);
    options.bug = bug;
    found = Simulate(options).violation;
  }
  EXPECT_TRUE(absl::StartsWith(found, checker)) << "found: " << found;
}

INSTANTIATE_TEST_SUITE_P(
    Bugs, PlantedBugTest,
    ::testing::Values(std::pair{PlantedBug::kServeWhileApplying, "mixed:"},
                      std::pair{PlantedBug::kServeAlone, "mixed:"}, std::pair{PlantedBug::kCommitStaleBytes, "bytes:"},
                      std::pair{PlantedBug::kIgnoreSums, "bytes:"}, std::pair{PlantedBug::kWriteGaps, "bytes:"},
                      std::pair{PlantedBug::kRollBack, "monotonic:"}, std::pair{PlantedBug::kDeaf, "progress:"},
                      std::pair{PlantedBug::kNeverRelease, "progress:"}, std::pair{PlantedBug::kKeepEpochs, "memory:"},
                      std::pair{PlantedBug::kLeakMappings, "leaks:"}));

}  // namespace
}  // namespace headrace::simulation
