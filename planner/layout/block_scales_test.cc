#include "planner/layout/block_scales.h"

#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Index kMax = std::numeric_limits<Index>::max();

TEST(BlockScales, WorkedExamplesAndErrors) {
  EXPECT_EQ(BlockChunkOf(300, 128, 2, 0, ChunkRule::kCeil).value(), (Segment{0, 256}));
  EXPECT_EQ(BlockChunkOf(300, 128, 2, 1, ChunkRule::kCeil).value(), (Segment{256, 44}));
  EXPECT_EQ(BlockChunkOf(300, 128, 4, 3, ChunkRule::kCeil).value(), (Segment{300, 0}));
  EXPECT_EQ(BlockChunkOf(kMax, kMax - 1, 1, 0, ChunkRule::kEven).value(), (Segment{0, kMax}));
  EXPECT_EQ(BlockChunkOf(kMax, kMax - 1, 2, 1, ChunkRule::kEven).value(), (Segment{kMax - 1, 1}));
  EXPECT_EQ(CodeOf(BlockChunkOf(-1, 1, 1, 0, ChunkRule::kEven).status()), "invalid_option");
  EXPECT_EQ(CodeOf(BlockChunkOf(1, 0, 1, 0, ChunkRule::kEven).status()), "invalid_option");
  EXPECT_EQ(CodeOf(BlockChunkOf(1, 1, 1, 1, ChunkRule::kEven).status()), "invalid_option");
  EXPECT_THAT(BlocksOf({{256, 44}}, 300, 128).value(), ElementsAre(Segment{2, 1}));
  EXPECT_THAT(BlocksOf({{0, 128}, {256, 44}}, 300, 128).value(), ElementsAre(Segment{0, 1}, Segment{2, 1}));
  EXPECT_THAT(BlocksOf({}, 300, 128).value(), IsEmpty());
  EXPECT_THAT(BlocksOf({{300, 0}}, 300, 128).value(), IsEmpty());
  EXPECT_EQ(CodeOf(BlocksOf({{0, 100}}, 300, 128).status()), "misaligned_block");
  EXPECT_THAT(BlocksOf({{0, 100}}, 300, 128).status().message(), HasSubstr("0 + 100 of 300 cut a scale block of 128"));
  EXPECT_EQ(CodeOf(BlocksOf({{100, 200}}, 300, 128).status()), "misaligned_block");
  EXPECT_EQ(CodeOf(BlocksOf({{256, 45}}, 300, 128).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(BlocksOf({{-128, 128}}, 300, 128).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(BlocksOf({}, 300, 0).status()), "invalid_option");
}

// Blocks are whole, each with its scale, and all are dealt out.
TEST(BlockScales, EveryElementIsWithItsScale) {
  for (Index length = 0; length <= 20; ++length) {
    for (Index block = 1; block <= 7; ++block) {
      for (Index parts = 1; parts <= 6; ++parts) {
        for (ChunkRule rule : {ChunkRule::kCeil, ChunkRule::kEven}) {
          Index next = 0;
          for (Index part = 0; part < parts; ++part) {
            const Segment mine = BlockChunkOf(length, block, parts, part, rule).value();
            std::set<Index> want;  // the scale of each element
            for (Index i = 0; i < mine.count; ++i) {
              ASSERT_EQ(mine.first + i, next++);
              want.insert((mine.first + i) / block);
            }
            std::set<Index> got;
            const Segments blocks = BlocksOf({mine}, length, block).value();
            for (const Segment& s : blocks) {
              for (Index i = 0; i < s.count; ++i) got.insert(s.first + i);
            }
            ASSERT_EQ(got, want);
          }
          ASSERT_EQ(next, length);
        }
      }
    }
  }
}

// Every run of every small axis: accepted exactly if no block is cut.
TEST(BlocksOf, RefusesExactlyWhatCutsABlock) {
  for (Index length = 1; length <= 12; ++length) {
    for (Index block = 1; block <= 5; ++block) {
      for (Index first = 0; first < length; ++first) {
        for (Index count = 1; first + count <= length; ++count) {
          bool whole = true;
          for (Index i = 0; i < length; ++i) {
            for (Index j = 0; j < length; ++j) {
              const bool i_in = i >= first && i < first + count, j_in = j >= first && j < first + count;
              whole = whole && (i / block != j / block || i_in == j_in);
            }
          }
          EXPECT_EQ(BlocksOf({{first, count}}, length, block).ok(), whole);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
