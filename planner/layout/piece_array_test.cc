#include "planner/layout/piece_array.h"

#include <limits>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/layout/oracle.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Index kMax = std::numeric_limits<Index>::max();

const TensorSpec kA = {"a", {4, 3}, Dtype::kBF16};
const TensorSpec kB = {"b", {4, 3}, Dtype::kBF16};

oracle::Array Expand(const PieceArray& array, const std::vector<TensorSpec>& tensors) {
  const Buffer buffer = ToBuffer(0, "x", Dtype::kBF16, array).value();
  return oracle::Expand(buffer.shape, buffer.pieces, tensors);
}

TEST(PieceArray, StackedExpertsAreThePiecesOfTheHeadersExample) {
  std::vector<PieceArray> gates, ups;
  for (const char* expert : {"0", "1"}) {
    gates.push_back(Whole({std::string("w1.") + expert, {4, 5}, Dtype::kBF16}));
    ups.push_back(Whole({std::string("w3.") + expert, {4, 5}, Dtype::kBF16}));
  }
  const Buffer w13 = ToBuffer(7, "w13_weight", Dtype::kF32,
                              Concatenate({Take(Stack(gates, 0), 1, {2, 2}), Take(Stack(ups, 0), 1, {2, 2})}, 1))
                         .value();
  EXPECT_EQ(w13.rank, 7);
  EXPECT_EQ(w13.name, "w13_weight");
  EXPECT_EQ(w13.dtype, Dtype::kF32);
  EXPECT_THAT(w13.shape, ElementsAre(2, 4, 5));
  EXPECT_THAT(w13.strides, ElementsAre(20, 5, 1));
  ASSERT_EQ(w13.pieces.size(), 4u);
  EXPECT_EQ(w13.pieces[3].tensor, "w3.1");
  EXPECT_THAT(*w13.pieces[3].view, ElementsAre(1, 4, 5));
  EXPECT_THAT(w13.pieces[3].tensor_offset, ElementsAre(0, 2, 0));
  EXPECT_THAT(w13.pieces[3].shape, ElementsAre(1, 2, 5));
  EXPECT_THAT(w13.pieces[3].buffer_offset, ElementsAre(1, 2, 0));
  EXPECT_THAT(w13.pieces[3].axes, IsEmpty());
}

TEST(PieceArray, APlainPieceHasNeitherAxesNorView) {
  const Buffer plain = ToBuffer(0, "x", Dtype::kBF16, Squeeze(Unsqueeze(Take(Whole(kA), 0, {1, 2}), 0), 0)).value();
  ASSERT_EQ(plain.pieces.size(), 1u);
  EXPECT_FALSE(plain.pieces[0].view.has_value());
  EXPECT_THAT(plain.pieces[0].axes, IsEmpty());
  const Buffer turned = ToBuffer(0, "x", Dtype::kBF16, Transpose(Whole(kA), {1, 0})).value();
  EXPECT_THAT(turned.pieces[0].axes, ElementsAre(1, 0));
  EXPECT_THAT(turned.shape, ElementsAre(3, 4));
}

TEST(PieceArray, SqueezeOfAnExpertIsRowsOfTheMatrix) {
  const TensorSpec experts = {"e", {5, 2, 3}, Dtype::kBF16};
  const Buffer one = ToBuffer(0, "x", Dtype::kBF16, Squeeze(Take(Whole(experts), 0, {3, 1}), 0)).value();
  ASSERT_EQ(one.pieces.size(), 1u);
  EXPECT_THAT(*one.pieces[0].view, ElementsAre(10, 3));
  EXPECT_THAT(one.pieces[0].tensor_offset, ElementsAre(6, 0));
  EXPECT_THAT(one.pieces[0].shape, ElementsAre(2, 3));
}

