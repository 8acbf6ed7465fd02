#include "planner/lattice.h"

#include <functional>
#include <random>

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(FindZeroSum, AgreesWithTryingAll) {
  constexpr uint32_t kSeed = 4711;
  std::mt19937 random(kSeed);
  auto between = [&](Index low, Index high) { return low + static_cast<Index>(random() % (high - low + 1)); };
  int found = 0;
  for (int n = 0; n < 50000; ++n) {
    std::vector<Multiple> multiples;
    for (Index k = between(0, 4); k > 0; --k) {
      const Index first = between(-4, 4);
      multiples.push_back({between(1, 30), first, first + between(0, 4)});
    }
    const Index base = between(-60, 60);
    std::function<bool(size_t, Index)> any = [&](size_t k, Index sum) {
      if (k == multiples.size()) return sum == 0;
      for (Index x = multiples[k].first; x <= multiples[k].last; ++x) {
        if (any(k + 1, sum + x * multiples[k].step)) return true;
      }
      return false;
    };
    const bool wanted = any(0, base);
    std::vector<Index> x;
    ASSERT_EQ(FindZeroSum(base, multiples, &x), wanted ? Sum::kFound : Sum::kNone) << "seed " << kSeed << " case " << n;
    if (!wanted) continue;
    ++found;
    Index sum = base;
    for (size_t k = 0; k < multiples.size(); ++k) {
      ASSERT_GE(x[k], multiples[k].first);
      ASSERT_LE(x[k], multiples[k].last);
      sum += x[k] * multiples[k].step;
    }
    ASSERT_EQ(sum, 0) << "seed " << kSeed << " case " << n;
  }
  EXPECT_GT(found, 2000);
}

TEST(FindZeroSum, TwoStepsAreDecidedWithoutTrying) {
  constexpr Index kFar = Index{1} << 40, kMany = Index{1} << 20;
  std::vector<Index> x;
  // Two primes: the only way is the one of the extended Euclid.
  EXPECT_EQ(FindZeroSum(-1, {{1000003, -kMany, kMany}, {999983, -kMany, kMany}}, &x), Sum::kFound);
  EXPECT_EQ(x[0] * 1000003 + x[1] * 999983, 1);
  EXPECT_EQ(FindZeroSum(-1, {{1000003, 0, kMany}, {999983, 0, kMany}}, nullptr), Sum::kNone);
  EXPECT_EQ(FindZeroSum(1, {{6, -kFar, kFar}, {4, -kFar, kFar}}, nullptr), Sum::kNone);
  // The largest numbers.
  EXPECT_EQ(FindZeroSum(INT64_MAX, {{INT64_MAX, -1, 1}, {INT64_MAX - 1, -1, 1}}, &x), Sum::kFound);
  EXPECT_EQ(FindZeroSum(INT64_MIN, {{INT64_MAX, 0, 1}, {INT64_MAX - 1, 0, 1}, {3, 0, 1}}, nullptr), Sum::kNone);
}

TEST(FindZeroSum, GivesUpOnMillionsOfCombinations) {
  // n of them sum up to between n * (2^31 + 1) and n * (2^31 + 7); the sum wanted is one more.
  constexpr Index kStep = Index{1} << 31, kMany = Index{1} << 30, kCount = Index{1} << 24;
  EXPECT_EQ(FindZeroSum(-(kCount * (kStep + 7) + 1),
                        {{kStep + 1, 0, kMany}, {kStep + 3, 0, kMany}, {kStep + 7, 0, kMany}}, nullptr),
            Sum::kUnknown);
}

}  // namespace
}  // namespace headrace
