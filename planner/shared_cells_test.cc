#include "planner/shared_cells.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

TensorCells CellsOf(const Extents& axes, const std::vector<Box>& boxes) {
  TensorCells cut;
  cut.axes = axes;
  cut.axis_strides = RowMajorStrides(axes);
  for (size_t i = 0; i < boxes.size(); ++i) cut.cells.push_back({0, boxes[i], static_cast<int>(i), {7}});
  return cut;
}

std::vector<SharedCell> ShareAll(const TensorCells& cut) {
  std::vector<int> all(cut.cells.size());
  std::iota(all.begin(), all.end(), 0);
  return ShareCells(cut, all);
}

using Wanted = absl::InlinedVector<int, 2>;

TEST(SharedCells, TheExampleOfTheHeader) {
  const auto cells = ShareAll(CellsOf({3}, {{{0}, {2}}, {{1}, {2}}}));
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[0].box, (Box{{0}, {1}}));
  EXPECT_EQ(cells[0].destinations, Wanted{0});
  EXPECT_EQ(cells[1].box, (Box{{1}, {1}}));
  EXPECT_EQ(cells[1].destinations, (Wanted{0, 1}));
  EXPECT_EQ(cells[2].box, (Box{{2}, {1}}));
  EXPECT_EQ(cells[2].destinations, Wanted{1});
  EXPECT_EQ(cells[2].sources, std::vector<int>{7});
}

TEST(SharedCells, EqualBoxesAreOneCell) {
  const auto cells = ShareAll(CellsOf({4, 4}, std::vector<Box>(50, {{1, 0}, {2, 4}})));
  ASSERT_EQ(cells.size(), 1u);
  EXPECT_EQ(cells[0].destinations.size(), 50u);
}

TEST(SharedCells, AScalarAndNothing) {
  EXPECT_EQ(ShareAll(CellsOf({}, {Box{}, Box{}})).size(), 1u);
  EXPECT_TRUE(ShareAll(CellsOf({4}, {})).empty());
}

TEST(SharedCells, RandomBoxesElementByElement) {
  const uint64_t seed = 77;
  for (uint64_t n = 0; n < 3000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    Extents axes;
    for (Index i = Uniform(random, 1, 3); i > 0; --i) axes.push_back(Uniform(random, 1, 5));
    std::vector<Box> boxes;
    for (Index b = Uniform(random, 1, 7); b > 0; --b) {
      Box box;
      for (Index e : axes) {
        box.start.push_back(Uniform(random, 0, e - 1));
        box.extent.push_back(Uniform(random, 1, e - box.start.back()));
      }
      boxes.push_back(std::move(box));
    }
    const TensorCells cut = CellsOf(axes, boxes);
    // Per element: who wants it, and who is said to want it.
    std::map<Index, std::vector<int>> wanted, got;
    auto visit = [&](const Box& box, auto&& f) {
      for (Index k = 0; k < Volume(box); ++k) {
        Index rest = k, element = 0;
        for (size_t i = axes.size(); i-- > 0;) {
          element += (box.start[i] + rest % box.extent[i]) * cut.axis_strides[i];
          rest /= box.extent[i];
        }
        f(element);
      }
    };
    for (size_t b = 0; b < boxes.size(); ++b) {
      visit(boxes[b], [&](Index e) { wanted[e].push_back(static_cast<int>(b)); });
    }
    for (const SharedCell& cell : ShareAll(cut)) {
      visit(cell.box, [&](Index e) {
        ASSERT_TRUE(got[e].empty()) << "element " << e << " is in two cells";
        got[e].assign(cell.destinations.begin(), cell.destinations.end());
      });
    }
    ASSERT_EQ(got, wanted);
  }
}

}  // namespace
}  // namespace headrace
