#include "planner/lower.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <random>

#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ElementsByPlace = std::map<Index, Index>;  // place in the buffer's memory -> element of the tensor

// What a piece says, element by element.
ElementsByPlace Expected(const TensorSpec& t, const Buffer& b, const Piece& p) {
  ElementsByPlace out;
  const Extents& counted = p.view ? *p.view : t.shape;
  Extents x(p.shape.size(), 0);
  Index count = 1;
  for (Index e : p.shape) count *= e;
  for (Index n = 0; n < count; ++n) {
    Index element = 0, place = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t along = p.axes.empty() ? i : static_cast<size_t>(p.axes[i]);
      element = element * counted[i] + p.tensor_offset[i] + x[i];
      place += (p.buffer_offset[along] + x[i]) * b.strides[along];
    }
    out.emplace(place, element);
    for (size_t i = x.size(); i-- > 0;) {
      if (++x[i] < p.shape[i]) break;
      x[i] = 0;
    }
  }
  return out;
}

// What placed boxes say. Fails when two of them hold one element.
ElementsByPlace Laid(const CommonAxes& axes, const std::vector<PlacedBox>& boxes) {
  ElementsByPlace out;
  for (const PlacedBox& p : boxes) {
    EXPECT_EQ(p.box.start.size(), axes.extents().size());
    const Index count = Volume(p.box);
    for (Index n = 0; n < count; ++n) {
      Index rest = n, element = 0, place = p.offset;
      for (size_t i = p.box.start.size(); i-- > 0;) {
        const Index x = rest % p.box.extent[i];
        rest /= p.box.extent[i];
        EXPECT_LE(p.box.start[i] + p.box.extent[i], axes.extents()[i]);
        element += (p.box.start[i] + x) * axes.strides()[i];
        place += x * p.strides[i];
      }
      EXPECT_TRUE(out.emplace(place, element).second) << "two elements at one place";
    }
  }
  return out;
}

void ExpectPlaced(const CommonAxes& axes, const TensorSpec& t, const Buffer& b, const Piece& p, size_t boxes = 0) {
  const auto placed = axes.Place(t, b, 7, p);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(Laid(axes, *placed), Expected(t, b, p));
  if (boxes > 0) {
    EXPECT_EQ(placed->size(), boxes);
  }
  for (const PlacedBox& box : *placed) EXPECT_EQ(box.buffer, 7);
}

TEST(CommonAxes, AreTheCoarsestReshape) {
  EXPECT_EQ(CommonAxes({24, 2}, {}).extents(), (Extents{24, 2}));
  EXPECT_EQ(CommonAxes({24, 2}, {{6, 4, 2}}).extents(), (Extents{6, 4, 2}));
  EXPECT_EQ(CommonAxes({24, 2}, {{6, 4, 2}, {2, 3, 8}}).extents(), (Extents{2, 3, 4, 2}));
  EXPECT_EQ(CommonAxes({5, 3}, {{15}}).extents(), (Extents{5, 3}));
  EXPECT_EQ(CommonAxes({1, 5, 1, 3, 1}, {}).extents(), (Extents{5, 3}));
  EXPECT_EQ(CommonAxes({}, {}).extents(), Extents{});
  EXPECT_EQ(CommonAxes({1, 1}, {{1}}).extents(), Extents{});
  EXPECT_EQ(CommonAxes({6, 4}, {{4, 6}}).extents(), (Extents{6, 4})) << "views that do not nest stay out";
  EXPECT_EQ(CommonAxes({24, 2}, {{6, 4, 2}}).strides(), (Extents{8, 2, 1}));
}

TEST(Place, ARangeOfACoarseAxisIsUpToThreeBoxes) {
  const TensorSpec t{"t", {5, 3}, Dtype::kU8};
  const CommonAxes axes(t.shape, {{15}});
  const Buffer b = BufferOf(0, "b", Dtype::kU8, {7}, {ViewPiece("t", {15}, {4}, {7}, {0})});
  const auto placed = axes.Place(t, b, 0, b.pieces[0]);
  ASSERT_TRUE(placed.ok());
  ASSERT_EQ(placed->size(), 3u);
  EXPECT_EQ(ToString((*placed)[0].box), "[1:2, 1:3]");
  EXPECT_EQ(ToString((*placed)[1].box), "[2:3, 0:3]");
  EXPECT_EQ(ToString((*placed)[2].box), "[3:4, 0:2]");
  ExpectPlaced(axes, t, b, b.pieces[0], 3);
}

TEST(Place, EmptyPiecesHaveNoBoxes) {
  const TensorSpec t{"t", {5, 3}, Dtype::kU8};
  const Buffer b = BufferOf(0, "b", Dtype::kU8, {0, 3}, {PieceOf("t", {5, 0}, {0, 3}, {0, 0})});
  const auto placed = CommonAxes(t.shape, {}).Place(t, b, 0, b.pieces[0]);
  ASSERT_TRUE(placed.ok());
  EXPECT_TRUE(placed->empty());
}

