#include "planner/validate.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr Index kHuge = INT64_MAX;

// A manifest with something of everything: w [4, 6] in 2x3 blocks with scales s [2, 2], packed F4 f [4, 4], a pitched
// source, two destination ranks, storages, an alias, fills.
Manifest Rich() {
  Manifest m;
  m.tensors = {{"w", {4, 6}, Dtype::kF8E4M3}, {"s", {2, 2}, Dtype::kF32}, {"f", {4, 4}, Dtype::kF4}};
  for (const TensorSpec& t : m.tensors) m.source.push_back(WholeBuffer(0, t));
  for (int64_t r = 0; r < 2; ++r) {
    Buffer w = BufferOf(r, "w", Dtype::kF8E4M3, {3, 6},
                        {PieceOf("w", {2 * r, 0}, {2, 6}, {0, 0}), FillOf(PieceKind::kZero, {1, 6}, {2, 0})});
    w.storage = Storage{"m", 0};
    Buffer s = BufferOf(r, "s", Dtype::kF32, {1, 2}, {PieceOf("s", {r, 0}, {1, 2}, {0, 0})});
    s.storage = Storage{"m", 18};
    Buffer alias = w;
    alias.name = "w2";
    alias.pieces.clear();
    alias.alias_of = "w";
    m.destination.insert(m.destination.end(), {w, s, alias});
    m.destination.push_back(BufferOf(r, "f", Dtype::kF4, {4, 2}, {PieceOf("f", {0, 2 * r}, {4, 2}, {0, 0})}));
  }
  m.topology.source = {{0, "a", "", ""}};
  m.topology.destination = {{0, "b", "", ""}, {1, "b", "", ""}};
  m.ignore = {"f"};
  m.coupled = {{"w", "s", {2, 3}}};
  return m;
}

struct Fault {
  ErrorCode code;
  std::string name;
  std::function<void(Manifest&)> make;
  std::string mention;
};

