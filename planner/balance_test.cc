#include "planner/balance.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace headrace {
namespace {

std::map<int64_t, Index> Loads(const std::vector<Demand>& demands, const std::vector<int>& chosen) {
  std::map<int64_t, Index> loads;
  for (size_t i = 0; i < demands.size(); ++i)
    loads[demands[i].ranks.at(static_cast<size_t>(chosen[i]))] += demands[i].bytes;
  return loads;
}

TEST(Balance, NothingToChoose) {
  EXPECT_TRUE(ChooseSources({}).empty());
  EXPECT_EQ(ChooseSources(std::vector<Demand>{{5, {7}}, {0, {7, 7}}}), (std::vector<int>{0, 0}));
}

TEST(Balance, TiesGoToTheLowestRankThenToTheFirstListed) {
  EXPECT_EQ(ChooseSources(std::vector<Demand>{{5, {9, 3, 3}}}), std::vector<int>{1});
}

TEST(Balance, FixedLoadCountsFirst) {
  // Listed last, but rank 0 must send it.
  EXPECT_EQ(ChooseSources(std::vector<Demand>{{5, {0, 1}}, {100, {0}}}), (std::vector<int>{1, 0}));
}

TEST(Balance, EqualReplicasShareEqually) {
  std::vector<Demand> demands(12, Demand{10, {4, 5, 6}});
  for (const auto& [rank, load] : Loads(demands, ChooseSources(demands))) EXPECT_EQ(load, 40) << rank;
}

TEST(Balance, RandomStaysWithinOneDemandOfTheMeanAndIsDeterministic) {
  const uint64_t seed = 99;
  std::mt19937_64 random(seed);
  for (int n = 0; n < 500; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", case " << n);
    const int64_t ranks = 1 + static_cast<int64_t>(random() % 8);
    std::vector<Demand> demands(random() % 60);
    Index total = 0, largest = 0;
    for (Demand& d : demands) {
      d.bytes = static_cast<Index>(random() % 1000);
      for (int64_t r = 0; r < ranks; ++r) d.ranks.push_back(r);
      total += d.bytes;
      largest = std::max(largest, d.bytes);
    }
    const std::vector<int> chosen = ChooseSources(demands);
    ASSERT_EQ(chosen.size(), demands.size());
    for (const auto& [rank, load] : Loads(demands, chosen)) EXPECT_LE(load, total / ranks + largest) << rank;
    EXPECT_EQ(chosen, ChooseSources(demands));
  }
}

TEST(Balance, OnlyCandidatesAreChosen) {
  std::mt19937_64 random(5);
  std::vector<Demand> demands(200);
  for (Demand& d : demands) {
    d.bytes = 1 + static_cast<Index>(random() % 9);
    for (uint64_t c = 0; c < 1 + random() % 3; ++c) d.ranks.push_back(static_cast<int64_t>(random() % 5));
  }
  const std::vector<int> chosen = ChooseSources(demands);
  for (size_t i = 0; i < demands.size(); ++i) {
    EXPECT_GE(chosen[i], 0);
    EXPECT_LT(static_cast<size_t>(chosen[i]), demands[i].ranks.size());
  }
}

}  // namespace
}  // namespace headrace
