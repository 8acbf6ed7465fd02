#include "cli/pattern.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

constexpr Dtype kAll[] = {Dtype::kBool, Dtype::kF4,     Dtype::kF6E2M3, Dtype::kF6E3M2, Dtype::kU8,
                          Dtype::kI8,   Dtype::kF8E5M2, Dtype::kF8E4M3, Dtype::kF8E8M0, Dtype::kI16,
                          Dtype::kU16,  Dtype::kF16,    Dtype::kBF16,   Dtype::kI32,    Dtype::kU32,
                          Dtype::kF32,  Dtype::kC64,    Dtype::kF64,    Dtype::kI64,    Dtype::kU64};

// The finalizer with the shifts spelled as divisions.
uint64_t Mixed(uint64_t tensor, uint64_t element) {
  uint64_t z = tensor * 1099511627776u + element + 11400714819323198485u;
  z = (z ^ z / 1073741824u) * 13787848793156543929u;
  z = (z ^ z / 134217728u) * 10723151780598845931u;
  return z ^ z / 2147483648u;
}

// One tensor of `dtype` on source rank 0, held in `source`.
Manifest Held(Dtype dtype, Dtype source) {
  const TensorSpec t = {"t", {4}, dtype};
  Manifest m = WholeManifest({t});
  m.source[0].dtype = source;
  m.source[0].convert_rne = source != dtype;
  return m;
}

// What a float of these field widths is worth, by arithmetic.
double ValueOf(uint64_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = static_cast<double>(bits & ((uint64_t{1} << mantissa_bits) - 1));
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp(mantissa + std::ldexp(1, mantissa_bits), exponent - bias - mantissa_bits);
  }
  return bits >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

bool IsNan(uint64_t bits, int exponent_bits, int mantissa_bits) {
  const uint64_t magnitude = bits & ((uint64_t{1} << (exponent_bits + mantissa_bits)) - 1);
  return magnitude > ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
}

// The bits as F32 or F64: by value, and NaNs by their sign and payload.
uint64_t Widened(uint64_t bits, int exponent_bits, int mantissa_bits, Dtype to) {
  const bool single = to == Dtype::kF32;
  if (IsNan(bits, exponent_bits, mantissa_bits)) {
    const uint64_t payload = bits & ((uint64_t{1} << mantissa_bits) - 1);
    const uint64_t sign = bits >> (exponent_bits + mantissa_bits);
    return single ? sign << 31 | 0x7F800000u | payload << (23 - mantissa_bits)
                  : sign << 63 | 0x7FF0000000000000u | payload << (52 - mantissa_bits);
  }
  const double value = ValueOf(bits, exponent_bits, mantissa_bits);
  return single ? std::bit_cast<uint32_t>(static_cast<float>(value)) : std::bit_cast<uint64_t>(value);
}

TEST(Pattern, IsThePublishedGenerator) {
  const Pattern pattern(Held(Dtype::kU64, Dtype::kU64), false);
  // The first outputs of splitmix64.c from the states 0, 1234567 and 0x9E3779B97F4A7C15 (the second one from 0).
  EXPECT_EQ(pattern.Bits(0, 0, Dtype::kU64), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(pattern.Bits(0, 1234567, Dtype::kU64), 6457827717110365317u);
  EXPECT_EQ(pattern.Bits(0, static_cast<Index>(0x9E3779B97F4A7C15u), Dtype::kU64), 0x6E789E6AA1B965F4u);
}

TEST(Pattern, IsTheTopBitsOfEachTensorAndElement) {
  std::vector<TensorSpec> tensors;
  for (Dtype d : kAll) tensors.push_back({std::string(DtypeName(d)), {4}, d});
  const Manifest m = WholeManifest(tensors);
  const Pattern pattern(m, false), inverted(m, true);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int bits = DtypeBits(tensors[t].dtype);
    const uint64_t all = ~uint64_t{0} >> (64 - bits);
    for (Index e : {Index{0}, Index{1}, Index{77}, (Index{1} << 40) - 1}) {
      const uint64_t want = Mixed(t, static_cast<uint64_t>(e)) >> (64 - bits);
      EXPECT_EQ(pattern.Bits(static_cast<int>(t), e, tensors[t].dtype), want) << tensors[t].name << " " << e;
      EXPECT_EQ(inverted.Bits(static_cast<int>(t), e, tensors[t].dtype), want ^ all) << tensors[t].name << " " << e;
    }
  }
}

