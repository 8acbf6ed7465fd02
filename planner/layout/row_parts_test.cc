#include "planner/layout/row_parts.h"

#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/oracle.h"
#include "planner/layout/piece_array.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

constexpr Index kMax = std::numeric_limits<Index>::max();

oracle::Array Expand(const PieceArray& array, const std::vector<TensorSpec>& tensors) {
  const Buffer buffer = ToBuffer(0, "x", Dtype::kBF16, array).value();
  return oracle::Expand(buffer.shape, buffer.pieces, tensors);
}

TEST(RowParts, WorkedExamples) {
  EXPECT_THAT(CutParts({{4, 2}, {1, 3}}, 2, 0).value(), ElementsAre(Segment{0, 4}, Segment{8, 3}));
  EXPECT_THAT(CutParts({{4, 2}, {1, 3}}, 1, 0).value(), ElementsAre(Segment{0, 11}));
  EXPECT_THAT(ByGroups({{2, 2}, {2, 1}}, 2).value(),
              ElementsAre(Segment{0, 2}, Segment{4, 1}, Segment{2, 2}, Segment{5, 1}));
  EXPECT_THAT(ByParts({{2, 2}, {2, 1}}, 2, {0, 2}).value(),
              ElementsAre(Segment{0, 2}, Segment{3, 2}, Segment{2, 1}, Segment{5, 1}));
  EXPECT_EQ(TotalRows({{4, 2}, {1, 3}}).value(), 11);
}

