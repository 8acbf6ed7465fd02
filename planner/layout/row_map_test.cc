#include "planner/layout/row_map.h"

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

constexpr Index kMax = std::numeric_limits<Index>::max();

RowRun RunOf(std::string tensor, Index first, Index count) {
  return {PieceKind::kTensor, std::move(tensor), first, count};
}

Extents CoordinateOf(const Mesh& mesh, Index rank) {
  if (mesh.extents.size() == 1) return {rank};
  return {rank / mesh.extents[1], rank % mesh.extents[1]};
}

TEST(GroupInterleavedRows, WorkedExample) {
  EXPECT_THAT(GroupInterleavedRows({{"q", 2}, {"k", 1}, {"v", 1}}, 2).value(),
              ElementsAre(RunOf("q", 0, 2), RunOf("k", 0, 1), RunOf("v", 0, 1), RunOf("q", 2, 2), RunOf("k", 1, 1),
                          RunOf("v", 1, 1)));
  EXPECT_THAT(GroupInterleavedRows({{"q", 2}}, 3).value(), ElementsAre(RunOf("q", 0, 6)));
  EXPECT_TRUE(GroupInterleavedRows({{"q", 0}}, kMax).value().empty());
  EXPECT_EQ(CodeOf(GroupInterleavedRows({{"q", -1}}, 2).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(GroupInterleavedRows({{"q", kMax}, {"k", 1}}, 1).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(GroupInterleavedRows({{"q", 1}}, -1).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(GroupInterleavedRows({{"q", kMax / 2}}, 3).status()), "out_of_bounds");
}

TEST(CutRows, WorkedExampleAndErrors) {
  const RowMap map = GroupInterleavedRows({{"q", 2}, {"k", 1}, {"v", 1}}, 2).value();
  EXPECT_THAT(CutRows(map, {{1, 4}}).value(),
              ElementsAre(RunOf("q", 1, 1), RunOf("k", 0, 1), RunOf("v", 0, 1), RunOf("q", 2, 1)));
  EXPECT_TRUE(CutRows(map, {}).value().empty());
  EXPECT_EQ(CodeOf(CutRows(map, {{7, 2}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(CutRows(map, {{kMax, 1}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(CutRows(map, {{-1, 1}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(CutRows(map, {{4, 1}, {0, 1}}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(RowCount({RunOf("q", -1, 2)}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(RowCount({RunOf("q", 0, -2)}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(RowCount({RunOf("q", kMax, 1)}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(RowCount({RunOf("q", 0, kMax), RunOf("k", 0, 1)}).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(FusedPieces(map, 2, {{{0, 8}}, {{0, 1}}}).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(FusedPieces(map, 0, {{{0, 9}}, {{0, 1}}}).status()), "out_of_bounds");
}

// 6 query and 2 KV heads of 4 over TP 4: the cuts fall inside heads.
TEST(FusedPieces, InterleavedQkvCutInsideHeads) {
  const std::vector<Buffer> buffers =
      FusedBuffersOf("linear_qkv.weight", GroupInterleavedRows({{"q", 12}, {"k", 4}, {"v", 4}}, 2).value(), {2},
                     Dtype::kBF16, {{{4}, {"tp"}}, {Shard{0}}});
  struct Want {
    std::string tensor;
    Index first, rows, at;
  };
  const std::vector<std::vector<Want>> want = {{{"q", 0, 10, 0}},
                                               {{"q", 10, 2, 0}, {"k", 0, 4, 2}, {"v", 0, 4, 6}},
                                               {{"q", 12, 10, 0}},
                                               {{"q", 22, 2, 0}, {"k", 4, 4, 2}, {"v", 4, 4, 6}}};
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_THAT(buffers[r].shape, ElementsAre(10, 2));
    ASSERT_EQ(buffers[r].pieces.size(), want[r].size());
    for (size_t i = 0; i < want[r].size(); ++i) {
      EXPECT_EQ(buffers[r].pieces[i].tensor, want[r][i].tensor);
      EXPECT_THAT(buffers[r].pieces[i].tensor_offset, ElementsAre(want[r][i].first, 0));
      EXPECT_THAT(buffers[r].pieces[i].shape, ElementsAre(want[r][i].rows, 2));
      EXPECT_THAT(buffers[r].pieces[i].buffer_offset, ElementsAre(want[r][i].at, 0));
    }
  }
}

// Vocabulary 10, padded to 12 by the trainer and to 16 by the engine, TP 2 on both sides.
TEST(FusedPieces, VocabularyPaddedDifferently) {
  auto padded = [](PieceKind kind, Index rows) {
    RowMap map = WholeRows("embed", 10);
    AppendRows(map, {PaddingRows(kind, rows - 10)});
    return FusedBuffersOf("embed", map, {2}, Dtype::kBF16, {{{2}, {"tp"}}, {Shard{0}}});
  };
  for (const auto& [kind, rows, first, mine] :
       {std::tuple{PieceKind::kKeep, 12, 6, 4}, std::tuple{PieceKind::kZero, 16, 8, 2}}) {
    const std::vector<Buffer> buffers = padded(kind, rows);
    ASSERT_EQ(buffers[0].pieces.size(), 1u);
    EXPECT_THAT(buffers[0].pieces[0].shape, ElementsAre(first, 2));
    ASSERT_EQ(buffers[1].pieces.size(), 2u);
    EXPECT_THAT(buffers[1].pieces[0].tensor_offset, ElementsAre(first, 0));
    EXPECT_THAT(buffers[1].pieces[0].shape, ElementsAre(mine, 2));
    EXPECT_EQ(buffers[1].pieces[1].kind, kind);
    EXPECT_TRUE(buffers[1].pieces[1].tensor.empty());
    EXPECT_TRUE(buffers[1].pieces[1].tensor_offset.empty());
    EXPECT_THAT(buffers[1].pieces[1].shape, ElementsAre(first - mine, 2));
    EXPECT_THAT(buffers[1].pieces[1].buffer_offset, ElementsAre(mine, 0));
  }
}

// The fused axis need not be the first one; padding is one piece though the columns are cut.
TEST(FusedPieces, AlongTheSecondAxis) {
  RowMap map = WholeRows("a", 2);
  AppendRows(map, {RunOf("b", 0, 1), PaddingRows(PieceKind::kZero, 1)});
  const std::vector<Segments> segments = {{{0, 1}, {2, 1}}, {{1, 3}}};
  const LocalPieces local = FusedPieces(map, 1, segments).value();
  const std::vector<TensorSpec> tensors = {{"a", {3, 2}, Dtype::kBF16}, {"b", {3, 1}, Dtype::kBF16}};
  const Index b = Index{1} << 40;
  EXPECT_THAT(oracle::Expand(local.shape, local.pieces, tensors).values,
              ElementsAre(1, b, oracle::kZeroFill, 5, b + 2, oracle::kZeroFill));
  EXPECT_EQ(local.pieces.size(), 5u);
}

// Group-interleaved QKV of every small group size, cut over every mesh by every placement of both axes.
TEST(FusedPieces, InterleavedQkvExhaustively) {
  CaseShare share("interleavings x columns x layouts, all ranks each");
  for (const Interleaving& in : SmallInterleavings()) {
    const RowMap map = RowsOf(in);
    for (const Extents& columns : {Extents{}, Extents{0}, Extents{1}, Extents{3}}) {
      const std::vector<TensorSpec> tensors = TensorsOf(in, columns, Dtype::kBF16);
      // By the definition: group by group, head by head, row by row.
      std::vector<oracle::Array> rows;
      auto add_head = [&](int t, Index head) {
        for (Index d = 0; d < in.head_dim; ++d) {
          rows.push_back(oracle::Take(oracle::Whole(tensors[t].shape, t), 0, {head * in.head_dim + d}));
        }
      };
      for (Index g = 0; g < in.groups; ++g) {
        for (Index h = 0; h < in.query_heads; ++h) add_head(0, g * in.query_heads + h);
        add_head(1, g);
        add_head(2, g);
      }
      const oracle::Array whole = oracle::Concatenate(rows);
      ForEachLayout(static_cast<int>(whole.shape.size()), {}, [&](const Layout& layout) {
        if (testing::Test::HasFailure() || !share.Take()) return;
        for (const Buffer& buffer : FusedBuffersOf("qkv", map, columns, Dtype::kBF16, layout)) {
          ASSERT_EQ(oracle::Expand(buffer.shape, buffer.pieces, tensors),
                    oracle::Local(whole, layout.mesh, layout.placements, CoordinateOf(layout.mesh, buffer.rank)))
              << Describe(layout) << " rank " << buffer.rank << ", " << in.query_heads << " query heads, " << in.groups
              << " groups of head_dim " << in.head_dim;
        }
      });
    }
  }
}

// Padded vocabularies of every small size, cut over every mesh by every placement.
TEST(FusedPieces, PaddingExhaustively) {
  CaseShare share("vocabularies x padding x layouts, all ranks each");
  for (Index vocab = 0; vocab <= 5; ++vocab) {
    for (Index pad = 0; pad <= 5; ++pad) {
      for (PieceKind kind : {PieceKind::kZero, PieceKind::kKeep}) {
        const TensorSpec tensor{"embed", {vocab, 2}, Dtype::kBF16};
        RowMap map = WholeRows("embed", vocab);
        AppendRows(map, {PaddingRows(kind, pad)});
        oracle::Array whole = oracle::Whole(tensor.shape);
        whole.shape[0] += pad;
        whole.values.resize(oracle::SizeOf(whole.shape),
                            kind == PieceKind::kZero ? oracle::kZeroFill : oracle::kKeepFill);
        ForEachLayout(2, {}, [&](const Layout& layout) {
          if (testing::Test::HasFailure() || !share.Take()) return;
          for (const Buffer& buffer : FusedBuffersOf("embed", map, {2}, Dtype::kBF16, layout)) {
            ASSERT_EQ(oracle::Expand(buffer.shape, buffer.pieces, {tensor}),
                      oracle::Local(whole, layout.mesh, layout.placements, CoordinateOf(layout.mesh, buffer.rank)))
                << Describe(layout) << " rank " << buffer.rank << ", vocabulary " << vocab << " + " << pad;
          }
        });
      }
    }
  }
}

// Two components, each cut on its own: gate_up.
TEST(CutRows, ComponentsCutOnTheirOwnExhaustively) {
  CaseShare share("gate x up x TP x rule, all ranks each");
  for (Index gate = 0; gate <= 7; ++gate) {
    for (Index up = 0; up <= 7; ++up) {
      for (Index tp = 1; tp <= 6; ++tp) {
        for (ChunkRule rule : {ChunkRule::kCeil, ChunkRule::kEven}) {
          if (!share.Take()) continue;
          const std::vector<TensorSpec> tensors = {{"gate", {gate, 2}, Dtype::kBF16}, {"up", {up, 2}, Dtype::kBF16}};
          for (Index rank = 0; rank < tp; ++rank) {
            RowMap map = CutRows(WholeRows("gate", gate), {ChunkOf(gate, tp, rank, rule)}).value();
            AppendRows(map, CutRows(WholeRows("up", up), {ChunkOf(up, tp, rank, rule)}).value());
            Segments rows;
            Append(rows, {0, RowCount(map).value()});
            const LocalPieces local = FusedPieces(map, 0, {rows, {{0, 2}}}).value();
            auto part = [&](int t) {
              return oracle::Local(oracle::Whole(tensors[t].shape, t), {{tp}, {}}, {Shard{0, rule}}, {rank});
            };
            ASSERT_EQ(oracle::Expand(local.shape, local.pieces, tensors), oracle::Concatenate({part(0), part(1)}))
                << gate << " gate and " << up << " up rows over TP " << tp << " rank " << rank;
          }
        }
      }
    }
  }
}

TEST(KvHeadsOf, WorkedExamplesAndErrors) {
  EXPECT_EQ(KvHeadsOf(8, 2, 1).value(), (Segment{4, 4}));
  EXPECT_EQ(KvHeadsOf(2, 4, 1).value(), (Segment{0, 1}));
  EXPECT_EQ(KvHeadsOf(2, 4, 2).value(), (Segment{1, 1}));
  EXPECT_EQ(CodeOf(KvHeadsOf(3, 2, 0).status()), "shape_mismatch");
  EXPECT_THAT(KvHeadsOf(2, 3, 0).status().message(), HasSubstr("TP 3 and 2 KV heads"));
  EXPECT_EQ(CodeOf(KvHeadsOf(0, 2, 0).status()), "invalid_option");
  EXPECT_EQ(CodeOf(KvHeadsOf(2, 2, 2).status()), "invalid_option");
  EXPECT_EQ(CodeOf(KvHeadsOf(2, 0, 0).status()), "invalid_option");
}

// A rank holds the KV heads that its query heads attend with, and no others.
TEST(KvHeadsOf, AreThoseOfTheQueryHeads) {
  for (Index kv = 1; kv <= 6; ++kv) {
    for (Index per_group = 1; per_group <= 6; ++per_group) {
      for (Index tp = 1; tp <= 36; ++tp) {
        if (kv * per_group % tp != 0 || (kv % tp != 0 && tp % kv != 0)) continue;
        const Index mine = kv * per_group / tp;
        for (Index rank = 0; rank < tp; ++rank) {
          const Segment heads = KvHeadsOf(kv, tp, rank).value();
          EXPECT_EQ(heads.first, rank * mine / per_group);
          EXPECT_EQ(heads.first + heads.count - 1, (rank * mine + mine - 1) / per_group);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