TEST(Pattern, HoldsWhatItsNarrowestSourceCan) {
  Manifest m = Held(Dtype::kF64, Dtype::kF32);
  Buffer narrow = m.source[0];
  narrow.rank = 1;
  narrow.dtype = Dtype::kBF16;
  m.source.push_back(narrow);
  std::swap(m.source[0], m.source[1]);  // the order of the sources does not matter
  const Pattern pattern(m, false);
  const uint64_t held = Mixed(0, 3) >> 48;
  EXPECT_EQ(pattern.Bits(0, 3, Dtype::kBF16), held);
  EXPECT_EQ(pattern.Bits(0, 3, Dtype::kF32), held << 16);
  EXPECT_EQ(pattern.Bits(0, 3, Dtype::kF64), Widened(held, 8, 7, Dtype::kF64));
}

TEST(Pattern, AWiderSourceHoldsTheTensorsValue) {
  const Pattern pattern(Held(Dtype::kBF16, Dtype::kF32), false);
  for (Index e = 0; e < 1000; ++e) {
    const uint64_t held = Mixed(0, static_cast<uint64_t>(e)) >> 48;
    EXPECT_EQ(pattern.Bits(0, e, Dtype::kBF16), held);
    EXPECT_EQ(pattern.Bits(0, e, Dtype::kF32), held << 16);
  }
}

TEST(Pattern, WidensExactlyTheFloatsThatHoldTheOther) {
  const std::set<std::pair<Dtype, Dtype>> wider = {{Dtype::kF16, Dtype::kF32},
                                                   {Dtype::kF16, Dtype::kF64},
                                                   {Dtype::kBF16, Dtype::kF32},
                                                   {Dtype::kBF16, Dtype::kF64},
                                                   {Dtype::kF32, Dtype::kF64}};
  for (Dtype from : kAll) {
    for (Dtype to : kAll) {
      EXPECT_EQ(Widens(from, to), from == to || wider.count({from, to}) > 0) << DtypeName(from) << " " << DtypeName(to);
    }
  }
}

// Elements are drawn until each of the 65,536 bit patterns came.
void WidenAll(Dtype from, int exponent_bits, int mantissa_bits) {
  for (Dtype to : {Dtype::kF32, Dtype::kF64}) {
    const Pattern pattern(Held(to, from), false);
    std::vector<bool> seen(65536);
    Index e = 0;
    for (int left = 65536; left > 0; ++e) {
      const uint64_t bits = Mixed(0, static_cast<uint64_t>(e)) >> 48;
      if (seen[bits]) continue;
      seen[bits] = true;
      --left;
      ASSERT_EQ(pattern.Bits(0, e, to), Widened(bits, exponent_bits, mantissa_bits, to))
          << DtypeName(from) << " " << bits << " as " << DtypeName(to);
    }
  }
}

TEST(Pattern, WidensEveryBF16) { WidenAll(Dtype::kBF16, 8, 7); }

TEST(Pattern, WidensEveryF16) { WidenAll(Dtype::kF16, 5, 10); }

TEST(Pattern, WidensF32AsTheMachineDoes) {
  const Pattern pattern(Held(Dtype::kF64, Dtype::kF32), false);
  int nans = 0, denormals = 0;
  for (Index e = 0; e < 20000; ++e) {
    const uint32_t bits = static_cast<uint32_t>(Mixed(0, static_cast<uint64_t>(e)) >> 32);
    const uint64_t got = pattern.Bits(0, e, Dtype::kF64);
    const float value = std::bit_cast<float>(bits);
    denormals += std::fpclassify(value) == FP_SUBNORMAL ? 1 : 0;
    if (std::isnan(value)) {
      ++nans;
      ASSERT_EQ(got, Widened(bits, 8, 23, Dtype::kF64)) << bits;
    } else {
      ASSERT_EQ(got, std::bit_cast<uint64_t>(static_cast<double>(value))) << bits;
    }
  }
  EXPECT_GT(nans, 10);
  EXPECT_GT(denormals, 10);
}

// A buffer of 5 x 3 in memory of 6 x 4 slots: a transposed box of t, a viewed box of u, a fill, and a place to keep.
struct Pieces {
  Pieces() {
    manifest.tensors = {{"t", {3, 4}, Dtype::kU16}, {"u", {12}, Dtype::kU16}};
    Piece transposed = PieceOf("t", {1, 1}, {2, 3}, {1, 0});  // t[1..3, 1..4] along columns 0..2, rows 1..4
    transposed.axes = {1, 0};
    Piece viewed = ViewPiece("u", {3, 4}, {2, 1}, {1, 2}, {4, 1});  // u[9], u[10] at row 4, columns 1 and 2
    Piece zero = FillOf(PieceKind::kZero, {3, 1}, {1, 2});
    Piece keep = FillOf(PieceKind::kKeep, {1, 3}, {0, 0});
    buffer = BufferOf(0, "b", Dtype::kU16, {5, 3}, {transposed, viewed, zero, keep});
    buffer.strides = {4, 1};
    manifest.source = {buffer};
  }