// One or more per line of validate.h, in the order of the list. Each leaves the others possible.
std::vector<Fault> Faults() {
  auto w = [](Manifest& m) -> Buffer& { return m.destination[0]; };
  auto s = [](Manifest& m) -> Buffer& { return m.destination[1]; };
  auto f = [](Manifest& m) -> Buffer& { return m.destination[3]; };
  using E = ErrorCode;
  return {
      {E::kMalformed, "tensor twice", [](Manifest& m) { m.tensors.push_back(m.tensors[0]); }, "\"w\""},
      {E::kMalformed, "source buffer twice", [](Manifest& m) { m.source.push_back(m.source[1]); }, "\"s\""},
      {E::kMalformed, "destination buffer twice", [](Manifest& m) { m.destination.push_back(m.destination[3]); },
       "\"f\""},
      {E::kMalformed, "placement twice",
       [](Manifest& m) {
         m.topology.source.push_back({0, "c", "", ""});
       },
       "rank 0"},
      {E::kMalformed, "rank without placement", [](Manifest& m) { m.topology.destination.pop_back(); }, "rank 1"},
      {E::kMalformed, "ignore twice", [](Manifest& m) { m.ignore.push_back("f"); }, "\"f\""},
      {E::kMalformed, "coupling twice",
       [](Manifest& m) {
         m.coupled.push_back({"w", "f", {2, 3}});
       },
       "\"w\""},
      {E::kMalformed, "its own scale", [](Manifest& m) { m.coupled[0].scale = "w"; }, "\"w\""},
      {E::kMalformed, "a block of nothing", [](Manifest& m) { m.coupled[0].block[1] = 0; }, "\"w\""},
      {E::kMalformed, "axis twice",
       [w](Manifest& m) {
         w(m).pieces[0].axes = {0, 0};
       },
       "axes"},
      {E::kMalformed, "axis that is none",
       [w](Manifest& m) {
         w(m).pieces[0].axes = {0, 2};
       },
       "axes"},
      {E::kMalformed, "too few axes", [w](Manifest& m) { w(m).pieces[0].axes = {0}; }, "axes"},
      {E::kMalformed, "zero in a source",
       [](Manifest& m) {
         m.source[0].pieces.push_back(FillOf(PieceKind::kZero, {0, 0}, {0, 0}));
       },
       "source"},
      {E::kMalformed, "alias of nothing", [](Manifest& m) { m.destination[2].alias_of = "x"; }, "\"x\""},
      {E::kMalformed, "alias of itself", [](Manifest& m) { m.destination[2].alias_of = "w2"; }, "\"w2\""},
      {E::kMalformed, "alias with pieces", [](Manifest& m) { m.destination[2].pieces = m.destination[0].pieces; },
       "\"w2\""},
      {E::kMalformed, "alias of another shape",
       [](Manifest& m) {
         m.destination[2].shape = {6, 3};
       },
       "\"w2\""},
      {E::kMalformed, "alias of another dtype", [](Manifest& m) { m.destination[2].dtype = Dtype::kU8; }, "U8"},
      {E::kMalformed, "alias at another offset", [](Manifest& m) { m.destination[2].storage->offset_bytes = 4; },
       "\"w2\""},
      {E::kMalformed, "alias in another storage", [](Manifest& m) { m.destination[2].storage->id = "n"; }, "\"w2\""},
      {E::kMalformed, "alias without the storage", [](Manifest& m) { m.destination[2].storage.reset(); }, "\"w2\""},
      {E::kMalformed, "alias of another rank's buffer",
       [](Manifest& m) {
         m.destination[4].name = "w3";
         m.destination[6].alias_of = "w3";
         m.destination[2].alias_of = "w3";
       },
       "\"w3\""},

      {E::kUnknownTensor, "in a source", [](Manifest& m) { m.source[2].pieces[0].tensor = "x"; }, "\"x\""},
      {E::kUnknownTensor, "in a destination", [f](Manifest& m) { f(m).pieces[0].tensor = "x"; }, "\"x\""},
      {E::kUnknownTensor, "in ignore", [](Manifest& m) { m.ignore.push_back("x"); }, "\"x\""},
      {E::kUnknownTensor, "as a weight",
       [](Manifest& m) {
         m.coupled.push_back({"x", "s", {2, 3}});
       },
       "\"x\""},
      {E::kUnknownTensor, "as a scale",
       [](Manifest& m) {
         m.coupled.push_back({"f", "x", {2, 3}});
       },
       "\"x\""},

      {E::kShapeMismatch, "strides", [f](Manifest& m) { f(m).strides = {1}; }, "strides"},
      {E::kShapeMismatch, "piece of fewer axes", [f](Manifest& m) { f(m).pieces[0].shape = {8}; }, "\"f\""},
      {E::kShapeMismatch, "buffer_offset", [f](Manifest& m) { f(m).pieces[0].buffer_offset = {0}; }, "\"f\""},
      {E::kShapeMismatch, "tensor_offset",
       [f](Manifest& m) {
         f(m).pieces[0].tensor_offset = {0, 0, 0};
       },
       "\"f\""},
      {E::kShapeMismatch, "fill", [w](Manifest& m) { w(m).pieces[1].shape = {6}; }, "fill"},
      {E::kShapeMismatch, "view of other axes", [f](Manifest& m) { f(m).pieces[0].view = Extents{16}; }, "view"},
      {E::kShapeMismatch, "view of other size",
       [f](Manifest& m) {
         f(m).pieces[0].view = Extents{4, 5};
       },
       "20"},
      {E::kShapeMismatch, "source piece",
       [](Manifest& m) {
         m.source[0].pieces[0].shape = {4, 6, 1};
       },
       "source"},
      {E::kShapeMismatch, "block axes", [](Manifest& m) { m.coupled[0].block = {2}; }, "\"w\""},
      {E::kShapeMismatch, "scale of another shape",
       [](Manifest& m) {
         m.coupled[0].block = {2, 2};
       },
       "3 blocks"},

      {E::kOutOfBounds, "negative tensor", [](Manifest& m) { m.tensors[2].shape[1] = -4; }, "\"f\""},
      {E::kOutOfBounds, "huge tensor",
       [](Manifest& m) {
         m.tensors[2].shape = {kHuge / 2, 4};
       },
       "\"f\""},
      {E::kOutOfBounds, "huge with a zero",
       [](Manifest& m) {
         m.tensors[2].shape = {0, kHuge / 4 * 3};
       },
       "\"f\""},
      {E::kOutOfBounds, "negative buffer", [](Manifest& m) { m.source[2].shape[0] = -4; }, "\"f\""},
      {E::kOutOfBounds, "negative stride", [f](Manifest& m) { f(m).strides[0] = -2; }, "strides"},
      {E::kOutOfBounds, "smallest stride", [f](Manifest& m) { f(m).strides[0] = INT64_MIN; }, "strides"},
      {E::kOutOfBounds, "huge stride", [f](Manifest& m) { f(m).strides[0] = kHuge / 2; }, "\"f\""},
      {E::kOutOfBounds, "negative storage offset",
       [](Manifest& m) {
         m.source[0].storage = Storage{"m", -1};
       },
       "-1"},
      {E::kOutOfBounds, "huge storage offset",
       [](Manifest& m) {
         m.source[0].storage = Storage{"m", kHuge - 5};
       },
       "\"w\""},
      {E::kOutOfBounds, "storage offset past 2^63 bits",
       [](Manifest& m) {
         m.source[0].storage = Storage{"m", kHuge / 8 + 1};
       },
       "\"w\""},
      {E::kOutOfBounds, "negative tensor_offset", [f](Manifest& m) { f(m).pieces[0].tensor_offset[0] = -1; }, "\"f\""},
      {E::kOutOfBounds, "negative shape", [f](Manifest& m) { f(m).pieces[0].shape[0] = -1; }, "\"f\""},
      {E::kOutOfBounds, "negative buffer_offset", [f](Manifest& m) { f(m).pieces[0].buffer_offset[1] = -1; }, "\"f\""},
      {E::kOutOfBounds, "negative view",
       [f](Manifest& m) {
         f(m).pieces[0].view = Extents{-4, -4};
       },
       "view"},
      {E::kOutOfBounds, "huge view",
       [f](Manifest& m) {
         f(m).pieces[0].view = Extents{kHuge, 4};
       },
       "view"},
      {E::kOutOfBounds, "past the tensor", [f](Manifest& m) { f(m).pieces[0].tensor_offset[1] = 3; }, "axis 1"},
      {E::kOutOfBounds, "past the view",
       [f](Manifest& m) {
         f(m).pieces[0].view = Extents{2, 8};
         f(m).pieces[0].tensor_offset = {0, 0};
       },
       "view"},
      {E::kOutOfBounds, "offset that overflows", [f](Manifest& m) { f(m).pieces[0].tensor_offset[1] = kHuge; },
       "\"f\""},
      {E::kOutOfBounds, "past the buffer", [f](Manifest& m) { f(m).pieces[0].buffer_offset[0] = 1; }, "buffer"},
      {E::kOutOfBounds, "past the buffer by axes",
       [f](Manifest& m) {
         f(m).pieces[0].axes = {1, 0};
       },
       "buffer"},
      {E::kOutOfBounds, "fill past the buffer", [w](Manifest& m) { w(m).pieces[1].buffer_offset[0] = 3; }, "fill"},
      {E::kOutOfBounds, "negative block", [](Manifest& m) { m.coupled[0].block[0] = -2; }, "block"},

      {E::kDtypeMismatch, "destination", [f](Manifest& m) { f(m).dtype = Dtype::kU8; }, "U8"},
      {E::kDtypeMismatch, "source", [](Manifest& m) { m.source[2].dtype = Dtype::kF32; }, "F32"},
      {E::kDtypeMismatch, "no such conversion",
       [](Manifest& m) {
         m.source[2].dtype = Dtype::kF32;
         m.source[2].convert_rne = true;
       },
       "conversion"},
      {E::kDtypeMismatch, "a destination does not convert",
       [s](Manifest& m) {
         s(m).dtype = Dtype::kF64;
         s(m).convert_rne = true;
       },
       "F64"},
      {E::kDtypeMismatch, "two dtypes in one snapshot",
       [](Manifest& m) {
         m.tensors.push_back({"h", {2, 2}, Dtype::kBF16});
         m.tensors.push_back({"k", {2, 2}, Dtype::kF16});
         m.source.push_back(BufferOf(0, "hk", Dtype::kF32, {4, 2},
                                     {PieceOf("h", {0, 0}, {2, 2}, {0, 0}), PieceOf("k", {0, 0}, {2, 2}, {2, 0})}));
         m.source.back().convert_rne = true;
       },
       "BF16"},

      {E::kOverlap, "two pieces", [f](Manifest& m) { f(m).pieces.push_back(f(m).pieces[0]); }, "\"f\""},
      {E::kOverlap, "piece and fill",
       [w](Manifest& m) {
         w(m).pieces.push_back(FillOf(PieceKind::kKeep, {1, 1}, {1, 5}));
       },
       "fill"},
      {E::kOverlap, "stride 0",
       [s](Manifest& m) {
         s(m).strides = {2, 0};
       },
       "strides"},
      {E::kOverlap, "strides that meet",
       [](Manifest& m) {
         m.destination.push_back(BufferOf(0, "k", Dtype::kU8, {3, 3}, {FillOf(PieceKind::kKeep, {3, 3}, {0, 0})}));
         m.destination.back().strides = {2, 3};  // 3 * 2 == 2 * 3
         m.destination.back().shape = {4, 3};
         m.destination.back().pieces[0].shape = {4, 3};
       },
       "\"k\""},
      {E::kOverlap, "two buffers of a storage", [s](Manifest& m) { s(m).storage->offset_bytes = 17; }, "\"w\""},

      {E::kMisalignedBlock, "a scale block", [w](Manifest& m) { w(m).pieces[0].tensor_offset[0] = 1; }, "\"w\""},
      {E::kMisalignedBlock, "a byte of the tensor", [f](Manifest& m) { f(m).pieces[0].tensor_offset[1] = 1; }, "F4"},
      {E::kMisalignedBlock, "a byte of a source",
       [](Manifest& m) {
         m.source[2].strides = {1, 4};
       },
       "source"},
      {E::kMisalignedBlock, "a byte by pitch",
       [f](Manifest& m) {
         f(m).strides = {3, 1};
       },
       "\"f\""},
      {E::kMisalignedBlock, "a zero fill that ends inside a byte",
       [](Manifest& m) {
         m.destination.push_back(BufferOf(0, "z", Dtype::kF4, {1, 3}, {FillOf(PieceKind::kZero, {1, 3}, {0, 0})}));
       },
       "\"z\""},
      {E::kMisalignedBlock, "a zero fill that starts inside a byte",
       [](Manifest& m) {
         m.destination.push_back(BufferOf(0, "z", Dtype::kF4, {4},
                                          {FillOf(PieceKind::kKeep, {1}, {0}), FillOf(PieceKind::kZero, {3}, {1})}));
       },
       "\"z\""},

      {E::kConflict, "the scale of another block", [s](Manifest& m) { s(m).pieces[0].tensor_offset[0] = 1; }, "\"s\""},
      {E::kConflict, "no scale",
       [s](Manifest& m) {
         s(m).pieces = {FillOf(PieceKind::kKeep, {1, 2}, {0, 0})};
       },
       "\"s\""},
      {E::kConflict, "half of the scale",
       [s](Manifest& m) {
         s(m).pieces = {PieceOf("s", {0, 0}, {1, 1}, {0, 0}), FillOf(PieceKind::kKeep, {1, 1}, {0, 1})};
       },
       "\"s\""},
  };
}