TEST(RowParts, Errors) {
  EXPECT_EQ(CodeOf(TotalRows({{0, 2}}).status()), "invalid_option");
  EXPECT_EQ(CodeOf(TotalRows({{1, -2}}).status()), "invalid_option");
  EXPECT_EQ(CodeOf(TotalRows({{2, kMax}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(TotalRows({{1, kMax}, {1, 1}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(CutParts({{4, 2}, {3, 1}}, 2, 0).status()), "shape_mismatch");
  EXPECT_THAT(CutParts({{4, 2}, {3, 1}}, 2, 0).status().message(), ::testing::HasSubstr("TP 2 and 3 units of part 1"));
  EXPECT_EQ(CodeOf(CutParts({{4, 2}}, 2, 2).status()), "invalid_option");
  EXPECT_EQ(CodeOf(ByGroups({{4, 2}, {3, 1}}, 2).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(ByGroups({{4, 2}}, 0).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(ByGroups({{Index{1} << 23, 1}}, Index{1} << 23).status()), "out_of_memory");
  EXPECT_EQ(CodeOf(ByParts({{4, 2}}, 2, {1, 2}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(ByParts({{4, 2}}, 2, {-1, 1}).status()), "out_of_bounds");
}

// The rows of the fused matrix that a Mamba2 or gated-delta rank computes with: those of its own heads, and of the
// groups (key heads) that these heads read. One letter per part: 'h' by heads, 'g' by groups.
std::vector<Index> NaiveRows(const std::string& order, const std::vector<Index>& rows, Index heads, Index groups,
                             Index tp, Index rank) {
  std::vector<Index> held;
  Index first = 0;
  for (size_t p = 0; p < order.size(); ++p) {
    std::set<Index> units;
    for (Index head = 0; head < heads; ++head) {
      if (head * tp / heads != rank) continue;
      units.insert(order[p] == 'h' ? head : head * groups / heads);
    }
    for (Index unit : units) {
      for (Index r = 0; r < rows[p]; ++r) held.push_back(first + unit * rows[p] + r);
    }
    first += (order[p] == 'h' ? heads : groups) * rows[p];
  }
  return held;
}

// Every division up to 6 ranks: in_proj (z x B C dt), conv1d (x B C) and the gated delta net's q k v z b a.
TEST(CutParts, GroupsFollowTheHeadsThatReadThem) {
  CaseShare share("groups x heads x TP x fused matrix, all ranks each");
  const std::vector<std::pair<std::string, std::vector<Index>>> matrices = {
      {"hhggh", {3, 3, 2, 2, 1}},     {"hgg", {3, 2, 2}}, {"ghggh", {2, 1, 2, 1, 3}},
      {"gghhhh", {2, 2, 3, 3, 1, 1}}, {"ggh", {2, 2, 3}}, {"hh", {1, 1}}};
  for (Index groups = 1; groups <= 6; ++groups) {
    for (Index per_group = 1; per_group <= 6; ++per_group) {
      const Index heads = groups * per_group;
      for (Index tp = 1; tp <= 6; ++tp) {
        if (heads % tp != 0 || (groups % tp != 0 && tp % groups != 0)) continue;
        for (const auto& [order, rows] : matrices) {
          if (!share.Take()) continue;
          std::vector<RowPart> parts;
          for (size_t p = 0; p < order.size(); ++p) parts.push_back({order[p] == 'h' ? heads : groups, rows[p]});
          const TensorSpec t = {"in_proj", {TotalRows(parts).value(), 2}, Dtype::kBF16};
          for (Index rank = 0; rank < tp; ++rank) {
            ASSERT_EQ(Expand(Take(Whole(t), 0, CutParts(parts, tp, rank)), {t}),
                      oracle::Take(oracle::Whole(t.shape), 0, NaiveRows(order, rows, heads, groups, tp, rank)))
                << order << ", " << groups << " groups, " << heads << " heads, TP " << tp << " rank " << rank;
          }
        }
      }
    }
  }
}

// q, k, v, z as tensors of their own; one side holds them group by group, cut by groups or anywhere, the other side
// part by part, read from the interleaved tensor.
TEST(ByGroups, BothDirectionsExhaustively) {
  CaseShare share("groups x units per group x TP, all ranks each");
  for (Index groups = 1; groups <= 6; ++groups) {
    for (Index ratio = 1; ratio <= 3; ++ratio) {
      const std::vector<RowPart> parts = {{groups, 2}, {groups, 2}, {groups * ratio, 1}, {groups * ratio, 3}};
      std::vector<TensorSpec> tensors;
      std::vector<PieceArray> whole;
      for (size_t p = 0; p < parts.size(); ++p) {
        tensors.push_back({std::string(1, "qkvz"[p]), {parts[p].units * parts[p].rows, 2}, Dtype::kBF16});
        whole.push_back(Whole(tensors.back()));
      }
      // By definition: group by group, part by part, unit by unit, row by row.
      std::vector<oracle::Array> rows;
      for (Index g = 0; g < groups; ++g) {
        for (size_t p = 0; p < parts.size(); ++p) {
          const Index units = parts[p].units / groups;
          for (Index u = 0; u < units; ++u) {
            for (Index r = 0; r < parts[p].rows; ++r) {
              rows.push_back(oracle::Slice(oracle::Whole(tensors[p].shape, static_cast<Index>(p)), 0,
                                           (g * units + u) * parts[p].rows + r, 1));
            }
          }
        }
      }
      const oracle::Array interleaved = oracle::Concatenate(rows);
      const PieceArray by_groups = Take(Concatenate(whole, 0), 0, ByGroups(parts, groups));
      ASSERT_EQ(Expand(by_groups, tensors), interleaved);
      // The interleaved matrix as a tensor of its own, as Qwen3-Next's checkpoints have it.
      const TensorSpec fused = {"qkvz", interleaved.shape, Dtype::kBF16};
      for (Index tp = 1; tp <= 6; ++tp) {
        if (!share.Take()) continue;
        for (Index rank = 0; rank < tp; ++rank) {
          ASSERT_EQ(Expand(LocalPart(by_groups, {{tp}, {}}, {Shard{0}}, {rank}), tensors),
                    oracle::Local(interleaved, {{tp}, {}}, {Shard{0}}, {rank}));
          if (groups % tp != 0) continue;
          const Index mine = groups / tp;
          std::vector<Index> positions;
          Index first = 0;
          const Index per_group = interleaved.shape[0] / groups;
          for (const RowPart& part : parts) {
            for (Index g = rank * mine; g < (rank + 1) * mine; ++g) {
              for (Index r = 0; r < part.units / groups * part.rows; ++r) {
                positions.push_back(g * per_group + first + r);
              }
            }
            first += part.units / groups * part.rows;
          }
          ASSERT_EQ(Expand(Take(Whole(fused), 0, ByParts(parts, groups, {rank * mine, mine})), {fused}),
                    oracle::Take(oracle::Whole(fused.shape), 0, positions));
        }
      }
    }
  }
}

// MLA: kv_b is heads of [nope, v] rows; an engine that keeps the halves apart has W_UK [heads, nope, lora] and
// W_UV [heads, lora, v].
TEST(RowParts, MlaHalves) {
  const Index nope = 3, v = 2, lora = 4;
  for (Index heads = 1; heads <= 6; ++heads) {
    const TensorSpec kv_b = {"kv_b", {heads * (nope + v), lora}, Dtype::kBF16};
    const oracle::Array whole = oracle::Whole(kv_b.shape);
    for (Index tp = 1; tp <= 6; ++tp) {
      if (heads % tp != 0) continue;
      const Index mine = heads / tp;
      for (Index rank = 0; rank < tp; ++rank) {
        const PieceArray local =
            Take(Whole(kv_b, {heads, nope + v, lora}), 0, UnitsOf(heads, tp, rank, "heads").value());
        ASSERT_EQ(Expand(Take(Whole(kv_b), 0, CutParts({{heads, nope + v}}, tp, rank)), {kv_b}),
                  oracle::Slice(whole, 0, rank * mine * (nope + v), mine * (nope + v)));
        ASSERT_EQ(Expand(Take(local, 1, {0, nope}), {kv_b}), oracle::Build({mine, nope, lora}, [&](const Extents& at) {
                    return oracle::At(whole, {(rank * mine + at[0]) * (nope + v) + at[1], at[2]});
                  }));
        ASSERT_EQ(Expand(Transpose(Take(local, 1, {nope, v}), {0, 2, 1}), {kv_b}),
                  oracle::Build({mine, lora, v}, [&](const Extents& at) {
                    return oracle::At(whole, {(rank * mine + at[0]) * (nope + v) + nope + at[2], at[1]});
                  }));
      }
    }
  }
}

}  // namespace
}  // namespace headrace