  Manifest manifest;
  Buffer buffer;
};

TEST(Paint, LaysBoxesAndFillsAndNothingElse) {
  const Pieces p;
  const Pattern pattern(p.manifest, false);
  std::vector<std::byte> bytes(2 * 19, kPoison);
  Paint(p.manifest, p.buffer, pattern, &bytes);
  std::vector<uint64_t> want(19, 0xA5A5);
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 2; ++column) {
      want[(row + 1) * 4 + column] = Mixed(0, (1 + column) * 4 + 1 + row) >> 48;
    }
    want[(row + 1) * 4 + 2] = 0;
  }
  want[4 * 4 + 1] = Mixed(1, 9) >> 48;
  want[4 * 4 + 2] = Mixed(1, 10) >> 48;
  for (Index slot = 0; slot < 19; ++slot) EXPECT_EQ(ElementAt(Dtype::kU16, bytes, slot), want[slot]) << slot;
}

TEST(Paint, APieceOfNothingIsNothing) {
  Manifest m;
  m.tensors = {{"t", {0, 4}, Dtype::kU8}};
  m.source = {WholeBuffer(0, m.tensors[0])};
  std::vector<std::byte> bytes;
  Paint(m, m.source[0], Pattern(m, false), &bytes);
  EXPECT_EQ(FirstUnlike(m, m.source[0], Pattern(m, false), bytes), "");
}

TEST(Paint, AScalarIsOneElement) {
  const Manifest m = WholeManifest({{"t", {}, Dtype::kU8}});
  std::vector<std::byte> bytes(1, kPoison);
  Paint(m, m.source[0], Pattern(m, false), &bytes);
  EXPECT_EQ(std::to_integer<uint64_t>(bytes[0]), Mixed(0, 0) >> 56);
}

TEST(FirstUnlike, NamesTheTensorOfEachElementThatDiffersAndNoFill) {
  const Pieces p;
  const Pattern pattern(p.manifest, false);
  std::vector<std::byte> bytes(2 * 19, kPoison);
  Paint(p.manifest, p.buffer, pattern, &bytes);
  EXPECT_EQ(FirstUnlike(p.manifest, p.buffer, pattern, bytes), "");
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> changed = bytes;
    changed[i] ^= std::byte{1};
    const size_t row = i / 2 / 4, column = i / 2 % 4;
    const bool in_t = row >= 1 && row <= 3 && column <= 1, in_u = row == 4 && (column == 1 || column == 2);
    EXPECT_EQ(FirstUnlike(p.manifest, p.buffer, pattern, changed), in_t ? "t" : in_u ? "u" : "") << i;
  }
  EXPECT_EQ(FirstUnlike(p.manifest, p.buffer, Pattern(p.manifest, true), bytes), "t");
}

// Packed elements, least significant bit first, are one long number.
void Packed(Dtype dtype, int bits) {
  const Manifest m = WholeManifest({{"t", {8}, dtype}});
  std::vector<std::byte> bytes(static_cast<size_t>(bits), kPoison);
  Paint(m, m.source[0], Pattern(m, false), &bytes);
  uint64_t number = 0;
  for (int e = 7; e >= 0; --e) number = number << bits | Mixed(0, e) >> (64 - bits);
  for (int i = 0; i < bits; ++i) EXPECT_EQ(std::to_integer<uint64_t>(bytes[i]), number >> (8 * i) & 255) << i;
  for (int e = 0; e < 8; ++e) EXPECT_EQ(ElementAt(dtype, bytes, e), Mixed(0, e) >> (64 - bits)) << e;
}

TEST(Paint, PacksFourBits) { Packed(Dtype::kF4, 4); }

TEST(Paint, PacksSixBits) { Packed(Dtype::kF6E2M3, 6); }

TEST(Paint, ChangesNoNeighbourOfAPackedElement) {
  Manifest m;
  m.tensors = {{"t", {1}, Dtype::kF6E3M2}};
  m.source = {BufferOf(0, "b", Dtype::kF6E3M2, {4}, {PieceOf("t", {0}, {1}, {2})})};
  std::vector<std::byte> bytes(3, kPoison);
  Paint(m, m.source[0], Pattern(m, false), &bytes);
  const uint64_t mask = uint64_t{63} << 12;
  const uint64_t want = (0xA5A5A5 & ~mask) | Mixed(0, 0) >> 58 << 12;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(std::to_integer<uint64_t>(bytes[i]), want >> (8 * i) & 255) << i;
}

}  // namespace
}  // namespace headrace
