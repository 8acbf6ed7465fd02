#include "loader/hold_path.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "loader/testing/naive_copy.h"

namespace headrace {
namespace {

using testing::VisitCopy;

// `count` runs out of rows `pitch` apart.
Copy Rows(Index run, Index count, Index pitch) {
  Copy c;
  c.run_bytes = run;
  if (count > 1) c.loops = {{count, pitch, run, run}};
  return c;
}

TEST(HoldPathTest, ShapeCountsTheRunsOfTheSource) {
  for (int seed = 0; seed < testing::Share(300); ++seed) {
    std::mt19937_64 random(seed);
    Copy c;
    c.run_bytes = 1 + random() % 20;
    Index source = c.run_bytes + random() % 2 * (random() % 9), destination = c.run_bytes;
    for (uint64_t i = random() % 4; i-- > 0;) {
      CopyLoop loop{static_cast<Index>(2 + random() % 5), source, destination, destination};
      source = source * loop.extent + random() % 2 * (random() % 9);
      destination *= loop.extent;
      if (random() % 3 == 0) loop.source_stride = -loop.source_stride;
      c.loops.insert(random() % 2 == 0 ? c.loops.begin() : c.loops.end(), loop);
    }
    std::set<Index> bytes;
    VisitCopy(c, [&](Index s, Index, Index) { bytes.insert(s); });
    Index runs = 0;
    for (Index b : bytes) runs += bytes.count(b - 1) == 0;
    const HoldShape shape = ShapeOf(c);
    EXPECT_EQ(shape.bytes, static_cast<Index>(bytes.size())) << seed;
    EXPECT_EQ(shape.runs, runs) << seed;
    EXPECT_EQ(shape.span_bytes, *bytes.rbegin() - *bytes.begin() + 1) << seed;
    EXPECT_EQ(shape.span_reads, 1);
  }
}

TEST(HoldPathTest, ShapeCutsSpansAtTheBuffer) {
  struct Case {
    Copy copy;
    int64_t bytes, reads;
  };
  for (const Case& c :
       {Case{Rows(kBounceBytes, 1, 0), kBounceBytes, 1}, Case{Rows(kBounceBytes + 1, 1, 0), kBounceBytes + 1, 2},
        // 64 rows of 1 KiB fit with the gaps between them: 63 * 2 KiB + 1 KiB.
        Case{Rows(1024, 128, 2048), 2 * (63 * 2048 + 1024), 2},
        Case{Rows(1024, 129, 2048), 2 * (63 * 2048 + 1024) + 1024, 3},
        Case{Rows(1000, 10, kBounceBytes), 10 * 1000, 10},
        Case{Rows(2 * kBounceBytes, 3, 3 * kBounceBytes), 6 * kBounceBytes, 6}}) {
    const HoldShape shape = ShapeOf(c.copy);
    EXPECT_EQ(shape.span_bytes, c.bytes);
    EXPECT_EQ(shape.span_reads, c.reads);
  }
}

TEST(HoldPathTest, ChoosesAsMeasured) {
  const auto packs = [](const Copy& copy, const HoldCosts& costs) {
    Plan plan;
    plan.copies = {copy};
    return SplitForHold(plan, {0, 0, 0, 1}, {true, true}, costs).reads.empty();
  };
  const HoldCosts cheap_reads{.read_byte_ns = 0.11};
  for (const Copy& copy : {Rows(256, 4096, 512), Rows(1280, 256, 2560), Rows(4096, 100, 32768)}) {
    EXPECT_TRUE(packs(copy, {})) << copy.run_bytes;
    EXPECT_TRUE(packs(copy, cheap_reads)) << copy.run_bytes;
  }
  for (const Copy& copy : {Rows(65536, 9, 131072), Rows(1 << 20, 1, 0)}) {
    EXPECT_TRUE(packs(copy, {})) << copy.run_bytes;
    EXPECT_FALSE(packs(copy, cheap_reads)) << copy.run_bytes;
  }
  // Where everything is read: gaps are read too while they are short.
  EXPECT_EQ(BestReadForm(ShapeOf(Rows(256, 4096, 512))), ReadForm::kSpans);
  EXPECT_EQ(BestReadForm(ShapeOf(Rows(1024, 1024, 2048))), ReadForm::kSpans);
  EXPECT_EQ(BestReadForm(ShapeOf(Rows(4096, 256, 8192))), ReadForm::kRuns);
  EXPECT_EQ(BestReadForm(ShapeOf(Rows(4096, 256, 32768))), ReadForm::kRuns);
  EXPECT_EQ(BestReadForm(ShapeOf(Rows(1 << 20, 1, 0))), ReadForm::kSpans);
}

TEST(HoldPathTest, EachCopyOfTheEdgeTakesOnePath) {
  Plan plan;
  std::mt19937_64 random(5);
  for (int i = 0; i < 100; ++i) {
    plan.copies.push_back(i % 3 == 0 ? Rows(1 << 20, 1, 0) : Rows(1 + random() % 2000, 2 + random() % 100, 4000));
    plan.copies.back().position = i;
  }
  const Edge edge{3, 4, 10, 80};
  for (const HoldMeans means : {HoldMeans{true, true}, HoldMeans{true, false}, HoldMeans{false, true}}) {
    const HoldSplit split = SplitForHold(plan, edge, means, {.read_byte_ns = 0.11});
    std::vector<size_t> all;
    for (const HoldSplit::Read& read : split.reads) all.push_back(read.copy);
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
    EXPECT_TRUE(std::is_sorted(split.packed_copies.begin(), split.packed_copies.end()));
    ASSERT_EQ(split.packed.copies.size(), split.packed_copies.size());
    for (size_t i = 0; i < split.packed_copies.size(); ++i) {
      EXPECT_EQ(split.packed.copies[i].position, plan.copies[split.packed_copies[i]].position);
      all.push_back(split.packed_copies[i]);
    }
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all.size(), edge.count);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], edge.first + i);
    ASSERT_EQ(split.packed.edges.size(), 1u);
    EXPECT_EQ(split.packed.edges[0].count, split.packed.copies.size());
    EXPECT_EQ(split.packed.edges[0].source_rank, 3);
    EXPECT_EQ(split.packed.edges[0].destination_rank, 4);
    EXPECT_EQ(split.reads.empty(), !means.read);
    EXPECT_EQ(split.packed.copies.empty(), !means.pack);
  }
}

}  // namespace
}  // namespace headrace
