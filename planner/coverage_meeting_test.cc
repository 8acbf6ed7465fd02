#include "planner/coverage_meeting.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

constexpr uint64_t kSeed = 777;

// All points of a set, one by one, with how often it holds them.
std::map<Extents, int> Points(const PointSet& set) {
  std::map<Extents, int> points = {{{}, 1}};
  for (const Progression& p : set) {
    std::map<Index, int> along = {{p.first, 1}};
    for (const Term& t : p.terms) {
      std::map<Index, int> moved;
      for (const auto& [at, times] : along) {
        for (Index i = 0; i < t.extent; ++i) moved[at + i * t.step] += times;
      }
      along = std::move(moved);
    }
    std::map<Extents, int> grown;
    for (const auto& [point, times] : points) {
      for (const auto& [at, more] : along) {
        Extents longer = point;
        longer.push_back(at);
        grown[longer] += times * more;
      }
    }
    points = std::move(grown);
  }
  return points;
}

PointSet RandomSet(Random& random, size_t axes, bool divisible) {
  PointSet set(axes);
  for (Progression& p : set) {
    p.first = Uniform(random, 0, 30);
    for (Index n = Uniform(random, 0, 3); n > 0; --n) {
      p.terms.push_back(
          {divisible ? Index{1} << Uniform(random, 0, 4) : Uniform(random, 1, 12), Uniform(random, 1, 4)});
    }
  }
  return set;
}

TEST(CoverageMeeting, AgreesWithPointsOneByOne) {
  CaseShare share("random sets", kSeed);
  int met = 0, apart = 0;
  for (uint64_t n = 0; n < 10000; ++n) {
    if (!share.Take()) continue;
    Random random(kSeed + n);
    SCOPED_TRACE("seed " + std::to_string(kSeed + n));
    const size_t axes = static_cast<size_t>(Uniform(random, 0, 3));
    std::vector<PointSet> sets;
    for (Index count = Uniform(random, 0, axes == 3 ? 12 : 4); count > 0; --count) {
      sets.push_back(RandomSet(random, axes, n % 2 == 0));
    }
    std::map<Extents, int> all;
    for (const PointSet& s : sets) {
      for (const auto& [point, times] : Points(s)) all[point] += times;
    }
    bool meets = false;
    for (const auto& [point, times] : all) meets |= times > 1;
    const auto meeting = FindMeeting(sets);
    ASSERT_TRUE(meeting.ok()) << meeting.status();
    ASSERT_EQ(meeting->has_value(), meets);
    ++(meets ? met : apart);
    if (!meets) continue;
    const auto one = Points(sets[(*meeting)->one]), other = Points(sets[(*meeting)->other]);
    const Extents& at = (*meeting)->at;
    ASSERT_TRUE(one.contains(at) && other.contains(at));
    EXPECT_TRUE((*meeting)->one != (*meeting)->other || one.at(at) > 1);
  }
  EXPECT_GT(met, 100);
  EXPECT_GT(apart, 100);
}

// A tiling of a large cube by random cuts: apart as it is, not once a tile grows by one.
TEST(CoverageMeeting, TilesOfALargeSpace) {
  Random random(kSeed);
  std::vector<PointSet> tiles = {PointSet(3, Progression{0, {{1, Index{1} << 20}}})};
  while (tiles.size() < 5000) {
    PointSet& tile = tiles[static_cast<size_t>(Uniform(random, 0, static_cast<Index>(tiles.size()) - 1))];
    const size_t axis = static_cast<size_t>(Uniform(random, 0, 2));
    const Index extent = tile[axis].terms[0].extent;
    if (extent < 2) continue;
    PointSet high = tile;
    tile[axis].terms[0].extent = Uniform(random, 1, extent - 1);
    high[axis].first += tile[axis].terms[0].extent;
    high[axis].terms[0].extent -= tile[axis].terms[0].extent;
    tiles.push_back(high);
  }
  ASSERT_FALSE(FindMeeting(tiles)->has_value());
  for (size_t grown = 0; grown < tiles.size(); grown += 500) {
    std::vector<PointSet> more = tiles;
    Progression& p = more[grown][0];
    if (p.first == 0) continue;  // grows out of the cube
    --p.first;
    ++p.terms[0].extent;
    const auto meeting = FindMeeting(more);
    ASSERT_TRUE(meeting->has_value());
    EXPECT_TRUE((*meeting)->one == grown || (*meeting)->other == grown);
  }
}

TEST(CoverageMeeting, StepsThatDoNotDivideEachOtherAreWrittenOutUpToALimit) {
  const Index many = kMaxProofParts + 1;
  const PointSet set = {{0, {{2, 10}, {3, many}}}};
  EXPECT_TRUE(HasCode(FindMeeting({&set, 1}).status(), ErrorCode::kOutOfMemory));
}

}  // namespace
}  // namespace headrace
