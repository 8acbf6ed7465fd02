#include "planner/fair_shares.h"

#include <algorithm>
#include <iostream>
#include <numeric>

#include "gtest/gtest.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

// What each candidate gets; each load must be given out exactly.
std::vector<Index> Levels(const std::vector<SharedLoad>& loads, int candidates) {
  const std::vector<std::vector<Index>> shares = FairShares(loads, candidates);
  EXPECT_EQ(shares.size(), loads.size());
  std::vector<Index> levels(candidates, 0);
  for (size_t l = 0; l < loads.size(); ++l) {
    EXPECT_EQ(shares[l].size(), loads[l].candidates.size());
    EXPECT_EQ(std::accumulate(shares[l].begin(), shares[l].end(), Index{0}), loads[l].bytes);
    for (size_t c = 0; c < shares[l].size(); ++c) {
      EXPECT_GE(shares[l][c], 0);
      levels[loads[l].candidates[c]] += shares[l][c];
    }
  }
  return levels;
}

// Independent of flows: no set of candidates can go below the mean of the loads that have no other candidates, and (by
// Hall's theorem) the worst set's mean can be reached.
Index LeastBusiest(const std::vector<SharedLoad>& loads, unsigned allowed, int candidates) {
  Index worst = 0;
  for (unsigned set = 1; set < (1u << candidates); ++set) {
    if ((set & ~allowed) != 0) continue;
    Index bytes = 0;
    for (const SharedLoad& l : loads) {
      unsigned own = 0;
      for (int c : l.candidates) own |= (1u << c) & allowed;
      if (own != 0 && (own & ~set) == 0) bytes += l.bytes;
    }
    const Index count = __builtin_popcount(set);
    worst = std::max(worst, (bytes + count - 1) / count);
  }
  return worst;
}

TEST(FairShares, NothingToShare) {
  EXPECT_TRUE(FairShares({}, 0).empty());
  EXPECT_TRUE(FairShares({}, 3).empty());
}

TEST(FairShares, TheExampleOfTheHeader) {
  const std::vector<SharedLoad> loads = {{10, {0}}, {2, {0, 1}}, {4, {1, 2}}};
  EXPECT_EQ(Levels(loads, 3), (std::vector<Index>{10, 3, 3}));
}

TEST(FairShares, EvenBelowTheBusiest) {
  // Nobody can relieve 0, nor 1 of what 0 leaves to it; 2 and 3 are equal nevertheless.
  EXPECT_EQ(Levels({{100, {0}}, {30, {1, 2, 3}}, {30, {0, 1}}}, 4), (std::vector<Index>{100, 30, 15, 15}));
}

TEST(FairShares, LongChainsOfNeighbours) {
  // Everything sits at one end, and each load can go one candidate further.
  std::vector<SharedLoad> loads;
  for (int c = 0; c + 1 < 400; ++c) loads.push_back({c == 0 ? 401000 : 399000, {c, c + 1}});
  const std::vector<Index> levels = Levels(loads, 400);
  EXPECT_EQ(*std::max_element(levels.begin(), levels.end()), 398008);  // 159203000 / 400
  EXPECT_GE(*std::min_element(levels.begin(), levels.end()), 398008 - 400);
}

TEST(FairShares, EverySmallProblem) {
  // Up to 3 loads over 3 candidates, each set of candidates, sizes 1 to 4.
  const std::vector<std::vector<int>> sets = {{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}};
  int problems = 0;
  auto check = [&](const std::vector<SharedLoad>& loads) {
    const std::vector<Index> levels = Levels(loads, 3);
    ASSERT_EQ(*std::max_element(levels.begin(), levels.end()), LeastBusiest(loads, 7, 3));
    ++problems;
  };
  for (const auto& a : sets) {
    for (Index x = 1; x <= 4; ++x) {
      check({{x, a}});
      for (const auto& b : sets) {
        for (Index y = 1; y <= 4; ++y) {
          check({{x, a}, {y, b}});
          for (const auto& c : sets) {
            for (Index z = 1; z <= 4; ++z) check({{x, a}, {y, b}, {z, c}});
          }
        }
      }
    }
  }
  std::cout << problems << " problems\n";
}

TEST(FairShares, RandomProblemsReachTheBoundAtEveryLevel) {
  const uint64_t seed = 271;
  for (uint64_t n = 0; n < 3000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    const int candidates = static_cast<int>(Uniform(random, 1, 7));
    std::vector<SharedLoad> loads(static_cast<size_t>(Uniform(random, 1, 12)));
    for (SharedLoad& l : loads) {
      l.bytes = Uniform(random, 1, Uniform(random, 0, 1) ? 20 : 1000000);
      const Index set = Uniform(random, 1, (1 << candidates) - 1);
      for (int c = 0; c < candidates; ++c) {
        if (set & (1 << c)) l.candidates.push_back(c);
      }
    }
    const std::vector<Index> levels = Levels(loads, candidates);
    ASSERT_EQ(*std::max_element(levels.begin(), levels.end()), LeastBusiest(loads, (1u << candidates) - 1, candidates));
    // Nobody could hand bytes to somebody who has less, by more than rounding.
    const auto shares = FairShares(loads, candidates);
    for (size_t l = 0; l < loads.size(); ++l) {
      for (size_t c = 0; c < shares[l].size(); ++c) {
        if (shares[l][c] == 0) continue;
        for (int other : loads[l].candidates) {
          ASSERT_LE(levels[loads[l].candidates[c]], levels[other] + candidates);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
