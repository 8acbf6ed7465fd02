#include "planner/layout/flat.h"

#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/oracle.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Index kMax = std::numeric_limits<Index>::max();

oracle::Array Expand(const PieceArray& array, const std::vector<TensorSpec>& tensors) {
  const Buffer buffer = ToBuffer(0, "x", Dtype::kBF16, array).value();
  return oracle::Expand(buffer.shape, buffer.pieces, tensors);
}

TEST(Flatten, AWholeTensorIsOneRun) {
  const TensorSpec t = {"t", {2, 3, 4}, Dtype::kBF16};
  const Buffer flat = ToBuffer(0, "x", Dtype::kBF16, Take(Flatten(Whole(t)), 0, {5, 13})).value();
  ASSERT_EQ(flat.pieces.size(), 1u);
  EXPECT_THAT(*flat.pieces[0].view, ElementsAre(24));
  EXPECT_THAT(flat.pieces[0].tensor_offset, ElementsAre(5));
  EXPECT_THAT(flat.pieces[0].shape, ElementsAre(13));
  EXPECT_EQ(Flatten(Take(Whole(t), 0, {1, 1})).parts.size(), 1u);                    // rows
  EXPECT_EQ(Flatten(Take(Whole(t), 2, {1, 2})).parts.size(), 6u);                    // columns: a run per row
  EXPECT_EQ(Flatten(Take(Whole(t), 0, Segments{{0, 1}, {1, 1}})).parts.size(), 1u);  // joined again
  EXPECT_EQ(Flatten(Transpose(Whole(t), {2, 1, 0})).parts.size(), 24u);              // a run per element
  EXPECT_EQ(Flatten(Transpose(Whole({"u", {1, 3}, Dtype::kBF16}), {1, 0})).parts.size(), 1u);
  EXPECT_THAT(Flatten(Whole({"s", {}, Dtype::kBF16})).shape, ElementsAre(1));
  EXPECT_THAT(Flatten(Whole({"e", {3, 0}, Dtype::kBF16})).parts, IsEmpty());
}

TEST(FlatBucket, WorkedExamplesAndErrors) {
  auto flat = [](Index a, Index b) {
    const std::vector<TensorSpec> tensors = {{"a", {a}, Dtype::kBF16}, {"b", {b}, Dtype::kBF16}};
    return Expand(FlatBucket({Whole(tensors[0]), Whole(tensors[1])}, 2, 4), tensors).values;
  };
  const Index b = Index{1} << 40;
  EXPECT_THAT(flat(3, 4), ElementsAre(0, 1, 2, oracle::kKeepFill, b, b + 1, b + 2, b + 3));
  EXPECT_THAT(flat(5, 1), ElementsAre(0, 1, 2, 3, 4, oracle::kKeepFill, b, oracle::kKeepFill));
  const TensorSpec t = {"t", {4, 3}, Dtype::kBF16};
  EXPECT_EQ(CodeOf(FlatBucket({Whole(t)}, 0, 1).status), "invalid_option");
  EXPECT_EQ(CodeOf(FlatBucket({Take(Whole(t), 0, {4, 1})}, 1, 1).status), "out_of_bounds");
  EXPECT_EQ(CodeOf(FlatShard(Whole(t), 2, 0).status), "shape_mismatch");
  EXPECT_EQ(CodeOf(FlatShard(Flatten(Whole(t)), 2, 2).status), "invalid_option");
  EXPECT_EQ(CodeOf(FlatShard(Flatten(Whole(t)), 0, 0).status), "invalid_option");
  EXPECT_EQ(CodeOf(Flatten(Padding(PieceKind::kZero, {kMax, 2})).status), "out_of_bounds");
  const TensorSpec large = {"l", {Index{1} << 12, Index{1} << 11}, Dtype::kBF16};
  EXPECT_EQ(CodeOf(Flatten(Transpose(Whole(large), {1, 0})).status), "out_of_memory");
  EXPECT_EQ(Flatten(Whole(large)).parts.size(), 1u);
}

// Buckets of the TP parts of random tensors, as an optimizer writes them out: element by element, padding by padding.
TEST(FlatBucket, RandomBucketsOverRandomRanks) {
  CaseShare share("buckets, all TP and DP ranks each");
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    if (!share.Take()) continue;
    std::mt19937_64 random(seed);
    auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<uint64_t>(n)); };
    std::vector<TensorSpec> tensors;
    std::vector<int> axes;  // the one that TP cuts
    for (Index n = 1 + below(4); n > 0; --n) {
      Extents shape;
      for (Index a = 1 + below(3); a > 0; --a) shape.push_back(below(10) == 0 ? 0 : 1 + below(5));
      axes.push_back(static_cast<int>(below(static_cast<Index>(shape.size()))));
      tensors.push_back({"t" + std::to_string(n), shape, Dtype::kBF16});
    }
    const Index tp = 1 + below(3), dp = 1 + below(6), start = 1 + below(4), end = dp * (1 + below(3));
    const bool turned = below(4) == 0;
    for (Index t = 0; t < tp; ++t) {
      std::vector<PieceArray> parts;
      std::vector<Index> values;
      for (size_t i = 0; i < tensors.size(); ++i) {
        PieceArray part = LocalPart(Whole(tensors[i]), {{tp}, {}}, {Shard{axes[i]}}, {t});
        oracle::Array array =
            oracle::Local(oracle::Whole(tensors[i].shape, static_cast<Index>(i)), {{tp}, {}}, {Shard{axes[i]}}, {t});
        if (turned && tensors[i].shape.size() == 2) {
          part = Transpose(part, {1, 0});
          array = oracle::Transpose(array, {1, 0});
        }
        parts.push_back(part);
        while (static_cast<Index>(values.size()) % start != 0) values.push_back(oracle::kKeepFill);
        values.insert(values.end(), array.values.begin(), array.values.end());
      }
      while (static_cast<Index>(values.size()) % end != 0) values.push_back(oracle::kKeepFill);
      const PieceArray bucket = FlatBucket(parts, start, end);
      ASSERT_TRUE(bucket.status.ok()) << bucket.status << ", seed " << seed;
      const Index each = static_cast<Index>(values.size()) / dp;
      for (Index d = 0; d < dp; ++d) {
        ASSERT_EQ(Expand(FlatShard(bucket, dp, d), tensors).values,
                  std::vector<Index>(values.begin() + d * each, values.begin() + (d + 1) * each))
            << "seed " << seed << ", TP rank " << t << " of " << tp << ", DP rank " << d << " of " << dp;
      }
    }
  }
}

}  // namespace
}  // namespace headrace
