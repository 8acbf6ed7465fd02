#include "planner/balance.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "gtest/gtest.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using AllStripes = std::vector<Stripes>;

constexpr Index kStripe = kMinStripeBytes;

Demand Whole(Index bytes, std::vector<int64_t> ranks) { return {bytes, std::max<Index>(bytes, 1), std::move(ranks)}; }

// What each rank sends; checks that each demand is cut as it may be.
std::map<int64_t, Index> Loads(const std::vector<Demand>& demands, const AllStripes& stripes) {
  EXPECT_EQ(stripes.size(), demands.size());
  std::map<int64_t, Index> loads;
  for (size_t i = 0; i < demands.size(); ++i) {
    Index sum = 0;
    for (const Stripe& s : stripes[i]) {
      sum += s.bytes;
      loads[demands[i].ranks.at(static_cast<size_t>(s.candidate))] += s.bytes;
      if (stripes[i].size() == 1) continue;
      EXPECT_EQ(s.bytes % demands[i].grain, 0);
      EXPECT_GE(s.bytes, kStripe);
    }
    EXPECT_EQ(sum, demands[i].bytes);
    EXPECT_FALSE(stripes[i].empty());
  }
  return loads;
}

Index Busiest(const std::map<int64_t, Index>& loads) {
  Index busiest = 0;
  for (const auto& [rank, load] : loads) busiest = std::max(busiest, load);
  return busiest;
}

// The least that the busiest rank can send, were everything divisible: the worst mean over a set of ranks of what only
// ranks of the set can send.
double LowerBound(const std::vector<Demand>& demands) {
  std::set<int64_t> all;
  for (const Demand& d : demands) all.insert(d.ranks.begin(), d.ranks.end());
  const std::vector<int64_t> ranks(all.begin(), all.end());
  double worst = 0;
  for (unsigned set = 1; set < (1u << ranks.size()); ++set) {
    double bytes = 0;
    for (const Demand& d : demands) {
      bool inside = true;
      for (int64_t r : d.ranks) {
        inside = inside && ((set >> (std::find(ranks.begin(), ranks.end(), r) - ranks.begin())) & 1u) != 0;
      }
      if (inside) bytes += static_cast<double>(d.bytes);
    }
    worst = std::max(worst, bytes / __builtin_popcount(set));
  }
  return worst;
}

TEST(Balance, NothingToChoose) {
  EXPECT_TRUE(ShareOut({}).empty());
  EXPECT_EQ(ShareOut(std::vector<Demand>{Whole(5, {7}), Whole(0, {7, 7})}), (AllStripes{{{0, 5}}, {{0, 0}}}));
}

TEST(Balance, TiesGoToTheLowestRankThenToTheFirstListed) {
  EXPECT_EQ(ShareOut(std::vector<Demand>{Whole(5, {9, 3, 3})}), (AllStripes{{{1, 5}}}));
}

TEST(Balance, FixedLoadCountsFirst) {
  // Listed last, but rank 0 must send it.
  EXPECT_EQ(ShareOut(std::vector<Demand>{Whole(5, {0, 1}), Whole(100, {0})}), (AllStripes{{{1, 5}}, {{0, 100}}}));
}

TEST(Balance, EqualReplicasShareEqually) {
  const std::vector<Demand> demands(12, Whole(10, {4, 5, 6}));
  for (const auto& [rank, load] : Loads(demands, ShareOut(demands))) EXPECT_EQ(load, 40) << rank;
}

TEST(Balance, OneHugeDemandIsStripedOverAllReplicas) {
  const std::vector<Demand> demands = {{Index{1000} << 20, 1024, {0, 1, 2, 3, 4, 5, 6}}};
  const AllStripes stripes = ShareOut(demands);
  EXPECT_EQ(stripes[0].size(), 7u);
  EXPECT_LE(Busiest(Loads(demands, stripes)), (Index{1000} << 20) / 7 + 1024);
}

TEST(Balance, WholeWhereThatIsEven) {
  const std::vector<Demand> demands(8, {Index{1} << 30, 4096, {0, 1, 2, 3}});
  const AllStripes stripes = ShareOut(demands);
  for (const auto& s : stripes) EXPECT_EQ(s.size(), 1u);
  EXPECT_EQ(Busiest(Loads(demands, stripes)), Index{2} << 30);
}

TEST(Balance, StripesRelieveARankThatHoldsMoreAlone) {
  // Rank 0 alone holds 600 MiB; of the 800 MiB that both hold it takes 100.
  const std::vector<Demand> demands = {{Index{600} << 20, 512, {0}}, {Index{800} << 20, 512, {0, 1}}};
  const auto loads = Loads(demands, ShareOut(demands));
  EXPECT_EQ(loads.at(0), Index{700} << 20);
  EXPECT_EQ(loads.at(1), Index{700} << 20);
}

