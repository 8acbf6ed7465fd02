#include "planner/coverage.h"

#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/mutate_plan.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

constexpr uint64_t kSeed = 31337;

// Every kind of mutation of correct plans of random manifests. The naive interpreter decides whether a mutated plan is
// still right; each one that is not must be refused.
TEST(Coverage, EveryWrongMutationIsCaught) {
  struct Count {
    int caught = 0;
    int harmless_accepted = 0;
    int harmless_refused = 0;  // equal bytes by another plan than the form that the proof asks for
  };
  std::map<std::string, Count> counts;
  CaseShare share("random manifests", kSeed);
  for (uint64_t n = 0; n < 4000; ++n) {
    if (!share.Take()) continue;
    Random random(kSeed + n);
    const Manifest m = RandomManifest(random);
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << "seed " << kSeed + n << ": " << plan.status();
    ASSERT_EQ(CheckPlan(m, *plan), "") << "seed " << kSeed + n;
    ForEachMutation(random, m, *plan, [&](const std::string& kind, const Plan& mutated) {
      const bool right = CheckPlan(m, mutated).empty();
      const absl::Status proof = ProveCoverage(m, mutated);
      Count& count = counts[kind];
      if (right) {
        ++(proof.ok() ? count.harmless_accepted : count.harmless_refused);
        return;
      }
      ASSERT_TRUE(HasCode(proof, ErrorCode::kPlanInvalid))
          << "seed " << kSeed + n << ", " << kind << ": " << CheckPlan(m, mutated) << "; proof: " << proof;
      ++count.caught;
    });
    if (HasFatalFailure()) return;
  }
  int total = 0;
  for (const auto& [kind, count] : counts) {
    std::cout << kind << ": " << count.caught << " caught, " << count.harmless_accepted << " harmless and accepted, "
              << count.harmless_refused << " harmless and refused\n";
    total += count.caught;
    EXPECT_GT(count.caught, 0) << kind;
  }
  std::cout << total << " wrong plans caught\n";
}

Manifest Small() {
  Manifest m = WholeManifest({{"a", {4, 6}, Dtype::kBF16}, {"b", {3}, Dtype::kF32}});
  m.destination[0].shape = {5, 6};
  m.destination[0].strides = {8, 1};
  m.destination[0].pieces.push_back(FillOf(PieceKind::kZero, {1, 6}, {4, 0}));
  return m;
}

void ExpectRefused(const std::function<void(Plan&)>& change) {
  const Manifest m = Small();
  Plan plan = *BuildPlan(m);
  ASSERT_TRUE(ProveCoverage(m, plan).ok());
  change(plan);
  EXPECT_TRUE(HasCode(ProveCoverage(m, plan), ErrorCode::kPlanInvalid)) << ProveCoverage(m, plan);
}

TEST(Coverage, AbsurdNumbersAreRefusedWithoutOverflow) {
  for (const Index absurd :
       {Index{-1}, INT64_MIN, INT64_MAX, INT64_MAX / 2, INT64_MIN / 2, Index{1} << 40, Index{-7}}) {
    ExpectRefused([&](Plan& p) { p.copies[0].source_offset = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].destination_offset = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].position = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].run_bytes = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].extent = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].source_stride = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].destination_stride = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops[0].position_stride = absurd; });
    ExpectRefused([&](Plan& p) { p.copies[0].loops.push_back({2, absurd, absurd, absurd}); });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].destination_offset = absurd; });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].run_bytes = absurd; });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].loops.push_back({2, 0, absurd, 0}); });
  }
}

TEST(Coverage, IndicesAndListsMustFit) {
  for (int index : {-1, 2, 1 << 30}) {
    ExpectRefused([&](Plan& p) { p.copies[0].tensor = index; });
    ExpectRefused([&](Plan& p) { p.copies[0].source = index; });
    ExpectRefused([&](Plan& p) { p.copies[0].destination = index; });
    ExpectRefused([&](Plan& p) { p.zero_fills[0].destination = index; });
  }
  ExpectRefused([](Plan& p) { p.decisions.pop_back(); });
  ExpectRefused([](Plan& p) { p.copies.clear(); });
  ExpectRefused([](Plan& p) { p.zero_fills.clear(); });
  ExpectRefused([](Plan& p) { p.copies[0].loops.resize(kMaxCopyLoops + 1, CopyLoop{1, 0, 0, 0}); });
}

TEST(Coverage, EdgesTileTheCopiesOncePerPairOfRanks) {
  ExpectRefused([](Plan& p) { p.edges.clear(); });
  ExpectRefused([](Plan& p) { p.edges.push_back(p.edges[0]); });
  ExpectRefused([](Plan& p) { p.edges[0].source_rank = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].destination_rank = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].first = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].count = 1; });
  ExpectRefused([](Plan& p) { p.edges[0].count = SIZE_MAX; });
  ExpectRefused([](Plan& p) { p.edges.push_back({0, 0, 2, 0}); });
  ExpectRefused([](Plan& p) {
    p.edges[0].count = 1;
    p.edges.push_back({0, 0, 1, 1});
  });
}

TEST(Coverage, BuffersOfOneStorageMustNotMeet) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kU8}, {"b", {4}, Dtype::kU8}});
  m.destination[0].storage = Storage{"m", 0};
  m.destination[1].storage = Storage{"m", 4};
  const Plan plan = *BuildPlan(m);
  m.destination[1].storage->offset_bytes = 3;
  EXPECT_TRUE(HasCode(ProveCoverage(m, plan), ErrorCode::kPlanInvalid));
}

}  // namespace
}  // namespace headrace
