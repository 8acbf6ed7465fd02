#include "planner/plan.h"

#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "planner/balance.h"
#include "planner/digest.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

// Plans and checks every byte.
Plan MustPlan(const Manifest& m) {
  absl::StatusOr<Plan> plan = BuildPlan(m);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  EXPECT_EQ(CheckPlan(m, *plan), "");
  return *std::move(plan);
}

TEST(Plan, AWholeTensorIsOneRun) {
  const Plan plan = MustPlan(WholeManifest({{"w", {3, 4, 5}, Dtype::kBF16}}));
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].run_bytes, 120);
  EXPECT_TRUE(plan.copies[0].loops.empty());
  ASSERT_EQ(plan.edges.size(), 1u);
  EXPECT_EQ(plan.edges[0].count, 1u);
}

TEST(Plan, ARowParallelSliceIsOneStridedCopy) {
  Manifest m = WholeManifest({{"w", {1000, 64}, Dtype::kBF16}});
  m.destination.clear();
  for (Index r = 0; r < 2; ++r) {
    m.destination.push_back(
        BufferOf(r, "w", Dtype::kBF16, {1000, 32}, {PieceOf("w", {0, 32 * r}, {1000, 32}, {0, 0})}));
  }
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.copies.size(), 2u);
  EXPECT_EQ(plan.copies[1].run_bytes, 64);
  ASSERT_EQ(plan.copies[1].loops.size(), 1u);
  EXPECT_EQ(plan.copies[1].loops[0], (CopyLoop{1000, 128, 64, 128}));
  EXPECT_EQ(plan.copies[1].source_offset, 64);
}

TEST(Plan, FlatShardsThatCrossRowsAreOneRunEach) {
  Manifest m = WholeManifest({{"w", {5, 3}, Dtype::kF32}});
  m.source.clear();
  const Index cuts[] = {0, 4, 11, 15};
  for (int64_t r = 0; r < 3; ++r) {
    const Index count = cuts[r + 1] - cuts[r];
    m.source.push_back(BufferOf(r, "flat", Dtype::kF32, {count}, {ViewPiece("w", {15}, {cuts[r]}, {count}, {0})}));
  }
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.copies.size(), 3u);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(plan.copies[r].run_bytes, (cuts[r + 1] - cuts[r]) * 4);
    EXPECT_TRUE(plan.copies[r].loops.empty());
  }
}

TEST(Plan, AdjacentPiecesOfOneRankJoin) {
  Manifest m = WholeManifest({{"w", {8, 2}, Dtype::kU8}});
  m.source[0].pieces.clear();
  for (Index r = 0; r < 8; ++r) m.source[0].pieces.push_back(PieceOf("w", {r, 0}, {1, 2}, {r, 0}));
  EXPECT_EQ(MustPlan(m).copies.size(), 1u);
}

TEST(Plan, ColumnMajorBothSidesKeepsElementsApart) {
  Manifest m = WholeManifest({{"w", {4, 3}, Dtype::kBF16}});
  m.source[0].strides = m.destination[0].strides = {1, 4};
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].run_bytes, 2);
  EXPECT_EQ(plan.copies[0].bytes(), 24);
}

TEST(Plan, ATransposedPieceIsOneCopy) {
  Manifest m = WholeManifest({{"w", {4, 3}, Dtype::kBF16}});
  m.destination[0] = BufferOf(0, "t", Dtype::kBF16, {3, 4}, {PieceOf("w", {0, 0}, {4, 3}, {0, 0})});
  m.destination[0].pieces[0].axes = {1, 0};
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.copies[0].run_bytes, 2);
  EXPECT_EQ(plan.copies[0].loops.size(), 2u);
}

TEST(Plan, MoreThanFourLoopsAreCut) {
  const TensorSpec t{"w", {2, 3, 2, 3, 2, 2}, Dtype::kU8};
  Manifest m = WholeManifest({t});
  // The axes backwards: no two of them join.
  m.destination[0].strides = {1, 2, 6, 12, 36, 72};
  const Plan plan = MustPlan(m);
  ASSERT_GT(plan.copies.size(), 1u);
  for (const Copy& c : plan.copies) EXPECT_LE(c.loops.size(), kMaxCopyLoops);
}

TEST(Plan, MoreThanFourLoopsOfZeros) {
  Manifest m = WholeManifest({{"w", {1}, Dtype::kU8}});
  m.destination.push_back(
      BufferOf(0, "z", Dtype::kU8, {2, 3, 2, 3, 2, 2}, {FillOf(PieceKind::kZero, {2, 3, 2, 3, 2, 2}, Extents(6, 0))}));
  m.destination.back().strides = {360, 110, 50, 14, 6, 2};
  const Plan plan = MustPlan(m);
  ASSERT_GT(plan.zero_fills.size(), 1u);
  for (const ZeroFill& z : plan.zero_fills) EXPECT_LE(z.loops.size(), kMaxCopyLoops);
}