TEST(Place, AScalarIsOnePoint) {
  const TensorSpec t{"t", {}, Dtype::kU8};
  const Buffer b = BufferOf(0, "b", Dtype::kU8, {}, {PieceOf("t", {}, {}, {})});
  ExpectPlaced(CommonAxes({}, {}), t, b, b.pieces[0], 1);
  const Buffer c = BufferOf(0, "c", Dtype::kU8, {3, 2}, {ViewPiece("t", {1, 1}, {0, 0}, {1, 1}, {2, 1})});
  ExpectPlaced(CommonAxes({}, {{1, 1}}), t, c, c.pieces[0], 1);
}

TEST(Place, ViewsThatDoNotNestAreLaidRunByRun) {
  const TensorSpec t{"t", {6, 4}, Dtype::kU8};
  const CommonAxes axes(t.shape, {{4, 6}});
  Buffer b = BufferOf(0, "b", Dtype::kU8, {3, 4}, {ViewPiece("t", {4, 6}, {1, 2}, {3, 4}, {0, 0})});
  ExpectPlaced(axes, t, b, b.pieces[0]);
  b.strides = {1, 3};
  ExpectPlaced(axes, t, b, b.pieces[0]);
  b.strides = {20, 2};
  ExpectPlaced(axes, t, b, b.pieces[0]);
}

TEST(Place, RefusesMillionsOfBoxes) {
  const Index n = Index{1} << 13;
  const TensorSpec t{"t", {n * 3, n}, Dtype::kU8};
  const CommonAxes axes(t.shape, {});
  Buffer b = BufferOf(0, "b", Dtype::kU8, {n * n, 3}, {ViewPiece("t", {n * n, 3}, {0, 0}, {n * n, 3}, {0, 0})});
  b.strides = {4, 1};
  const auto placed = axes.Place(t, b, 0, b.pieces[0]);
  ASSERT_FALSE(placed.ok());
  EXPECT_TRUE(HasCode(placed.status(), ErrorCode::kOutOfMemory)) << placed.status();
  b.strides = {3, 1};  // one run
  ExpectPlaced(CommonAxes({6}, {{2, 3}}), {"t", {6}, Dtype::kU8}, BufferOf(0, "b", Dtype::kU8, {2, 3}, {}),
               ViewPiece("t", {2, 3}, {0, 0}, {2, 3}, {0, 0}), 1);
}

TEST(DescribeBox, CountsInTheTensorsAxesWhereItIsABoxThere) {
  EXPECT_EQ(DescribeBox({1, 17}, {{9}, {8}}, {1}), "[0:1, 9:17]");
  EXPECT_EQ(DescribeBox({3, 4}, {{1, 2}, {2, 2}}, {4, 1}), "[1:3, 2:4]");
  EXPECT_EQ(DescribeBox({3, 4}, {{4}, {8}}, {1}), "[1:3, 0:4]");
  EXPECT_EQ(DescribeBox({2, 1, 6}, {{0, 1, 0}, {2, 1, 3}}, {6, 3, 1}), "[0:2, 0:1, 3:6]");
  EXPECT_EQ(DescribeBox({6}, {{1, 0}, {1, 3}}, {3, 1}), "[3:6]");
  EXPECT_EQ(DescribeBox({}, {{}, {}}, {}), "[]");
  // Over the end of a row; every other element of a row.
  EXPECT_EQ(DescribeBox({3, 4}, {{2}, {4}}, {1}), "elements 2:6");
  EXPECT_EQ(DescribeBox({12}, {{0, 1}, {3, 2}}, {4, 1}), "elements 1:3 and 2 more such runs");
}

// Each shape with each pair of views, each box of each view, plain and transposed, dense and pitched.
TEST(Place, ExhaustiveViewsOfTwelveElements) {
  const std::vector<Extents> views = {{12},      {3, 4},    {4, 3},    {2, 6},    {6, 2},    {1, 12},     {12, 1},
                                      {2, 2, 3}, {2, 3, 2}, {3, 2, 2}, {3, 1, 4}, {1, 4, 3}, {2, 3, 1, 2}};
  size_t cases = 0;
  for (const Extents& shape : views) {
    const TensorSpec t{"t", shape, Dtype::kU8};
    for (const Extents& other : views) {
      for (const Extents& view : views) {
        const CommonAxes axes(shape, {other, view});
        Random random(cases + 1);
        for (int n = 0; n < 4; ++n, ++cases) {
          Extents start, extent;
          for (Index e : view) {
            start.push_back(Uniform(random, 0, e - 1));
            extent.push_back(Uniform(random, 1, e - start.back()));
          }
          const size_t rank = view.size();
          Piece p = ViewPiece("t", view, start, extent, Extents(rank, 1));
          Buffer b = BufferOf(0, "b", Dtype::kU8, Extents(rank, 0), {});
          for (size_t i = 0; i < rank; ++i) p.axes.push_back(static_cast<int>(i));
          if (n % 2) std::shuffle(p.axes.begin(), p.axes.end(), random);
          for (size_t i = 0; i < rank; ++i) b.shape[p.axes[i]] = extent[i] + 1;
          b.strides = RowMajorStrides(b.shape);
          if (n % 3 == 0) {
            for (Index& s : b.strides) s *= 2;
          }
          if (n % 4 == 0) b.strides.front() += 3;
          ExpectPlaced(axes, t, b, p);
          if (HasFailure()) FAIL() << "case " << cases;
        }
      }
    }
  }
  std::cout << cases << " pieces placed\n";
}

}  // namespace
}  // namespace headrace
