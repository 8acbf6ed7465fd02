#include "planner/layout/segments.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/oracle.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

std::vector<Index> Sizes(Index length, Index parts, ChunkRule rule) {
  std::vector<Index> sizes;
  for (Index p = 0; p < parts; ++p) sizes.push_back(ChunkOf(length, parts, p, rule).count);
  return sizes;
}

std::vector<Index> Indices(const Segments& segments) {
  std::vector<Index> indices;
  for (const Segment& s : segments) {
    for (Index i = 0; i < s.count; ++i) indices.push_back(s.first + i);
  }
  return indices;
}

bool Canonical(const Segments& segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].count < 1) return false;
    if (i > 0 && segments[i].first <= segments[i - 1].first + segments[i - 1].count) return false;
  }
  return true;
}

TEST(ChunkOf, KnownSizes) {
  EXPECT_THAT(Sizes(50, 4, ChunkRule::kCeil), ElementsAre(13, 13, 13, 11));
  EXPECT_THAT(Sizes(5, 4, ChunkRule::kCeil), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(Sizes(3, 4, ChunkRule::kCeil), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(Sizes(1, 2, ChunkRule::kCeil), ElementsAre(1, 0));
  EXPECT_THAT(Sizes(50, 4, ChunkRule::kEven), ElementsAre(13, 13, 12, 12));
  EXPECT_THAT(Sizes(5, 4, ChunkRule::kEven), ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(Sizes(3, 4, ChunkRule::kEven), ElementsAre(1, 1, 1, 0));
}

TEST(ChunkOf, HoldsWhatTheDefinitionsDealOut) {
  for (ChunkRule rule : {ChunkRule::kCeil, ChunkRule::kEven}) {
    for (Index length = 0; length <= 40; ++length) {
      for (Index parts = 1; parts <= 12; ++parts) {
        const std::vector<Index> owners = oracle::Owners(length, parts, rule);
        Index next = 0;
        for (Index part = 0; part < parts; ++part) {
          const Segment chunk = ChunkOf(length, parts, part, rule);
          ASSERT_EQ(chunk.first, next);
          for (Index i = 0; i < chunk.count; ++i) ASSERT_EQ(owners[chunk.first + i], part);
          next += chunk.count;
        }
        ASSERT_EQ(next, length);
      }
    }
  }
}

TEST(ChunkOf, DoesNotOverflow) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  for (ChunkRule rule : {ChunkRule::kCeil, ChunkRule::kEven}) {
    EXPECT_EQ(ChunkOf(kMax, 1, 0, rule), (Segment{0, kMax}));
    EXPECT_EQ(ChunkOf(kMax, kMax, kMax - 1, rule), (Segment{kMax - 1, 1}));
    EXPECT_EQ(ChunkOf(3, kMax, kMax - 1, rule), (Segment{3, 0}));
  }
  EXPECT_EQ(ChunkOf(kMax, kMax - 1, kMax - 2, ChunkRule::kCeil), (Segment{kMax, 0}));
  EXPECT_EQ(ChunkOf(kMax, kMax - 1, kMax - 2, ChunkRule::kEven), (Segment{kMax - 1, 1}));
}

TEST(StridedChunkOf, KnownValues) {
  EXPECT_THAT(StridedChunkOf(38, 2, 0, 2, ChunkRule::kCeil), ElementsAre(Segment{0, 10}, Segment{19, 10}));
  EXPECT_THAT(StridedChunkOf(38, 2, 1, 2, ChunkRule::kCeil), ElementsAre(Segment{10, 9}, Segment{29, 9}));
  // The first piece's last part and the second piece's first one touch: one segment.
  EXPECT_THAT(StridedChunkOf(4, 1, 0, 2, ChunkRule::kCeil), ElementsAre(Segment{0, 4}));
}

TEST(StridedChunkOf, HoldsWhatTheDefinitionSays) {
  for (ChunkRule rule : {ChunkRule::kCeil, ChunkRule::kEven}) {
    for (Index length = 0; length <= 20; ++length) {
      for (Index parts = 1; parts <= 6; ++parts) {
        for (Index split = 1; split <= 6; ++split) {
          for (Index part = 0; part < parts; ++part) {
            const Segments mine = StridedChunkOf(length, parts, part, split, rule);
            ASSERT_EQ(Indices(mine), oracle::PositionsOf(length, parts, part, split, rule));
            ASSERT_TRUE(Canonical(mine));
          }
        }
      }
    }
  }
}

TEST(Append, JoinsWhatContinues) {
  Segments s;
  Append(s, {3, 0});
  EXPECT_TRUE(s.empty());
  Append(s, {3, 2});
  Append(s, {5, 1});
  Append(s, {7, 1});
  EXPECT_THAT(s, ElementsAre(Segment{3, 3}, Segment{7, 1}));
  EXPECT_EQ(CountOf(s), 4);
}

TEST(Select, WorkedExample) {
  EXPECT_THAT(Select({{0, 10}, {19, 10}}, {{5, 10}}), ElementsAre(Segment{5, 5}, Segment{19, 5}));
  EXPECT_TRUE(Select({}, {}).empty());
}

// All subsets of 8 indices, and all subsets of their positions.
TEST(Select, IsIndexingExhaustively) {
  auto subset = [](unsigned bits) {
    Segments s;
    for (Index i = 0; i < 8; ++i) {
      if (bits >> i & 1) Append(s, {i, 1});
    }
    return s;
  };
  for (unsigned h = 0; h < 256; ++h) {
    const Segments held = subset(h);
    const std::vector<Index> indices = Indices(held);
    for (unsigned p = 0; p < 1u << indices.size(); ++p) {
      const Segments positions = subset(p);
      std::vector<Index> want;
      for (Index i : Indices(positions)) want.push_back(indices[i]);
      const Segments got = Select(held, positions);
      ASSERT_EQ(Indices(got), want);
      ASSERT_TRUE(Canonical(got));
    }
  }
}

}  // namespace
}  // namespace headrace
