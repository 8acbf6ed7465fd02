#include "loader/lowering.h"

#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::VisitBox;
using testing::VisitCopy;
using testing::VisitPiece;

// How often each byte of the buffer's span is in a box.
std::map<Index, int> BytesOfBoxes(const std::vector<BufferBox>& boxes) {
  std::map<Index, int> bytes;
  std::vector<std::byte> anchor(1);
  for (const BufferBox& box : boxes) {
    EXPECT_LE(box.loops.size(), static_cast<size_t>(kernels::kMaxBoxLoops));
    EXPECT_GT(box.run_bytes, 0);
    const kernels::StridedCopy c = Lower(box, anchor.data(), anchor.data());
    VisitBox(c, [&](const std::byte* from, std::byte* to, int64_t) {
      EXPECT_EQ(from, to);
      ++bytes[to - anchor.data()];
    });
  }
  return bytes;
}

std::map<Index, int> BytesOfPieces(const Manifest& m, const Buffer& b, PieceKind kind) {
  std::set<Index> bytes;
  for (const Piece& p : b.pieces) {
    if (p.kind != kind) continue;
    VisitPiece(m, b, p, [&](Index, Index place) {
      const int bits = DtypeBits(b.dtype);
      for (Index byte = place * bits / 8; byte <= (place * bits + bits - 1) / 8; ++byte) bytes.insert(byte);
    });
  }
  std::map<Index, int> out;
  for (Index byte : bytes) out[byte] = 1;
  return out;
}

TEST(LoweringTest, BoxesAreTheBytesOfThePieces) {
  for (int seed = 0; seed < testing::Share(3000); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomManifest(random);
    for (const Buffer& b : m.destination) {
      for (PieceKind kind : {PieceKind::kTensor, PieceKind::kZero, PieceKind::kKeep}) {
        ASSERT_EQ(BytesOfBoxes(BoxesOf(b, kind, b.dtype)), BytesOfPieces(m, b, kind)) << b.name;
      }
    }
  }
}

TEST(LoweringTest, ClearWritesTheBoxAlone) {
  Buffer b = BufferOf(0, "b", Dtype::kBF16, {3, 4, 5}, {FillOf(PieceKind::kZero, {2, 3, 2}, {1, 0, 3})});
  b.strides = {1, 40, 5};
  std::vector<std::byte> memory(SpanBytes(b, b.dtype), testing::kPoison);
  const auto wanted = BytesOfPieces(Manifest(), b, PieceKind::kZero);
  for (const BufferBox& box : BoxesOf(b, PieceKind::kZero, b.dtype)) Clear(box, memory.data());
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(memory[i], wanted.contains(i) ? std::byte{0} : testing::kPoison) << i;
  }
}

TEST(LoweringTest, CutsABoxOfMoreLoopsThanTheKernelsHave) {
  Buffer b = BufferOf(0, "b", Dtype::kF32, {3, 3, 3, 3, 3, 3}, {});
  b.pieces = {FillOf(PieceKind::kKeep, {2, 2, 2, 2, 2, 2}, {1, 1, 1, 1, 1, 1})};
  const std::vector<BufferBox> boxes = BoxesOf(b, PieceKind::kKeep, b.dtype);
  EXPECT_EQ(boxes.size(), 2u);
  EXPECT_EQ(BytesOfBoxes(boxes), BytesOfPieces(Manifest(), b, PieceKind::kKeep));
}

TEST(LoweringTest, PiecesThatFillADenseBufferAreOneBox) {
  Buffer b = BufferOf(0, "qkv", Dtype::kBF16, {6, 4},
                      {PieceOf("q", {0, 0}, {4, 4}, {0, 0}), PieceOf("k", {0, 0}, {2, 4}, {4, 0})});
  ASSERT_EQ(BoxesOf(b, PieceKind::kTensor, b.dtype).size(), 1u);
  EXPECT_EQ(BoxesOf(b, PieceKind::kTensor, b.dtype)[0].run_bytes, 48);
  b.pieces[1].kind = PieceKind::kZero;  // now it is not
  EXPECT_EQ(BoxesOf(b, PieceKind::kTensor, b.dtype)[0].run_bytes, 32);
}

// Pieces of a source may overlap: as many elements as the buffer has need not be all of them.
TEST(LoweringTest, OverlappingPiecesAreNoWholeBuffer) {
  const Manifest m{{{"t", {4}, Dtype::kBF16}}, {}, {}, {}, {}, {}};
  Buffer b = BufferOf(0, "b", Dtype::kBF16, {4}, {PieceOf("t", {0}, {2}, {0}), PieceOf("t", {0}, {2}, {0})});
  for (const auto& [byte, times] : BytesOfBoxes(BoxesOf(b, PieceKind::kTensor, b.dtype))) EXPECT_LT(byte, 4);
}

TEST(LoweringTest, CopiesReadAndWriteWhatThePlanSays) {
  for (int seed = 0; seed < testing::Share(1000); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Manifest m = RandomManifest(random);
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::byte* const from = reinterpret_cast<const std::byte*>(0x100000);
    std::byte* const to = reinterpret_cast<std::byte*>(0x900000);
    for (const Copy& copy : plan->copies) {
      std::vector<std::tuple<Index, Index, Index>> wanted, got, box;
      VisitCopy(copy, [&](Index s, Index d, Index p) { wanted.emplace_back(s, d, p); });
      const kernels::StridedCopy lowered = Lower(copy, from, to);
      EXPECT_EQ(lowered.tensor_key, TensorKey(copy.tensor));
      VisitBox(lowered, [&](const std::byte* s, std::byte* d, int64_t p) { got.emplace_back(s - from, d - to, p); });
      ASSERT_EQ(got, wanted);
      for (auto& [s, d, p] : wanted) d = s;
      VisitBox(LowerSourceBox(copy, from, to),
               [&](const std::byte* s, std::byte* d, int64_t p) { box.emplace_back(s - from, d - to, p); });
      ASSERT_EQ(box, wanted);
    }
  }
}

}  // namespace
}  // namespace headrace