TEST(Validate, AcceptsTheRichManifest) { EXPECT_TRUE(Validate(Rich()).ok()) << Validate(Rich()); }

TEST(Validate, EachFaultHasItsCodeAndNamesThePlace) {
  for (const Fault& fault : Faults()) {
    SCOPED_TRACE(fault.name);
    Manifest m = Rich();
    fault.make(m);
    const absl::Status status = Validate(m);
    EXPECT_EQ(std::string(CodeOf(status)), std::string(CodeName(fault.code))) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(fault.mention));
  }
}

// The first code of the list that applies anywhere is the one reported, whichever fault was made first and wherever it
// stands. Faults are combined where the second one's place survives the first one.
TEST(Validate, OfTwoFaultsTheFirstInTheListIsReported) {
  // Faults that can be combined freely: each touches a part that no other one of these touches.
  const std::vector<Fault> faults = {
      {ErrorCode::kMalformed, "",
       [](Manifest& m) {
         m.ignore = {"f", "f"};
       },
       ""},
      {ErrorCode::kUnknownTensor, "",
       [](Manifest& m) { m.source.push_back(BufferOf(0, "x", Dtype::kU8, {1}, {PieceOf("x", {0}, {1}, {0})})); }, ""},
      {ErrorCode::kShapeMismatch, "",
       [](Manifest& m) { m.destination.push_back(BufferOf(1, "y", Dtype::kF32, {1}, {PieceOf("s", {0}, {1}, {0})})); },
       ""},
      {ErrorCode::kOutOfBounds, "",
       [](Manifest& m) {
         m.source.push_back(BufferOf(0, "o", Dtype::kF32, {1, 1}, {PieceOf("s", {2, 0}, {1, 1}, {0, 0})}));
       },
       ""},
      {ErrorCode::kDtypeMismatch, "",
       [](Manifest& m) {
         m.destination.push_back(BufferOf(0, "d", Dtype::kF16, {1, 1}, {PieceOf("s", {0, 0}, {1, 1}, {0, 0})}));
       },
       ""},
      {ErrorCode::kOverlap, "",
       [](Manifest& m) {
         m.destination.push_back(BufferOf(0, "v", Dtype::kF32, {1, 1}, {PieceOf("s", {0, 0}, {1, 1}, {0, 0})}));
         m.destination.back().pieces.push_back(m.destination.back().pieces[0]);
       },
       ""},
      {ErrorCode::kMisalignedBlock, "", [](Manifest& m) { m.destination[3].pieces[0].tensor_offset[1] = 1; }, ""},
      {ErrorCode::kConflict, "", [](Manifest& m) { m.destination[5].pieces[0].tensor_offset[0] = 0; }, ""},
  };
  for (const Fault& a : faults) {
    for (const Fault& b : faults) {
      Manifest m = Rich();
      a.make(m);
      if (&a != &b) b.make(m);
      const absl::Status status = Validate(m);
      EXPECT_EQ(std::string(CodeOf(status)), std::string(CodeName(std::min(a.code, b.code)))) << status;
    }
  }
}

