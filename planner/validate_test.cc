#include "planner/validate.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::AllOf;
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
         m.coupled.push_back({"w", "s", {4, 4}});
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

      {E::kShapeMismatch, "huge view",
       [f](Manifest& m) {
         f(m).pieces[0].view = Extents{kHuge, 4};
       },
       "view"},

      {E::kOutOfBounds, "negative tensor", [](Manifest& m) { m.tensors[2].shape[1] = -4; }, "\"f\""},
      {E::kOutOfBounds, "huge tensor",
       [](Manifest& m) {
         m.tensors[2].shape = {kHuge / 2, 4};
       },
       "\"f\""},
      {E::kOutOfBounds, "2^63 bytes in fewer elements",
       [](Manifest& m) {
         m.tensors.push_back({"h", {Index{1} << 31, Index{1} << 31}, Dtype::kBF16});
       },
       "\"h\": shape [2147483648, 2147483648] of BF16 is past 2^63 bytes"},
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
      {E::kOutOfBounds, "a snapshot of 2^63 bytes",
       [](Manifest& m) {
         m.tensors.push_back({"h", {2, 1}, Dtype::kF64});
         m.source.push_back(BufferOf(0, "m", Dtype::kF16, {2, 1}, {PieceOf("h", {0, 0}, {2, 1}, {0, 0})}));
         m.source.back().convert_rne = true;
         m.source.back().strides = {Index{1} << 60, 1};
       },
       "source rank 0, buffer \"m\""},
      {E::kOutOfBounds, "negative tensor_offset", [f](Manifest& m) { f(m).pieces[0].tensor_offset[0] = -1; }, "\"f\""},
      {E::kOutOfBounds, "negative shape", [f](Manifest& m) { f(m).pieces[0].shape[0] = -1; }, "\"f\""},
      {E::kOutOfBounds, "negative buffer_offset", [f](Manifest& m) { f(m).pieces[0].buffer_offset[1] = -1; }, "\"f\""},
      {E::kOutOfBounds, "negative view",
       [f](Manifest& m) {
         f(m).pieces[0].view = Extents{-4, -4};
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

// Columns of one pitched matrix, more rows than anyone can list; then a column too far.
TEST(Validate, InterleavedBuffersAreComparedWithoutListingThem) {
  constexpr Index kRows = Index{1} << 40;
  Manifest m = WholeManifest({{"a", {kRows, 2}, Dtype::kU8}, {"b", {kRows, 2}, Dtype::kU8}});
  for (int i = 0; i < 2; ++i) {
    m.destination[i].strides = {4, 1};
    m.destination[i].storage = Storage{"m", 2 * i};
  }
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[1].storage->offset_bytes = 3;
  EXPECT_THAT(std::string(Validate(m).message()),
              AllOf(HasSubstr("\"a\""), HasSubstr("\"b\""), HasSubstr("share byte")));
  // Every third byte beside every second one meets.
  m.destination[1].strides = {6, 1};
  m.destination[1].storage->offset_bytes = 2;
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kOverlap)) << Validate(m);
}

TEST(Validate, ManyOddStridesAreDecidedOrRefusedHonestly) {
  auto keep = [](Extents shape, Extents strides) {
    Manifest m;
    m.destination = {BufferOf(0, "k", Dtype::kU8, shape, {FillOf(PieceKind::kKeep, shape, Extents(shape.size(), 0))})};
    m.destination[0].strides = std::move(strides);
    return Validate(m);
  };
  // Row 0 on even bytes, row 1 on odd ones.
  EXPECT_TRUE(keep({2, Index{1} << 23}, {(Index{1} << 23) + 1, 2}).ok());
  EXPECT_TRUE(HasCode(keep({2, Index{1} << 23}, {Index{1} << 23, 2}), ErrorCode::kOverlap));
  EXPECT_TRUE(keep({2, Index{1} << 40, 3}, {3, 9, 1}).ok());
  EXPECT_TRUE(keep({2, 0, 4}, {3, 0, 0}).ok()) << "there are no elements";
  // Nobody shows quickly whether three strides of one size meet.
  const absl::Status status = keep({1 << 20, 1 << 20, 1 << 20, 2}, {1 << 21, (1 << 21) + 2, (1 << 21) + 6, 1});
  EXPECT_TRUE(HasCode(status, ErrorCode::kOverlap) || HasCode(status, ErrorCode::kOutOfMemory)) << status;
}