TEST(PieceArray, ErrorsStayAndAreNamed) {
  auto code = [](const PieceArray& array) { return std::string(CodeOf(array.status)); };
  const PieceArray a = Whole(kA);
  EXPECT_EQ(code(Whole({"a", {-1, 0}, Dtype::kBF16})), "out_of_bounds");
  EXPECT_EQ(code(Whole({"a", {kMax, 2}, Dtype::kBF16})), "out_of_bounds");
  EXPECT_EQ(code(Whole(kA, {5, 2})), "shape_mismatch");
  EXPECT_EQ(code(Padding(PieceKind::kTensor, {1})), "invalid_option");
  EXPECT_EQ(code(Padding(PieceKind::kZero, {1, -1})), "out_of_bounds");
  EXPECT_EQ(code(Take(a, 2, {0, 1})), "shape_mismatch");
  EXPECT_EQ(code(Take(a, -1, {0, 1})), "shape_mismatch");
  EXPECT_EQ(code(Take(a, 0, {3, 2})), "out_of_bounds");
  EXPECT_EQ(code(Take(a, 0, {-1, 2})), "out_of_bounds");
  EXPECT_EQ(code(Take(a, 0, {1, kMax})), "out_of_bounds");
  EXPECT_EQ(code(Take(a, 0, absl::StatusOr<Segments>(Error(ErrorCode::kMisalignedBlock, "x")))), "misaligned_block");
  EXPECT_EQ(code(Take(Padding(PieceKind::kZero, {kMax}), 0, Segments{{0, kMax}, {0, 1}})), "out_of_bounds");
  EXPECT_EQ(code(Concatenate({}, 0)), "shape_mismatch");
  EXPECT_EQ(code(Concatenate({a, Take(a, 1, {0, 2})}, 0)), "shape_mismatch");
  EXPECT_EQ(code(Concatenate({a, Whole({"c", {4}, Dtype::kBF16})}, 0)), "shape_mismatch");
  EXPECT_EQ(code(Concatenate({Padding(PieceKind::kZero, {kMax}), Padding(PieceKind::kZero, {1})}, 0)), "out_of_bounds");
  EXPECT_EQ(code(Unsqueeze(a, 3)), "shape_mismatch");
  EXPECT_EQ(code(Squeeze(a, 0)), "shape_mismatch");
  EXPECT_EQ(code(Squeeze(Take(a, 1, {1, 1}), 1)), "shape_mismatch");  // a column
  EXPECT_THAT(Squeeze(Take(a, 1, {1, 1}), 1).status.message(), HasSubstr("tensor a seen as [4, 3]"));
  EXPECT_EQ(code(Transpose(a, {0, 0})), "shape_mismatch");
  EXPECT_EQ(code(Transpose(a, {0})), "shape_mismatch");
  EXPECT_EQ(code(PadToMultiple(a, 0, 0, PieceKind::kZero)), "invalid_option");
  EXPECT_EQ(code(PadToMultiple(a, 2, 4, PieceKind::kZero)), "shape_mismatch");
  EXPECT_EQ(code(LocalPart(a, {{2}, {}}, {Shard{2}}, {0})), "shape_mismatch");

  const PieceArray failed = Take(a, 0, {3, 2});
  for (const PieceArray& next :
       {Take(failed, 0, {0, 1}), Concatenate({a, failed}, 0), Unsqueeze(failed, 0), Squeeze(failed, 0),
        Stack({failed, a}, 0), Transpose(failed, {0}), PadToMultiple(failed, 0, 2, PieceKind::kZero),
        LocalPart(failed, {{2}, {}}, {Shard{0}}, {0})}) {
    EXPECT_EQ(next.status, failed.status);
  }
  const absl::Status status = ToBuffer(2, "w", Dtype::kBF16, failed).status();
  EXPECT_EQ(CodeOf(status), "out_of_bounds");
  EXPECT_THAT(status.message(), HasSubstr("rank 2, buffer \"w\": elements 3 + 2 of axis 0 of an array [4, 3]"));
}

// A vocabulary is padded and then cut; a kernel's shard is cut and then padded.
TEST(PadToMultiple, BeforeAndAfterTheCutExhaustively) {
  CaseShare share("rows x multiple x TP x fill, all ranks each");
  for (Index rows = 0; rows <= 7; ++rows) {
    const TensorSpec t = {"t", {rows, 2}, Dtype::kBF16};
    for (Index multiple = 1; multiple <= 6; ++multiple) {
      for (Index tp = 1; tp <= 6; ++tp) {
        for (const auto& [kind, value] :
             {std::pair{PieceKind::kZero, oracle::kZeroFill}, std::pair{PieceKind::kKeep, oracle::kKeepFill}}) {
          if (!share.Take()) continue;
          Index padded = rows;
          while (padded % multiple != 0) ++padded;
          const oracle::Array whole =
              oracle::Concatenate({oracle::Whole(t.shape), oracle::Filled({padded - rows, 2}, value)});
          for (Index rank = 0; rank < tp; ++rank) {
            const Mesh mesh = {{tp}, {}};
            ASSERT_EQ(Expand(LocalPart(PadToMultiple(Whole(t), 0, multiple, kind), mesh, {Shard{0}}, {rank}), {t}),
                      oracle::Local(whole, mesh, {Shard{0}}, {rank}));
            oracle::Array shard = oracle::Local(oracle::Whole(t.shape), mesh, {Shard{0}}, {rank});
            while (shard.shape[0] % multiple != 0) {
              shard = oracle::Concatenate({shard, oracle::Filled({1, 2}, value)});
            }
            ASSERT_EQ(Expand(PadToMultiple(LocalPart(Whole(t), mesh, {Shard{0}}, {rank}), 0, multiple, kind), {t}),
                      shard);
          }
        }
      }
    }
  }
}

// Random expressions, the same on pieces and on the arrays of identities.
class RandomExpression {
 public:
  explicit RandomExpression(uint64_t seed) : random_(seed) {}

  struct Pair {
    PieceArray pieces;
    oracle::Array array;
  };

