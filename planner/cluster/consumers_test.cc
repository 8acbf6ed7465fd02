#include "planner/cluster/consumers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::ElementsAre;

TEST(ConsumersTest, TheExampleOfTheHeader) {
  ConsumerSet set({1, 3, 5, 7}, 4);
  EXPECT_EQ(set.AddBytes(100), 0);
  EXPECT_EQ(set.AddBytes(100), 100);
  set.PlaceEntries();
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

TEST(ConsumersTest, TreesReachAllOnceAndEntriesShareEvenly) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const auto per_domain = static_cast<int32_t>(Uniform(random, 1, 6));
    std::set<int32_t> ranks;
    const Index count = Uniform(random, 1, 20);
    while (static_cast<Index>(ranks.size()) < count) ranks.insert(static_cast<int32_t>(Uniform(random, 0, 40)));
    ConsumerSet set({ranks.begin(), ranks.end()}, per_domain);
    const Index bytes = Uniform(random, 1, 1000);
    set.AddBytes(bytes);
    set.PlaceEntries();
    ASSERT_TRUE(std::is_sorted(set.borders().begin(), set.borders().end()));
    const int domains = static_cast<int>(set.domains().size());
    std::map<int32_t, Index> entered;
    for (int section = 0; section <= static_cast<int>(set.borders().size()); ++section) {
      const Index begin = section == 0 ? 0 : set.borders()[section - 1];
      const Index end = section == static_cast<int>(set.borders().size()) ? bytes : set.borders()[section];
      for (int first = 0; first < domains; ++first) {
        // Both ends of each leg say the same, and following them from the sender reaches everybody.
        std::map<int32_t, TreePlace> places;
        for (size_t i = 0; i < set.ranks().size(); ++i) {
          const auto index = static_cast<int32_t>(i);
          const int domain = set.DomainOf(index);
          EXPECT_EQ(set.ranks()[i] / per_domain, set.ranks()[set.domains()[domain].first] / per_domain);
          places[set.ranks()[i]] = set.PlaceOf(index, domain, first, section);
        }
        std::vector<int32_t> reached = {set.Entry(first, section)};
        EXPECT_EQ(places[reached[0]].from, -1);
        for (size_t n = 0; n < reached.size(); ++n) {
          const TreePlace place = places[reached[n]];
          for (int32_t next : {place.next_domain, place.next_inside}) {
            if (next < 0) continue;
            EXPECT_EQ(places[next].from, reached[n]);
            EXPECT_EQ(next / per_domain == reached[n] / per_domain, next == place.next_inside);
            reached.push_back(next);
          }
          ASSERT_LE(reached.size(), ranks.size());
        }
        EXPECT_EQ(std::set<int32_t>(reached.begin(), reached.end()), ranks);
      }
      for (int d = 0; d < domains; ++d) entered[set.Entry(d, section)] += end - begin;
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
