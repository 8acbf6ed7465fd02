#include "planner/cluster/entry_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::ElementsAre;

struct Wanted {
  Index bytes = 0;
  std::vector<int32_t> ranks;
};

std::vector<ConsumerSet> SetsOf(const std::vector<Wanted>& wanted, const SideShape& shape) {
  std::vector<ConsumerSet> sets;
  for (const Wanted& w : wanted) sets.emplace_back(w.ranks, shape).AddBytes(w.bytes);
  return sets;
}

// What each rank enters, as it is placed on the lines. Each set's bytes must enter each of its domains.
std::vector<Index> Entered(const std::vector<Wanted>& wanted, const SideShape& shape) {
  std::vector<ConsumerSet> sets = SetsOf(wanted, shape);
  ShareEntries(shape, &sets);
  std::vector<Index> entered(shape.ranks, 0);
  for (ConsumerSet& set : sets) {
    set.PlaceEntries({{0, 0}});
    for (size_t d = 0; d < set.domains().size(); ++d) {
      const auto domain = static_cast<int>(d);
      const std::vector<Index> shares = set.Shares(domain);
      EXPECT_EQ(shares.size(), static_cast<size_t>(set.domains()[d].size));
      EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), Index{0}), set.bytes());
      std::vector<Index> placed(shares.size(), 0);
      for (size_t s = 0; s < set.doors().size(); ++s) {
        const Index begin = s == 0 ? 0 : set.borders()[s - 1];
        const Index end = s < set.borders().size() ? set.borders()[s] : set.bytes();
        const int32_t entry = set.Entry(domain, set.doors()[s]);
        const auto mine = set.ranks().begin() + set.domains()[d].first;
        placed[std::find(mine, mine + set.domains()[d].size, entry) - mine] += end - begin;
        entered[entry] += end - begin;
      }
      EXPECT_EQ(placed, shares);
    }
  }
  return entered;
}

TEST(EntrySharesTest, TheExampleOfTheHeader) {
  EXPECT_THAT(Entered({{300, {0, 2}}, {300, {1, 2}}}, {3, 3, 3}), ElementsAre(200, 200, 200));
}

TEST(EntrySharesTest, EachDomainOnItsOwn) {
  // Domain 0 as in the header; the ranks of domain 1 are in all sets alike, and their parts stay equal.
  const SideShape shape{6, 3, 3};
  const std::vector<Wanted> wanted = {{300, {0, 2, 3, 4}}, {300, {1, 2, 3, 4}}};
  EXPECT_THAT(Entered(wanted, shape), ElementsAre(200, 200, 200, 300, 300, 0));
  std::vector<ConsumerSet> sets = SetsOf(wanted, shape);
  ShareEntries(shape, &sets);
  EXPECT_FALSE(sets[0].SharesEqually(0));
  EXPECT_TRUE(sets[0].SharesEqually(1));
}

TEST(EntrySharesTest, RanksThatShareNoSetAreApart) {
  // Two stages in one domain; the second one's parts are even, though less than the first one's.
  std::vector<ConsumerSet> sets = SetsOf({{300, {0, 2}}, {300, {1, 2}}, {50, {3, 4}}}, {5, 5, 5});
  ShareEntries({5, 5, 5}, &sets);
  EXPECT_FALSE(sets[0].SharesEqually(0));
  EXPECT_TRUE(sets[2].SharesEqually(0));
}

TEST(EntrySharesTest, EqualPartsStayWhereTheyAreAsGood) {
  // Rank 0 alone wants what no other can enter; and within 1 % nothing is gained.
  for (const std::vector<Wanted>& wanted :
       {std::vector<Wanted>{{1000, {0}}, {20, {0, 1}}}, std::vector<Wanted>{{1000, {0}}, {990, {1}}, {9, {0, 1}}}}) {
    std::vector<ConsumerSet> sets = SetsOf(wanted, {2, 2, 2});
    ShareEntries({2, 2, 2}, &sets);
    EXPECT_TRUE(sets.back().SharesEqually(0));
  }
  std::vector<ConsumerSet> sets = SetsOf({{1000, {0}}, {24, {0, 1}}}, {2, 2, 2});
  ShareEntries({2, 2, 2}, &sets);
  EXPECT_THAT(sets[1].Shares(0), ElementsAre(0, 24));
}