  Index Below(Index n) { return static_cast<Index>(random_() % static_cast<uint64_t>(n)); }

  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  // An array of that shape.
  Pair Make(const Extents& shape, int depth) {
    const size_t axes = shape.size();
    switch (depth == 0 ? Below(2) : Below(8)) {
      case 0: {  // a tensor of its own
        const TensorSpec& t = tensors_.emplace_back("t" + std::to_string(tensors_.size()), shape, Dtype::kBF16);
        return {Whole(t), oracle::Whole(shape, static_cast<Index>(tensors_.size()) - 1)};
      }
      case 1: {  // a flat tensor, viewed; sometimes padding
        if (Below(4) == 0) return {Padding(PieceKind::kZero, shape), oracle::Filled(shape, oracle::kZeroFill)};
        const TensorSpec& t =
            tensors_.emplace_back("t" + std::to_string(tensors_.size()), Extents{oracle::SizeOf(shape)}, Dtype::kBF16);
        return {Whole(t, shape), oracle::Whole(shape, static_cast<Index>(tensors_.size()) - 1)};
      }
      case 2: {  // taken from a longer one by segments in any order
        if (axes == 0) break;
        const int axis = static_cast<int>(Below(static_cast<Index>(axes)));
        Extents longer = shape;
        longer[axis] += 1 + Below(3);
        const Pair from = Make(longer, depth - 1);
        Segments segments;
        std::vector<Index> positions;
        for (Index left = shape[axis]; left > 0;) {
          const Index count = 1 + Below(left);
          const Index first = Below(longer[axis] - count + 1);
          segments.push_back({first, count});
          for (Index i = 0; i < count; ++i) positions.push_back(first + i);
          left -= count;
        }
        return {Take(from.pieces, axis, segments), oracle::Take(from.array, axis, positions)};
      }
      case 3: {  // two joined
        if (axes == 0) break;
        const int axis = static_cast<int>(Below(static_cast<Index>(axes)));
        Extents first = shape, second = shape;
        first[axis] = Below(shape[axis] + 1);
        second[axis] -= first[axis];
        const Pair a = Make(first, depth - 1), b = Make(second, depth - 1);
        return {Concatenate({a.pieces, b.pieces}, axis), oracle::Concatenate({a.array, b.array}, axis)};
      }
      case 4: {  // stacked
        if (axes == 0) break;
        const int axis = static_cast<int>(Below(static_cast<Index>(axes)));
        if (shape[axis] == 0) break;
        Extents part = shape;
        part.erase(part.begin() + axis);
        std::vector<PieceArray> pieces;
        std::vector<oracle::Array> arrays;
        for (Index i = 0; i < shape[axis]; ++i) {
          Pair p = Make(part, depth - 1);
          pieces.push_back(std::move(p.pieces));
          arrays.push_back(std::move(p.array));
        }
        return {Stack(pieces, axis), oracle::Stack(arrays, axis)};
      }
      case 5: {  // turned
        std::vector<int> axes_of(axes);
        std::iota(axes_of.begin(), axes_of.end(), 0);
        std::shuffle(axes_of.begin(), axes_of.end(), random_);
        Extents before(axes);
        for (size_t i = 0; i < axes; ++i) before[axes_of[i]] = shape[i];
        const Pair from = Make(before, depth - 1);
        return {Transpose(from.pieces, axes_of), oracle::Transpose(from.array, axes_of)};
      }
      case 6: {  // one of several, without its axis; where that is a box
        const int axis = static_cast<int>(Below(static_cast<Index>(axes) + 1));
        Extents deeper = shape;
        deeper.insert(deeper.begin() + axis, 1 + Below(3));
        const Pair from = Make(deeper, depth - 1);
        const Index i = Below(deeper[axis]);
        const PieceArray kept = Take(from.pieces, axis, {i, 1});
        const oracle::Array one = oracle::Slice(from.array, axis, i, 1);
        const PieceArray squeezed = Squeeze(kept, axis);
        if (!squeezed.status.ok()) {
          refused_ += 1;
          break;
        }
        return {squeezed, oracle::Reshape(one, shape)};
      }
      default:
        break;
    }
    return Make(shape, 0);
  }

  int refused() const { return refused_; }

 private:
  std::mt19937_64 random_;
  std::vector<TensorSpec> tensors_;
  int refused_ = 0;
};

TEST(PieceArray, RandomExpressionsMeanWhatNumpyMeans) {
  CaseShare share("expressions");
  int refused = 0;
  for (uint64_t seed = 1; seed <= 20000; ++seed) {
    if (!share.Take()) continue;
    RandomExpression random(seed);
    Extents shape;
    for (Index axes = random.Below(4); axes > 0; --axes)
      shape.push_back(random.Below(8) == 0 ? 0 : 1 + random.Below(4));
    const auto [pieces, array] = random.Make(shape, 1 + static_cast<int>(random.Below(6)));
    ASSERT_TRUE(pieces.status.ok()) << pieces.status << ", seed " << seed;
    ASSERT_EQ(Expand(pieces, random.tensors()), array) << "seed " << seed;
    refused += random.refused();
  }
  std::cout << refused << " columns refused by Squeeze\n";
}

}  // namespace
}  // namespace headrace