TEST(Plan, ScalarsAndEmptyTensors) {
  const Manifest m = WholeManifest({{"s", {}, Dtype::kF32}, {"e", {0, 4}, Dtype::kF32}, {"o", {1, 1}, Dtype::kF64}});
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.copies.size(), 2u);
  EXPECT_EQ(plan.copies[0].run_bytes, 4);
  EXPECT_EQ(plan.copies[1].run_bytes, 8);
  EXPECT_EQ(plan.decisions.size(), 3u);
}

TEST(Plan, NothingAtAll) {
  const Plan plan = MustPlan(Manifest{});
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_TRUE(plan.edges.empty());
}

TEST(Plan, SubBytePiecesAreCountedInBytes) {
  Manifest m = WholeManifest({{"f4", {4, 8}, Dtype::kF4}, {"f6", {2, 8}, Dtype::kF6E3M2}});
  m.destination.clear();
  for (Index r = 0; r < 2; ++r) {
    m.destination.push_back(BufferOf(r, "f4", Dtype::kF4, {4, 4}, {PieceOf("f4", {0, 4 * r}, {4, 4}, {0, 0})}));
    m.destination.push_back(BufferOf(r, "f6", Dtype::kF6E3M2, {2, 4}, {PieceOf("f6", {0, 4 * r}, {2, 4}, {0, 0})}));
  }
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.copies.size(), 4u);
  EXPECT_EQ(plan.copies[0].run_bytes, 2);
  EXPECT_EQ(plan.copies[1].run_bytes, 3);
}

// Two F4 elements of a flat shard may lie in two rows of the tensor: bytes are of the view, not of the shape.
TEST(Plan, SubByteFlatShardsOfAnOddShape) {
  Manifest m;
  m.tensors = {{"f", {2, 3}, Dtype::kF4}, {"g", {4, 3}, Dtype::kF6E2M3}};
  m.source = {BufferOf(0, "f", Dtype::kF4, {6}, {ViewPiece("f", {6}, {0}, {6}, {0})}),
              BufferOf(0, "g", Dtype::kF6E2M3, {12}, {ViewPiece("g", {12}, {0}, {12}, {0})})};
  for (Index r = 0; r < 3; ++r) {
    m.destination.push_back(BufferOf(r, "f", Dtype::kF4, {2}, {ViewPiece("f", {6}, {2 * r}, {2}, {0})}));
    m.destination.push_back(BufferOf(r, "g", Dtype::kF6E2M3, {4}, {ViewPiece("g", {12}, {4 * r}, {4}, {0})}));
  }
  MustPlan(m);
}

TEST(Plan, ReplicasShareTheLoad) {
  Manifest m;
  for (int t = 0; t < 12; ++t) {
    m.tensors.push_back({"w" + std::to_string(t), {10}, Dtype::kU8});
    for (int64_t r = 0; r < 4; ++r) m.source.push_back(WholeBuffer(r, m.tensors.back()));
    m.destination.push_back(WholeBuffer(0, m.tensors.back()));
  }
  const Plan plan = MustPlan(m);
  EXPECT_EQ(plan.edges.size(), 4u);
  const PlanFigures f = Measure(m, plan);
  EXPECT_EQ(f.busiest_sender_bytes, 30);
  EXPECT_DOUBLE_EQ(f.sender_max_over_mean, 1.0);
}

// One replicated tensor is sent by all replicas, in stripes of whole rows or, of experts, of whole rows of each.
TEST(Plan, OneHugeTensorIsStripedOverItsReplicas) {
  for (const Extents& shape : {Extents{600, 512}, Extents{8, 600, 64}, Extents{2, Index{1} << 17}}) {
    Manifest m = WholeManifest({{"w", shape, Dtype::kBF16}});
    for (int64_t r = 1; r < 5; ++r) {
      m.source.push_back(m.source[0]);
      m.source.back().rank = r;
    }
    const Plan plan = MustPlan(m);
    EXPECT_EQ(plan.copies.size(), 5u);
    EXPECT_LE(Measure(m, plan).sender_max_over_mean, 1.02);
    for (const Copy& c : plan.copies) {
      EXPECT_GE(c.bytes(), kMinStripeBytes);
      EXPECT_GE(c.run_bytes, shape.size() == 3 ? 128 : 1024);
    }
  }
}

TEST(Plan, StripesOfPackedElementsAreWholeBytes) {
  for (const Extents& shape : {Extents{(Index{1} << 19) + 4}, Extents{3, (Index{1} << 17) + 4}}) {
    Manifest m = WholeManifest({{"f", shape, Dtype::kF4}, {"g", shape, Dtype::kF6E2M3}});
    for (int64_t r = 1; r < 3; ++r) {
      for (int b = 0; b < 2; ++b) {
        m.source.push_back(m.source[b]);
        m.source.back().rank = r;
      }
    }
    EXPECT_GT(MustPlan(m).copies.size(), 3u);
  }
}