// Buffers of few elements, all small strides: against listing the bytes.
TEST(Validate, OverlapAgreesWithListingTheBytes) {
  uint64_t state = 77;
  auto below = [&](Index n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<Index>((state >> 33) % static_cast<uint64_t>(n));
  };
  const Dtype dtypes[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF4, Dtype::kF6E2M3};
  int overlaps = 0;
  for (int n = 0; n < 20000; ++n) {
    Manifest m;
    std::vector<std::set<Index>> bytes(2);
    bool meets = false;
    for (int k = 0; k < 2; ++k) {
      const Dtype dtype = dtypes[below(4)];
      Extents shape, strides;
      for (Index axes = below(4); axes > 0; --axes) shape.push_back(1 + below(4)), strides.push_back(1 + below(12));
      Buffer b =
          BufferOf(0, k == 0 ? "a" : "b", dtype, shape, {FillOf(PieceKind::kKeep, shape, Extents(shape.size(), 0))});
      b.strides = strides;
      b.storage = Storage{"m", below(20)};
      Index elements = 1;
      for (Index e : shape) elements *= e;
      std::set<Index> places;
      for (Index e = 0; e < elements; ++e) {
        Index rest = e, place = 0;
        for (size_t i = 0; i < shape.size(); ++i) place += rest % shape[i] * strides[i], rest /= shape[i];
        meets = meets || !places.insert(place).second;
        const Index first = b.storage->offset_bytes * 8 + place * DtypeBits(dtype);
        for (Index bit = 0; bit < DtypeBits(dtype); ++bit) bytes[k].insert((first + bit) / 8);
      }
      m.destination.push_back(std::move(b));
    }
    for (Index byte : bytes[0]) meets = meets || bytes[1].contains(byte);
    // As they are; then in so many far rows that nothing is listed.
    for (bool stretched : {false, true}) {
      for (Buffer& b : m.destination) {
        if (!stretched) continue;
        b.shape.push_back(Index{1} << 30);
        b.strides.push_back(12288 * 8 / DtypeBits(b.dtype));
        b.pieces = {FillOf(PieceKind::kKeep, b.shape, Extents(b.shape.size(), 0))};
      }
      const absl::Status status = Validate(m);
      ASSERT_EQ(HasCode(status, ErrorCode::kOverlap), meets) << "case " << n << ", " << stretched << ": " << status;
      ASSERT_TRUE(meets || status.ok()) << "case " << n << ": " << status;
    }
    overlaps += meets;
  }
  EXPECT_GT(overlaps, 2000);
  EXPECT_LT(overlaps, 18000);
}

TEST(Validate, WhatFitsInBytesIsInBounds) {
  constexpr Index k30 = Index{1} << 30, k31 = Index{1} << 31, k40 = Index{1} << 40;
  for (const TensorSpec& t : std::vector<TensorSpec>{{"w", {k30, k30}, Dtype::kU8},
                                                     {"w", {k31, k31}, Dtype::kU8},
                                                     {"w", {0, k40, k40}, Dtype::kBF16},
                                                     {"w", {k40, k40, 0}, Dtype::kBF16},
                                                     {"w", {kHuge}, Dtype::kF8E4M3}}) {
    EXPECT_TRUE(Validate(WholeManifest({t})).ok()) << Validate(WholeManifest({t}));
  }
  Manifest m = WholeManifest({{"w", {2, 2}, Dtype::kBF16}});
  m.destination[0].strides = {Index{1} << 61, 1};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[0].strides = {Index{1} << 62, 1};
  EXPECT_THAT(std::string(Validate(m).message()), AllOf(HasSubstr("\"w\""), HasSubstr("2^63 bytes")));
  m.destination[0].strides = {kHuge, 1};
  EXPECT_THAT(std::string(Validate(m).message()), AllOf(HasSubstr("\"w\""), HasSubstr("2^63 elements")));
}

TEST(Validate, AliasStridesMatterWhereTheyAreStepped) {
  Manifest m = WholeManifest({{"w", {1, 4}, Dtype::kU8}});
  m.destination.push_back(m.destination[0]);
  m.destination[1].name = "v";
  m.destination[1].alias_of = "w";
  m.destination[1].pieces.clear();
  m.destination[1].strides = {99, 1};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[1].strides = {4, 2};
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kMalformed));
}

TEST(Validate, OneMasterBufferMayHoldSeveralDtypes) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kBF16}, {"b", {4}, Dtype::kF32}, {"c", {4}, Dtype::kI32}});
  m.source = {BufferOf(0, "s", Dtype::kF32, {8}, {PieceOf("a", {0}, {4}, {0}), PieceOf("b", {0}, {4}, {4})})};
  EXPECT_TRUE(HasCode(Validate(m), ErrorCode::kDtypeMismatch));
  m.source[0].convert_rne = true;
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.source[0].pieces[1].tensor = "c";
  EXPECT_THAT(std::string(Validate(m).message()), AllOf(HasSubstr("\"c\""), HasSubstr("I32"), HasSubstr("F32")));
}

TEST(Validate, AWeightMayHaveSeveralScales) {
  Manifest m =
      WholeManifest({{"w", {4, 16}, Dtype::kF8E4M3}, {"s", {4, 4}, Dtype::kF8E8M0}, {"g", {1, 1}, Dtype::kF32}});
  m.coupled = {{"w", "s", {1, 4}}, {"w", "g", {4, 16}}};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  m.destination[2].rank = 1;
  EXPECT_THAT(std::string(Validate(m).message()), AllOf(HasSubstr("\"w\""), HasSubstr("\"g\"")));
}

// The view [3, 2] of [2, 3] nests in no way: its boxes cut blocks of two rows, their set does not.
TEST(Validate, BlocksArePiecesOfTheSetNotOfItsBoxes) {
  Manifest m = WholeManifest({{"w", {2, 3}, Dtype::kF8E4M3}, {"s", {1, 3}, Dtype::kF32}});
  m.coupled = {{"w", "s", {2, 1}}};
  m.destination[0] = BufferOf(0, "w", Dtype::kF8E4M3, {2, 3}, {ViewPiece("w", {3, 2}, {0, 0}, {3, 2}, {0, 0})});
  m.destination[0].pieces[0].axes = {1, 0};
  EXPECT_TRUE(Validate(m).ok()) << Validate(m);
  // Without its last two elements it cuts the last two blocks.
  m.destination[0].pieces[0].shape = {2, 2};
  m.destination[0].shape = {2, 2};
  m.destination[0].strides = {2, 1};
  EXPECT_THAT(std::string(Validate(m).message()), AllOf(HasSubstr("cuts a scale block of 2"), HasSubstr("\"w\"")));
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
