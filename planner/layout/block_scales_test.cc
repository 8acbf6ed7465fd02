#include "planner/layout/block_scales.h"

#include <limits>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/oracle.h"
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

oracle::Array Expand(const PieceArray& array, const std::vector<TensorSpec>& tensors) {
  const Buffer buffer = ToBuffer(0, "x", Dtype::kBF16, array).value();
  return oracle::Expand(buffer.shape, buffer.pieces, tensors);
}

// Stacked experts' gate and up, cut by ETP at whole blocks, in every form: each element of the weight, at its place,
// has its own scale at the place of its block.
TEST(ScaledArray, EveryElementFindsItsScaleAtItsBlock) {
  const Index in = 5, experts = 3, block_in = 2;
  int cases = 0, refused = 0;
  for (Index out = 1; out <= 9; ++out) {
    for (Index block = 1; block <= 4; ++block) {
      const Index blocks_out = (out + block - 1) / block, blocks_in = (in + block_in - 1) / block_in;
      std::vector<TensorSpec> tensors;
      std::vector<ScaledArray> gates, ups;
      for (Index e = 0; e < experts; ++e) {
        for (const char* what : {"gate", "up"}) {
          const TensorSpec w = {what + std::to_string(e), {out, in}, Dtype::kF8E4M3};
          const TensorSpec s = {w.name + "_scale", {blocks_out, blocks_in}, Dtype::kF32};
          (what[0] == 'g' ? gates : ups).push_back(Scaled(w, &s, {block, block_in}));
          tensors.push_back(w);
          tensors.push_back(s);
        }
      }
      for (Index etp = 1; etp <= 3; ++etp) {
        for (Index rank = 0; rank < etp; ++rank) {
          const Segment cut = BlockChunkOf(out, block, etp, rank, ChunkRule::kCeil).value();
          const ScaledArray gate = Take(Stack(gates, 0), 1, cut), up = Take(Stack(ups, 0), 1, cut);
          for (const ScaledArray& array :
               {Concatenate({gate, up}, 1), Transpose(Concatenate({up, gate}, 1), {0, 2, 1}), Stack({gate, up}, 2),
                Squeeze(Take(up, 0, {1, 1}), 0), Take(gate, 0, Segments{{2, 1}, {0, 1}})}) {
            ++cases;
            if (!array.weight.status.ok()) {
              // Only where the first of the two ends in a partial block.
              ASSERT_EQ(CodeOf(array.weight.status), "misaligned_block") << array.weight.status;
              ASSERT_NE(cut.count % block, 0);
              ++refused;
              continue;
            }
            const oracle::Array weight = Expand(array.weight, tensors), scale = Expand(*array.scale, tensors);
            oracle::ForEachPosition(weight.shape, [&](const Extents& at) {
              const Index identity = oracle::At(weight, at);
              const Index tensor = identity >> 40, element = identity & ((Index{1} << 40) - 1);
              Extents block_at = at;
              for (size_t a = 0; a < at.size(); ++a) block_at[a] /= array.block[a];
              ASSERT_EQ(oracle::At(scale, block_at),
                        ((tensor + 1) << 40) + element / in / block * blocks_in + element % in / block_in);
            });
          }
        }
      }
    }
  }
  EXPECT_GT(cases, 5 * refused);
  EXPECT_GT(refused, 0);
}

TEST(ScaledArray, Errors) {
  const TensorSpec w = {"w", {5, 4}, Dtype::kF8E4M3}, s = {"s", {3, 2}, Dtype::kF32}, v = {"v", {5, 4}, Dtype::kBF16};
  const ScaledArray scaled = Scaled(w, &s, {2, 2}), plain = Scaled(v, nullptr, {});
  ASSERT_TRUE(scaled.weight.status.ok());
  auto code = [](const ScaledArray& array) { return std::string(CodeOf(array.weight.status)); };
  EXPECT_EQ(code(Scaled(w, &s, {0, 2})), "invalid_option");
  EXPECT_EQ(code(Scaled(w, &s, {2})), "shape_mismatch");
  EXPECT_EQ(code(Scaled(w, &s, {2, 4})), "shape_mismatch");
  EXPECT_EQ(code(Take(scaled, 0, {0, 1})), "misaligned_block");
  EXPECT_EQ(code(Take(scaled, 0, Segments{{4, 1}, {0, 2}})), "misaligned_block");
  EXPECT_EQ(code(Take(scaled, 2, {0, 1})), "shape_mismatch");
  EXPECT_EQ(code(Concatenate({scaled, scaled}, 0)), "misaligned_block");
  EXPECT_EQ(code(Concatenate({scaled, scaled}, 1)), "");
  EXPECT_EQ(code(Concatenate({scaled, plain}, 1)), "misaligned_block");
  EXPECT_EQ(code(Concatenate(std::vector<ScaledArray>{}, 0)), "shape_mismatch");
  EXPECT_EQ(code(Squeeze(Take(scaled, 0, {4, 1}), 0)), "misaligned_block");
  EXPECT_EQ(code(Unsqueeze(scaled, 3)), "shape_mismatch");
  EXPECT_EQ(code(Transpose(scaled, {0, 0})), "shape_mismatch");
  EXPECT_EQ(code(Take(plain, 0, {0, 1})), "");
  EXPECT_FALSE(Concatenate({plain, plain}, 0).scale.has_value());
}

}  // namespace
}  // namespace headrace