TEST(Plan, FiguresCountTensorBytesOnly) {
  Manifest m = WholeManifest({{"w", {4, 2}, Dtype::kBF16}});
  m.source[0].dtype = Dtype::kF32;
  m.source[0].convert_rne = true;
  m.destination[0].shape = {6, 2};
  m.destination[0].pieces.push_back(FillOf(PieceKind::kZero, {1, 2}, {4, 0}));
  m.destination[0].pieces.push_back(FillOf(PieceKind::kKeep, {1, 2}, {5, 0}));
  const Plan plan = MustPlan(m);
  const PlanFigures f = Measure(m, plan);
  EXPECT_EQ(f.needed_bytes, 16);
  EXPECT_EQ(f.wire_bytes, 16);
  EXPECT_EQ(f.zero_bytes, 4);
  EXPECT_EQ(f.reshard_bytes, 16);
  EXPECT_EQ(f.direct_bytes, 16);
  EXPECT_EQ(f.broadcast_bytes + f.loader_bytes, 0);
}

TEST(Plan, BeyondTwoToTheThirtyOne) {
  Manifest m = WholeManifest({{"w", {65536, 40000}, Dtype::kU8}});
  m.destination.clear();
  for (Index r = 0; r < 2; ++r) {
    m.destination.push_back(
        BufferOf(r, "w", Dtype::kU8, {65536, 20000}, {PieceOf("w", {0, 20000 * r}, {65536, 20000}, {0, 0})}));
  }
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->copies.size(), 2u);
  EXPECT_EQ(plan->copies[0].bytes(), 65536LL * 20000);
}

TEST(Plan, RunsWithoutNumberAreNoTrouble) {
  Manifest m = WholeManifest({{"w", {Index{1} << 40, 2}, Dtype::kU8}});
  m.destination[0].strides = {3, 1};
  EXPECT_TRUE(BuildPlan(m).ok()) << BuildPlan(m).status();
  // Interleaved storages.
  m = WholeManifest({{"v", {Index{1} << 40, 2}, Dtype::kU8}, {"w", {Index{1} << 40, 2}, Dtype::kU8}});
  for (int i = 0; i < 2; ++i) {
    m.destination[i].strides = {4, 1};
    m.destination[i].storage = Storage{"m", 2 * i};
  }
  EXPECT_TRUE(BuildPlan(m).ok()) << BuildPlan(m).status();
}

TEST(Plan, AViewThatCutsIntoMillionsOfBoxesIsRefusedAtOnce) {
  constexpr Index kLong = Index{1} << 40;
  Manifest m = WholeManifest({{"w", {3, kLong}, Dtype::kU8}});
  m.destination[0] =
      BufferOf(0, "w0", Dtype::kU8, {kLong, 1}, {ViewPiece("w", {kLong, 3}, {0, 0}, {kLong, 1}, {0, 0})});
  const auto plan = BuildPlan(m);
  EXPECT_TRUE(HasCode(plan.status(), ErrorCode::kOutOfMemory)) << plan.status();
  EXPECT_NE(plan.status().message().find("\"w0\""), absl::string_view::npos) << plan.status();
}

TEST(Plan, SumsOverBuffersSaturate) {
  Manifest m = WholeManifest({{"w", {Index{1} << 59}, Dtype::kU8}});
  for (int64_t r = 1; r < 17; ++r) {
    m.destination.push_back(m.destination[0]);
    m.destination.back().rank = r;
  }
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Measure(m, *plan).needed_bytes, INT64_MAX);
  EXPECT_EQ(Measure(m, *plan).wire_bytes, INT64_MAX);
}

TEST(Plan, RandomManifestsAreExactAndDeterministic) {
  const uint64_t seed = 500000;
  CaseShare share("random manifests", 1, 10);
  for (uint64_t n = 0; n < 4000; ++n) {
    if (!share.Take()) continue;
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    const Manifest m = RandomManifest(random);
    const Plan plan = MustPlan(m);
    ASSERT_EQ(CanonicalText(m, plan), CanonicalText(m, *BuildPlan(m)));
    const PlanFigures f = Measure(m, plan);
    ASSERT_EQ(f.needed_bytes, f.wire_bytes);
    ASSERT_EQ(f.streams + f.host_wire_bytes + f.distinct_host_bytes, 0);
    for (size_t i = 1; i < plan.edges.size(); ++i) {
      const Edge &a = plan.edges[i - 1], &b = plan.edges[i];
      ASSERT_LT(std::make_pair(a.destination_rank, a.source_rank), std::make_pair(b.destination_rank, b.source_rank));
    }
    if (HasFailure()) return;
  }
  std::cout << "4000 random manifests from seed " << seed << "\n";
}

}  // namespace
}  // namespace headrace
