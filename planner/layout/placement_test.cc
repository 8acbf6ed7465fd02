#include "planner/layout/placement.h"

#include <algorithm>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/enumerate.h"
#include "planner/layout/oracle.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rank by rank.
std::vector<Segments> Rows(Index rows, const Layout& layout) {
  std::vector<Segments> result;
  for (const auto& rank : SegmentsOfRanks({rows}, layout)) result.push_back(rank[0]);
  return result;
}

TEST(Mesh, CoordinatesAreRowMajor) {
  const Mesh mesh{{2, 3}, {"dp", "tp"}};
  EXPECT_EQ(MeshSize(mesh).value(), 6);
  EXPECT_THAT(MeshCoordinate(mesh, 4).value(), ElementsAre(1, 1));
  EXPECT_THAT(MeshCoordinate(mesh, 2).value(), ElementsAre(0, 2));
  EXPECT_EQ(MeshSize({}).value(), 1);
  EXPECT_TRUE(MeshCoordinate({}, 0).value().empty());
}

TEST(Mesh, Errors) {
  EXPECT_EQ(CodeOf(MeshSize({{2, 0}, {}}).status()), "invalid_option");
  EXPECT_EQ(CodeOf(MeshSize({{2, 2}, {"dp"}}).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(MeshSize({{Index{1} << 40, Index{1} << 40}, {}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(MeshCoordinate({{2, 2}, {}}, 4).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(MeshCoordinate({{2, 2}, {}}, -1).status()), "out_of_bounds");
}

TEST(LocalSegments, FsdpChunks) {
  EXPECT_THAT(Rows(50, {{{4}, {}}, {Shard{0}}}),
              ElementsAre(Segments{{0, 13}}, Segments{{13, 13}}, Segments{{26, 13}}, Segments{{39, 11}}));
  EXPECT_THAT(Rows(3, {{{4}, {}}, {Shard{0}}}),
              ElementsAre(Segments{{0, 1}}, Segments{{1, 1}}, Segments{{2, 1}}, Segments{}));
  EXPECT_THAT(Rows(5, {{{4}, {}}, {Shard{0}}}),
              ElementsAre(Segments{{0, 2}}, Segments{{2, 2}}, Segments{{4, 1}}, Segments{}));
  EXPECT_THAT(Rows(1, {{{2}, {}}, {Shard{0}}}), ElementsAre(Segments{{0, 1}}, Segments{}));
}

TEST(LocalSegments, HybridFsdpRepeatsRows) {
  EXPECT_THAT(Rows(5, {{{2, 2}, {}}, {Replicate{}, Shard{0}}}),
              ElementsAre(Segments{{0, 3}}, Segments{{3, 2}}, Segments{{0, 3}}, Segments{{3, 2}}));
}

TEST(LocalSegments, FsdpOverTp) {
  const Layout column_wise = {{{2, 2}, {"dp", "tp"}}, {StridedShard{0, 2}, Shard{0}}};
  EXPECT_THAT(Rows(38, column_wise),
              ElementsAre(Segments{{0, 10}}, Segments{{19, 10}}, Segments{{10, 9}}, Segments{{29, 9}}));
  EXPECT_THAT(Rows(6, column_wise),
              ElementsAre(Segments{{0, 2}}, Segments{{3, 2}}, Segments{{2, 1}}, Segments{{5, 1}}));
  // Uneven under TP: the second cut can fall inside a piece, and a rank's rows be apart.
  EXPECT_THAT(Rows(5, column_wise),
              ElementsAre(Segments{{0, 2}}, Segments{{3, 1}}, Segments{{2, 1}}, Segments{{4, 1}}));
  EXPECT_THAT(Rows(10, {{{2, 2}, {}}, {StridedShard{0, 3}, Shard{0}}}),
              ElementsAre(Segments{{0, 2}, {4, 1}}, Segments{{5, 1}, {8, 1}}, Segments{{2, 2}, {6, 1}},
                          Segments{{7, 1}, {9, 1}}));
  EXPECT_THAT(SegmentsOfRanks({5, 4}, {{{2, 2}, {}}, {Shard{0}, Shard{1}}})[3],
              ElementsAre(Segments{{3, 2}}, Segments{{2, 2}}));
}

TEST(LocalSegments, HugeExtentsCostNothing) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  EXPECT_THAT(LocalSegments({kMax}, {{kMax}, {}}, {Shard{0}}, {kMax - 1}).value(),
              ElementsAre(Segments{{kMax - 1, 1}}));
}

TEST(LocalSegments, Errors) {
  const Mesh mesh{{2, 2}, {"dp", "tp"}};
  auto code = [&](const Extents& shape, const std::vector<MeshPlacement>& placements, const Extents& coordinate) {
    return CodeOf(LocalSegments(shape, mesh, placements, coordinate).status());
  };
  EXPECT_EQ(code({4}, {Shard{0}}, {0, 0}), "shape_mismatch");
  EXPECT_EQ(code({4}, {Shard{0}, Shard{0}}, {0}), "shape_mismatch");
  EXPECT_EQ(code({4}, {Shard{0}, Shard{1}}, {0, 0}), "shape_mismatch");
  EXPECT_EQ(code({4}, {StridedShard{-1, 2}, Shard{0}}, {0, 0}), "shape_mismatch");
  EXPECT_EQ(code({}, {Shard{0}, Replicate{}}, {0, 0}), "shape_mismatch");
  EXPECT_EQ(code({-4}, {Shard{0}, Shard{0}}, {0, 0}), "out_of_bounds");
  EXPECT_EQ(code({4}, {Replicate{}, Shard{0}}, {2, 0}), "out_of_bounds");
  EXPECT_EQ(code({4}, {Replicate{}, Shard{0}}, {0, -1}), "out_of_bounds");
  EXPECT_EQ(code({4}, {StridedShard{0, 0}, Shard{0}}, {0, 0}), "invalid_option");
  EXPECT_EQ(CodeOf(LocalSegments({4}, {{0}, {}}, {Shard{0}}, {0}).status()), "invalid_option");
  EXPECT_THAT(LocalSegments({4}, mesh, {Shard{0}, Shard{1}}, {0, 0}).status().message(), HasSubstr("dimension 1 (tp)"));
}

TEST(PiecesOf, WorkedExample) {
  const LocalPieces local = PiecesOf("w", {{{0, 2}, {4, 1}}, {{3, 5}}}).value();
  EXPECT_THAT(local.shape, ElementsAre(3, 5));
  ASSERT_EQ(local.pieces.size(), 2u);
  EXPECT_EQ(local.pieces[0].tensor, "w");
  EXPECT_THAT(local.pieces[0].tensor_offset, ElementsAre(0, 3));
  EXPECT_THAT(local.pieces[0].shape, ElementsAre(2, 5));
  EXPECT_THAT(local.pieces[0].buffer_offset, ElementsAre(0, 0));
  EXPECT_THAT(local.pieces[1].tensor_offset, ElementsAre(4, 3));
  EXPECT_THAT(local.pieces[1].shape, ElementsAre(1, 5));
  EXPECT_THAT(local.pieces[1].buffer_offset, ElementsAre(2, 0));
}

TEST(PiecesOf, OffsetScalarAndEmpty) {
  const LocalPieces shifted = PiecesOf("w", {{{0, 1}, {4, 1}}, {{1, 1}, {3, 1}}}, {10, 20}).value();
  ASSERT_EQ(shifted.pieces.size(), 4u);
  EXPECT_THAT(shifted.pieces[1].buffer_offset, ElementsAre(10, 21));
  EXPECT_THAT(shifted.pieces[2].buffer_offset, ElementsAre(11, 20));
  EXPECT_THAT(shifted.pieces[3].tensor_offset, ElementsAre(4, 3));
  const LocalPieces scalar = PiecesOf("step", {}).value();
  EXPECT_TRUE(scalar.shape.empty());
  ASSERT_EQ(scalar.pieces.size(), 1u);
  EXPECT_TRUE(scalar.pieces[0].shape.empty());
  const LocalPieces empty = PiecesOf("w", {{}, {{0, 17}}}).value();
  EXPECT_THAT(empty.shape, ElementsAre(0, 17));
  EXPECT_TRUE(empty.pieces.empty());
  EXPECT_EQ(CodeOf(PiecesOf("w", {{{0, 1}}}, {1, 2}).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(PiecesOf("w", {{{0, 1}}}, {-1}).status()), "out_of_bounds");
}

// Runs of consecutive indices along one axis of a local array, found by looking at the elements.
size_t RunsAlong(const oracle::Array& a, const Extents& global, size_t axis) {
  if (a.values.empty()) return 0;
  Index inner = 1;
  Index stride = 1;
  for (size_t i = axis + 1; i < global.size(); ++i) {
    inner *= a.shape[i];
    stride *= global[i];
  }
  size_t runs = 1;
  for (Index i = 1; i < a.shape[axis]; ++i) runs += a.values[i * inner] != a.values[(i - 1) * inner] + stride ? 1 : 0;
  return runs;
}

TEST(Layouts, ExhaustivelyEqualTheDefinitions) {
  CaseShare share("shapes x meshes x placements, all ranks each");
  const std::vector<Extents> shapes = SmallShapes();
  for (int axes = 1; axes <= 3; ++axes) {
    ForEachLayout(axes, {}, [&](const Layout& layout) {
      if (testing::Test::HasFailure()) return;
      for (const Extents& shape : shapes) {
        if (shape.size() != static_cast<size_t>(axes) || !share.Take()) continue;
        const TensorSpec tensor{"w", shape, Dtype::kBF16};
        const std::vector<Buffer> buffers = BuffersOf("w", tensor, layout);
        std::vector<int> holders(oracle::SizeOf(shape));
        for (const Buffer& buffer : buffers) {
          Extents coordinate;
          if (layout.mesh.extents.size() == 1) {
            coordinate = {buffer.rank};
          } else {
            coordinate = {buffer.rank / layout.mesh.extents[1], buffer.rank % layout.mesh.extents[1]};
          }
          const oracle::Array want = oracle::Local(oracle::Whole(shape), layout.mesh, layout.placements, coordinate);
          ASSERT_EQ(oracle::Expand(buffer.shape, buffer.pieces, {tensor}), want)
              << Describe(layout) << " rank " << buffer.rank << " of shape " << testing::PrintToString(shape);
          size_t boxes = 1;  // no two pieces can be joined
          for (size_t a = 0; a < shape.size(); ++a) boxes *= RunsAlong(want, shape, a);
          ASSERT_EQ(buffer.pieces.size(), boxes) << Describe(layout) << " rank " << buffer.rank;
          for (Index e : want.values) ++holders[e];
        }
        int replicas = 1;
        for (size_t d = 0; d < layout.placements.size(); ++d) {
          if (std::holds_alternative<Replicate>(layout.placements[d])) {
            replicas *= static_cast<int>(layout.mesh.extents[d]);
          }
        }
        for (int h : holders) ASSERT_EQ(h, replicas) << Describe(layout);
      }
    });
  }
}

TEST(Enumeration, CountsAndDistinctLayouts) {
  EXPECT_EQ(SmallMeshes().size(), 20u);
  EXPECT_EQ(SmallShapes().size(), 258u);
  EXPECT_EQ(SmallInterleavings().size(), 27u);
  for (const auto& [axes, count] : {std::pair{1, 728}, {2, 2444}, {3, 5168}}) {
    int seen = 0;
    ForEachLayout(axes, {}, [&](const Layout&) { ++seen; });
    EXPECT_EQ(seen, count);
  }
  // 2 rows on up to 2 ranks: one rank; two replicas; a row each; both on the first (pieces of 1, dealt to 2 parts).
  EXPECT_EQ(DistinctLayouts({2}, {.max_ranks = 2}).size(), 4u);
  // Everything that is handed out in any layout is handed out in a distinct one.
  auto parts = [](const Extents& shape, const Layout& layout) {
    std::vector<std::vector<Index>> result;
    for (const Buffer& b : BuffersOf("w", {"w", shape, Dtype::kBF16}, layout)) {
      result.push_back(oracle::Expand(b.shape, b.pieces, {{"w", shape, Dtype::kBF16}}).values);
    }
    std::sort(result.begin(), result.end());
    return result;
  };
  std::vector<std::vector<std::vector<Index>>> distinct;
  for (const Layout& layout : DistinctLayouts({5, 2})) distinct.push_back(parts({5, 2}, layout));
  std::sort(distinct.begin(), distinct.end());
  EXPECT_EQ(std::adjacent_find(distinct.begin(), distinct.end()), distinct.end());
  ForEachLayout(2, {}, [&](const Layout& layout) {
    EXPECT_TRUE(std::binary_search(distinct.begin(), distinct.end(), parts({5, 2}, layout))) << Describe(layout);
  });
}

}  // namespace
}  // namespace headrace