TEST(Balance, NothingIsCutBelowTheSmallestStripe) {
  for (Index bytes : {Index{1}, kStripe, 2 * kStripe - 1}) {
    EXPECT_EQ(ShareOut(std::vector<Demand>{{bytes, 1, {0, 1}}})[0].size(), 1u) << bytes;
  }
  EXPECT_EQ(ShareOut(std::vector<Demand>{{2 * kStripe, 1, {0, 1}}})[0], (Stripes{{0, kStripe}, {1, kStripe}}));
  // Rows of 48 KiB: two of them at least.
  EXPECT_EQ(ShareOut(std::vector<Demand>{{3 * (48 << 10), 48 << 10, {0, 1}}})[0].size(), 1u);
  EXPECT_EQ(ShareOut(std::vector<Demand>{{4 * (48 << 10), 48 << 10, {0, 1}}})[0],
            (Stripes{{0, 96 << 10}, {1, 96 << 10}}));
}

TEST(Balance, OfEqualCandidatesAtMostAsManyAreCutAsThereAreCandidates) {
  std::vector<Demand> demands;
  Random random(3);
  for (int n = 0; n < 500; ++n) demands.push_back({Uniform(random, 1, 4000) * 4096, 4096, {0, 1, 2, 3, 4, 5, 6, 7}});
  const AllStripes stripes = ShareOut(demands);
  size_t more = 0;
  for (const auto& s : stripes) more += s.size() - 1;
  EXPECT_LE(more, 8u);
  EXPECT_LE(static_cast<double>(Busiest(Loads(demands, stripes))), LowerBound(demands) + kStripe);
}

TEST(Balance, SumsBeyondSixtyFourBits) {
  std::vector<Demand> demands(40, {Index{1} << 61, 1, {0, 1, 2}});
  demands.push_back({Index{1} << 62, Index{1} << 62, {1}});
  const AllStripes stripes = ShareOut(demands);
  for (size_t i = 0; i < demands.size(); ++i) {
    Index left = demands[i].bytes;
    for (const Stripe& s : stripes[i]) left -= s.bytes;
    EXPECT_EQ(left, 0);
  }
}

// Against the bound of all sets of ranks: what the busiest rank sends beyond it is the rounding to stripes.
TEST(Balance, RandomDemandsComeCloseToTheBound) {
  const uint64_t seed = 99;
  double worst = 0, worst_relative = 1;
  for (uint64_t n = 0; n < 3000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    const Index ranks = Uniform(random, 1, 8);
    std::vector<Demand> demands(static_cast<size_t>(Uniform(random, 1, 60)));
    std::vector<std::vector<int64_t>> sets(static_cast<size_t>(Uniform(random, 1, 6)));
    for (auto& set : sets) {
      for (Index r = 0; r < ranks; ++r) {
        if (Uniform(random, 0, 2) > 0) set.push_back(r);
      }
      if (set.empty()) set.push_back(Uniform(random, 0, ranks - 1));
    }
    for (Demand& d : demands) {
      d.grain = Index{1} << Uniform(random, 0, 16);
      d.bytes = d.grain * Uniform(random, 1, (Index{16} << 20) / d.grain);
      if (Uniform(random, 0, 3) == 0) d.bytes = d.grain * Uniform(random, 1, 3);  // small ones, too
      d.ranks = sets[static_cast<size_t>(Uniform(random, 0, static_cast<Index>(sets.size()) - 1))];
    }
    const AllStripes stripes = ShareOut(demands);
    EXPECT_EQ(stripes, ShareOut(demands));
    const double bound = LowerBound(demands), busiest = static_cast<double>(Busiest(Loads(demands, stripes)));
    ASSERT_LE(busiest, bound + 2 * kStripe);
    worst = std::max(worst, (busiest - bound) / kStripe);
    if (bound > 100.0 * kStripe) worst_relative = std::max(worst_relative, busiest / bound);
    if (HasFailure()) return;
  }
  EXPECT_LE(worst_relative, 1.02);
  std::cout << "at most " << worst << " smallest stripes above the bound; " << worst_relative
            << " times it where it is 100 stripes and more\n";
}

TEST(Balance, OnlyCandidatesAreChosen) {
  Random random(5);
  std::vector<Demand> demands(200);
  for (Demand& d : demands) {
    d.bytes = Uniform(random, 1, 9);
    d.grain = d.bytes;
    for (Index c = Uniform(random, 1, 3); c > 0; --c) d.ranks.push_back(Uniform(random, 0, 4));
  }
  for (const auto& [rank, load] : Loads(demands, ShareOut(demands))) EXPECT_LT(rank, 5);
}

}  // namespace
}  // namespace headrace
