#include "planner/box.h"

#include <iostream>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace headrace {
namespace {

Box MakeBox(std::vector<Index> start, std::vector<Index> extent) {
  return {Coords(start.begin(), start.end()), Coords(extent.begin(), extent.end())};
}

bool Holds(const Box& box, const std::vector<Index>& x) {
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] < box.start[i] || x[i] >= box.start[i] + box.extent[i]) return false;
  }
  return true;
}

// Every point of [0, limit)^axes.
std::vector<std::vector<Index>> Points(size_t axes, Index limit) {
  std::vector<std::vector<Index>> points = {{}};
  for (size_t i = 0; i < axes; ++i) {
    std::vector<std::vector<Index>> grown;
    for (const auto& p : points) {
      for (Index v = 0; v < limit; ++v) {
        grown.push_back(p);
        grown.back().push_back(v);
      }
    }
    points = std::move(grown);
  }
  return points;
}

// The laws of Partition: each point of the box is in exactly one cell, no other point in any, and a cell's holders are
// exactly the candidates that hold each of its points.
void CheckPartition(const Box& box, const std::vector<Box>& candidates, const std::vector<std::vector<Index>>& points) {
  std::map<std::vector<Index>, std::vector<int>> holders;
  Partition(box, candidates, [&](const Box& cell, absl::Span<const int> held) {
    ASSERT_GT(Volume(cell), 0);
    for (const auto& x : points) {
      if (!Holds(cell, x)) continue;
      ASSERT_TRUE(holders.emplace(x, std::vector<int>(held.begin(), held.end())).second) << "two cells hold a point";
    }
  });
  for (const auto& x : points) {
    ASSERT_EQ(holders.contains(x), Holds(box, x));
    if (!Holds(box, x)) continue;
    std::vector<int> expected;
    for (size_t c = 0; c < candidates.size(); ++c) {
      if (Holds(candidates[c], x)) expected.push_back(static_cast<int>(c));
    }
    ASSERT_EQ(holders[x], expected);
  }
}

TEST(Box, IntersectionAndContainment) {
  const Box a = MakeBox({0, 2}, {4, 3}), b = MakeBox({3, 0}, {5, 4});
  EXPECT_EQ(*Intersection(a, b), MakeBox({3, 2}, {1, 2}));
  EXPECT_EQ(*Intersection(b, a), MakeBox({3, 2}, {1, 2}));
  EXPECT_FALSE(Intersection(a, MakeBox({4, 2}, {1, 1})).has_value());
  EXPECT_FALSE(Intersection(a, MakeBox({1, 3}, {0, 1})).has_value()) << "an empty box meets nothing";
  EXPECT_TRUE(Contains(a, MakeBox({1, 2}, {3, 3})));
  EXPECT_FALSE(Contains(a, MakeBox({1, 2}, {4, 3})));
  EXPECT_FALSE(Contains(a, MakeBox({0, 1}, {1, 1})));
  EXPECT_EQ(ToString(a), "[0:4, 2:5]");
}

TEST(Box, WithoutAxesIsOnePoint) {
  const Box point = WholeBox({});
  EXPECT_EQ(Volume(point), 1);
  EXPECT_EQ(*Intersection(point, point), point);
  EXPECT_EQ(ToString(point), "[]");
  CheckPartition(point, {}, Points(0, 1));
  CheckPartition(point, {point, point}, Points(0, 1));
}

TEST(Partition, OfAnEmptyBoxHasNoCells) {
  Partition(WholeBox({3, 0}), {WholeBox({3, 0})}, [](const Box&, absl::Span<const int>) { FAIL(); });
}

TEST(Partition, ExhaustiveOnALine) {
  std::vector<Box> ranges;
  for (Index start = 0; start <= 4; ++start) {
    for (Index extent = 0; start + extent <= 5; ++extent) ranges.push_back(MakeBox({start}, {extent}));
  }
  const auto points = Points(1, 5);
  size_t cases = 0;
  for (const Box& box : ranges) {
    for (const Box& a : ranges) {
      CheckPartition(box, {a}, points);
      for (const Box& b : ranges) CheckPartition(box, {a, b}, points), ++cases;
    }
  }
  std::cout << cases << " partitions\n";
}

TEST(Partition, Random) {
  const uint64_t seed = 20240607;
  std::mt19937_64 random(seed);
  auto uniform = [&](Index low, Index high) { return low + static_cast<Index>(random() % (high - low + 1)); };
  for (int n = 0; n < 3000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", case " << n);
    const size_t axes = static_cast<size_t>(uniform(1, 3));
    auto random_box = [&] {
      Box b;
      for (size_t i = 0; i < axes; ++i) {
        b.start.push_back(uniform(0, 4));
        b.extent.push_back(uniform(0, 5 - b.start.back()));
      }
      return b;
    };
    std::vector<Box> candidates;
    for (Index c = uniform(0, 7); c > 0; --c) candidates.push_back(random_box());
    CheckPartition(random_box(), candidates, Points(axes, 5));
    if (HasFatalFailure()) return;
  }
}

TEST(Partition, CostFollowsBoundariesNotElements) {
  constexpr Index kHuge = Index{1} << 60;
  std::vector<Box> candidates;
  for (Index i = 0; i < 1000; ++i) candidates.push_back(MakeBox({kHuge / 1000 * i}, {kHuge / 1000}));
  int cells = 0;
  Partition(MakeBox({0}, {kHuge}), candidates, [&](const Box&, absl::Span<const int>) { ++cells; });
  EXPECT_EQ(cells, 1001) << "a thousand shards and the remainder";
}

}  // namespace
}  // namespace headrace