TEST(Validate, OverlapIsByByteNotByRange) {
  // Columns of one pitched matrix: interleaved ranges that share no byte.
  Manifest m = WholeManifest({{"a", {3, 2}, Dtype::kU8}, {"b", {3, 2}, Dtype::kU8}});
  for (int i = 0; i < 2; ++i) {
    m.destination[i].strides = {4, 1};
    m.destination[i].storage = Storage{"m", 2 * i};
  }
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[1].storage->offset_bytes = 1;
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kOverlap));
  m.destination[1].rank = 1;  // another rank: another memory
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
}

TEST(Validate, StridesThatDoNotNestMayStillBeDisjoint) {
  Manifest m;
  m.destination = {BufferOf(0, "k", Dtype::kU8, {2, 2}, {FillOf(PieceKind::kKeep, {2, 2}, {0, 0})})};
  m.destination[0].strides = {3, 2};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[0].strides = {2, 2};
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kOverlap));
}

TEST(Validate, ALastPartialBlockIsWhole) {
  Manifest m = WholeManifest({{"w", {5, 7}, Dtype::kF8E4M3}, {"s", {2, 2}, Dtype::kF32}});
  m.coupled = {{"w", "s", {4, 4}}};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination = {BufferOf(0, "w", Dtype::kF8E4M3, {1, 3}, {PieceOf("w", {4, 4}, {1, 3}, {0, 0})}),
                   BufferOf(0, "s", Dtype::kF32, {1, 1}, {PieceOf("s", {1, 1}, {1, 1}, {0, 0})})};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[0].shape = m.destination[0].pieces[0].shape = {1, 2};
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kMisalignedBlock));
}