// The least that the busiest rank can enter, by trying every way to share out whole bytes.
Index LeastOfAllWays(const std::vector<Wanted>& wanted, int ranks) {
  std::vector<Index> level(ranks, 0);
  Index least = Index{1} << 40;
  std::function<void(size_t, size_t, Index)> give = [&](size_t set, size_t place, Index left) {
    if (*std::max_element(level.begin(), level.end()) >= least) return;
    if (set == wanted.size()) {
      least = *std::max_element(level.begin(), level.end());
      return;
    }
    const std::vector<int32_t>& of = wanted[set].ranks;
    const bool last = place + 1 == of.size();
    for (Index bytes = last ? left : 0; bytes <= left; ++bytes) {
      level[of[place]] += bytes;
      last ? give(set + 1, 0, set + 1 < wanted.size() ? wanted[set + 1].bytes : 0) : give(set, place + 1, left - bytes);
      level[of[place]] -= bytes;
    }
  };
  give(0, 0, wanted[0].bytes);
  return least;
}

TEST(EntrySharesTest, EverySmallDomain) {
  // Up to three sets over three ranks, of few bytes.
  const std::vector<std::vector<int32_t>> choices = {{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}};
  const std::vector<Index> sizes = {1, 3, 6};
  int domains = 0;
  std::function<void(std::vector<Wanted>, size_t)> check = [&](std::vector<Wanted> wanted, size_t next) {
    if (!wanted.empty()) {
      const std::vector<Index> entered = Entered(wanted, {3, 3, 3});
      ASSERT_EQ(*std::max_element(entered.begin(), entered.end()), LeastOfAllWays(wanted, 3));
      ++domains;
    }
    if (wanted.size() == 3) return;
    for (size_t c = next; c < choices.size(); ++c) {
      for (const Index bytes : sizes) {
        wanted.push_back({bytes, choices[c]});
        check(wanted, c + 1);
        wanted.pop_back();
        if (HasFatalFailure()) return;
      }
    }
  };
  check({}, 0);
  std::cout << domains << " domains\n";
  EXPECT_GT(domains, 1000);
}

// Independent of flows: the worst set of a domain's ranks has a mean below which its busiest cannot go, and by Hall's
// theorem that can be reached.
Index LeastBusiest(const std::vector<Wanted>& wanted, int32_t first, int32_t count) {
  Index worst = 0;
  for (unsigned some = 1; some < (1u << count); ++some) {
    Index bytes = 0;
    for (const Wanted& w : wanted) {
      unsigned of = 0;
      for (const int32_t rank : w.ranks) {
        if (rank >= first && rank < first + count) of |= 1u << (rank - first);
      }
      if (of != 0 && (of & ~some) == 0) bytes += w.bytes;
    }
    const Index ranks = __builtin_popcount(some);
    worst = std::max(worst, (bytes + ranks - 1) / ranks);
  }
  return worst;
}

TEST(EntrySharesTest, NoDomainsBusiestEntersMuchMoreThanItMust) {
  int unequal = 0;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const auto per_domain = static_cast<int32_t>(Uniform(random, 1, 7));
    const SideShape shape{static_cast<int32_t>(Uniform(random, 1, 20)), static_cast<int32_t>(Uniform(random, 1, 7)),
                          per_domain};
    std::vector<Wanted> wanted(static_cast<size_t>(Uniform(random, 1, 12)));
    for (Wanted& w : wanted) {
      w.bytes = Uniform(random, 1, Uniform(random, 0, 1) ? 20 : 1000000);
      const Index likely = Uniform(random, 1, 4);
      for (int32_t rank = 0; rank < shape.ranks; ++rank) {
        if (Uniform(random, 0, 4) < likely) w.ranks.push_back(rank);
      }
      if (w.ranks.empty()) w.ranks.push_back(0);
    }
    const std::vector<Index> entered = Entered(wanted, shape);
    std::vector<ConsumerSet> sets = SetsOf(wanted, shape);
    ShareEntries(shape, &sets);
    for (const ConsumerSet& set : sets) {
      for (size_t d = 0; d < set.domains().size(); ++d) unequal += set.SharesEqually(static_cast<int>(d)) ? 0 : 1;
    }
    for (int32_t first = 0; first < shape.ranks; first += per_domain) {
      const int32_t count = std::min(per_domain, shape.ranks - first);
      const Index busiest = *std::max_element(entered.begin() + first, entered.begin() + first + count);
      const Index least = LeastBusiest(wanted, first, count);
      ASSERT_GE(busiest, least);
      ASSERT_LE(busiest, least + least / 100) << "domain of rank " << first;
    }
  }
  EXPECT_GT(unequal, 1000);
}

}  // namespace
}  // namespace headrace
