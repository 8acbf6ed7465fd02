#include "planner/cluster/consumers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::ElementsAre;

TEST(ConsumersTest, TheExampleOfTheHeader) {
  ConsumerSet set({1, 3, 5, 7}, {8, 4, 4});
  EXPECT_EQ(set.AddBytes(100), 0);
  EXPECT_EQ(set.AddBytes(100), 100);
  set.PlaceEntries({{0, 0}});
  EXPECT_THAT(set.borders(), ElementsAre(100));
  EXPECT_EQ(set.Entry(0, 0), 1);
  EXPECT_EQ(set.Entry(1, 0), 5);
  EXPECT_EQ(set.Entry(0, 1), 3);
  EXPECT_EQ(set.Entry(1, 1), 7);
  const TreePlace three = set.PlaceOf(1, 0, 0, 1);
  EXPECT_EQ(three.from, -1);
  EXPECT_EQ(three.next_domain, 7);
  EXPECT_EQ(three.next_inside, 1);
  const TreePlace seven = set.PlaceOf(3, 1, 0, 1);
  EXPECT_EQ(seven.from, 3);
  EXPECT_EQ(seven.next_domain, -1);
  EXPECT_EQ(seven.next_inside, 5);
  const TreePlace one = set.PlaceOf(0, 0, 0, 1);
  EXPECT_EQ(one.from, 3);
  EXPECT_EQ(one.next_domain, -1);
  EXPECT_EQ(one.next_inside, -1);
}

// By rail, senders' bytes, from runs.
std::map<int32_t, Index> BytesOfRails(const std::vector<RailRun>& runs, Index bytes) {
  std::map<int32_t, Index> out;
  for (size_t r = 0; r < runs.size(); ++r) {
    out[runs[r].rail] += (r + 1 < runs.size() ? runs[r + 1].begin : bytes) - runs[r].begin;
  }
  return out;
}

std::vector<RailRun> RandomRuns(Random& random, Index bytes, int32_t rails) {
  std::set<Index> begins = {0};
  for (Index n = Uniform(random, 0, 12); n > 0; --n) begins.insert(Uniform(random, 0, bytes - 1));
  std::vector<RailRun> runs;
  for (Index begin : begins) runs.push_back({begin, static_cast<int32_t>(Uniform(random, 0, rails - 1))});
  return runs;
}

int32_t RailAt(const std::vector<RailRun>& runs, Index at) {
  int32_t rail = 0;
  for (const RailRun& run : runs) {
    if (run.begin <= at) rail = run.rail;
  }
  return rail;
}