// A box that is counted in heads or experts is one box, however its buffer is pitched.
TEST(Validate, BlocksAreWholeInViewsToo) {
  Manifest m = WholeManifest({{"w", {8, 4}, Dtype::kF8E4M3}, {"s", {2, 1}, Dtype::kF32}});
  m.coupled = {{"w", "s", {4, 4}}};
  m.destination[0] =
      BufferOf(0, "w", Dtype::kF8E4M3, {2, 4, 4}, {ViewPiece("w", {2, 4, 4}, {0, 0, 0}, {2, 4, 4}, {0, 0, 0})});
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[0].strides = {40, 5, 1};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[0].strides = {16, 1, 4};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  // Rows 1 to 3 of each of the two experts cut both blocks.
  m.destination[0] =
      BufferOf(0, "w", Dtype::kF8E4M3, {2, 3, 4}, {ViewPiece("w", {2, 4, 4}, {0, 1, 0}, {2, 3, 4}, {0, 0, 0})});
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kMisalignedBlock)) << Validate(m);
}

TEST(Validate, HugeButLegalManifestsNeedNoTime) {
  Manifest m = WholeManifest({{"w", {Index{1} << 30, Index{1} << 28}, Dtype::kU8}});
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
}

}  // namespace
}  // namespace headrace