// Two hosts of four, a domain each. Three quarters of the line are from rail 3, for which there is one rank of two.
TEST(ConsumersTest, EntriesMeetTheirSendersRails) {
  ConsumerSet set({1, 3, 5, 7}, {8, 4, 4});
  set.AddBytes(80);
  set.PlaceEntries({{0, 3}, {20, 1}, {40, 3}});
  EXPECT_THAT(set.borders(), ElementsAre(20, 40, 60));
  EXPECT_THAT(set.doors(), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(set.Entry(0, 0), 3);
  EXPECT_EQ(set.Entry(1, 0), 7);
  EXPECT_EQ(set.Entry(0, 1), 1);
  EXPECT_EQ(set.Entry(1, 1), 5);
}

// The last domain has rails 3 and 1, the two others 2 and 3, and all bytes come from rail 2: it is entered on rail 3
// where they are.
TEST(ConsumersTest, OtherDomainsFollowTheChain) {
  ConsumerSet set({2, 3, 10, 11, 19, 21}, {24, 4, 8});
  set.AddBytes(60);
  set.PlaceEntries({{0, 2}});
  for (size_t section = 0; section < set.doors().size(); ++section) {
    const int door = set.doors()[section];
    EXPECT_EQ(set.Entry(0, door) == 3, set.Entry(2, door) == 19) << section;
  }
  EXPECT_EQ(set.doors().size(), 2u);
}

TEST(ConsumersTest, AsManyBytesStayOnTheirRailAsSharesAllow) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const auto host = static_cast<int32_t>(Uniform(random, 1, 6));
    const SideShape shape{48, host, static_cast<int32_t>(host * Uniform(random, 1, 2))};
    std::set<int32_t> ranks;
    for (Index n = Uniform(random, 1, 20); n > 0; --n) ranks.insert(static_cast<int32_t>(Uniform(random, 0, 47)));
    ConsumerSet set({ranks.begin(), ranks.end()}, shape);
    const Index bytes = Uniform(random, 1, 100000);
    set.AddBytes(bytes);
    for (size_t d = 0; d < set.domains().size(); ++d) {
      if (Uniform(random, 0, 1)) continue;  // equal parts
      std::vector<Index> shares;
      Index left = bytes;
      for (int32_t n = set.domains()[d].size; n > 1; --n) {
        shares.push_back(Uniform(random, 0, left));
        left -= shares.back();
      }
      shares.push_back(left);
      set.SetShares(static_cast<int>(d), std::move(shares));
    }
    const std::vector<RailRun> runs = RandomRuns(random, bytes, host + 1);
    const std::map<int32_t, Index> sent = BytesOfRails(runs, bytes);
    set.PlaceEntries(runs);
    for (size_t d = 0; d < set.domains().size(); ++d) {
      const ConsumerDomain& domain = set.domains()[d];
      std::map<int32_t, Index> room;  // by rail
      const std::vector<Index> shares = set.Shares(static_cast<int>(d));
      for (int32_t n = 0; n < domain.size; ++n) room[RailOf(shape, set.ranks()[domain.first + n])] += shares[n];
      Index most = 0, have = 0;
      for (const auto& [rail, share] : room) {
        const auto it = sent.find(rail);
        most += std::min(it == sent.end() ? 0 : it->second, share);
      }
      std::set<Index> cuts(set.borders().begin(), set.borders().end());
      for (const RailRun& run : runs) cuts.insert(run.begin);
      cuts.insert(0);
      for (auto cut = cuts.begin(); cut != cuts.end(); ++cut) {
        const auto section = std::upper_bound(set.borders().begin(), set.borders().end(), *cut) - set.borders().begin();
        const Index end = std::next(cut) == cuts.end() ? bytes : *std::next(cut);
        const int32_t entry = set.Entry(static_cast<int>(d), set.doors()[section]);
        if (RailOf(shape, entry) == RailAt(runs, *cut)) have += end - *cut;
      }
      EXPECT_GE(have, most) << "domain " << d;
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ConsumersTest, TreesReachAllOnceAndEntriesShareEvenly) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const auto per_domain = static_cast<int32_t>(Uniform(random, 1, 6));
    std::set<int32_t> ranks;
    const Index count = Uniform(random, 1, 20);
    while (static_cast<Index>(ranks.size()) < count) ranks.insert(static_cast<int32_t>(Uniform(random, 0, 40)));
    ConsumerSet set({ranks.begin(), ranks.end()}, {48, static_cast<int32_t>(Uniform(random, 1, 6)), per_domain});
    const Index bytes = Uniform(random, 1, 1000);
    set.AddBytes(bytes);
    set.PlaceEntries(RandomRuns(random, bytes, 4));
    ASSERT_EQ(set.doors().size(), set.borders().size() + 1);
    ASSERT_TRUE(std::is_sorted(set.borders().begin(), set.borders().end()));
    const int domains = static_cast<int>(set.domains().size());
    std::map<int32_t, Index> entered;
    for (int section = 0; section <= static_cast<int>(set.borders().size()); ++section) {
      const Index begin = section == 0 ? 0 : set.borders()[section - 1];
      const Index end = section == static_cast<int>(set.borders().size()) ? bytes : set.borders()[section];
      const int door = set.doors()[section];
      for (int first = 0; first < domains; ++first) {
        // Both ends of each leg say the same, and following them from the sender reaches everybody.
        std::map<int32_t, TreePlace> places;
        for (size_t i = 0; i < set.ranks().size(); ++i) {
          const auto index = static_cast<int32_t>(i);
          const int domain = set.DomainOf(index);
          EXPECT_EQ(set.ranks()[i] / per_domain, set.ranks()[set.domains()[domain].first] / per_domain);
          places[set.ranks()[i]] = set.PlaceOf(index, domain, first, door);
        }
        std::vector<int32_t> reached = {set.Entry(first, door)};
        EXPECT_EQ(places[reached[0]].from, -1);
        EXPECT_EQ(places[reached[0]].legs, 1);
        for (size_t n = 0; n < reached.size(); ++n) {
          const TreePlace place = places[reached[n]];
          for (int32_t next : {place.next_domain, place.next_inside}) {
            if (next < 0) continue;
            EXPECT_EQ(places[next].from, reached[n]);
            EXPECT_EQ(places[next].legs, place.legs + 1);
            EXPECT_EQ(next / per_domain == reached[n] / per_domain, next == place.next_inside);
            reached.push_back(next);
          }
          ASSERT_LE(reached.size(), ranks.size());
        }
        EXPECT_EQ(std::set<int32_t>(reached.begin(), reached.end()), ranks);
      }
      for (int d = 0; d < domains; ++d) entered[set.Entry(d, door)] += end - begin;
    }
    for (int d = 0; d < domains; ++d) {
      for (int32_t n = 0; n < set.domains()[d].size; ++n) {
        EXPECT_NEAR(static_cast<double>(entered[set.ranks()[set.domains()[d].first + n]]),
                    static_cast<double>(bytes) / set.domains()[d].size, 1.0);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace headrace
