#include "kernels/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/test_support.h"

namespace headrace::kernels {
namespace {

using internal::SimdLevel;
using testing::Cases;
using testing::Levels;
using testing::ScopedLevel;
using testing::SeededGenerator;
using testing::Uniform;

// The exact value of a 16-bit pattern, by its definition.
double Value16(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  }
  return bits & 0x8000 ? -value : value;
}

constexpr int kF16Exponent = 5;
constexpr int kBF16Exponent = 8;

// The 16-bit pattern nearest to a number that is not a NaN, found by search among all patterns. Midpoints of
// neighbours are exact in double.
uint16_t Nearest16(double value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  const double magnitude = std::fabs(value);
  // Non-negative patterns are ordered like their values; what stands for infinity when rounding is the value that
  // would follow the largest finite one.
  auto at = [&](int bits) {
    if (bits < infinity) return Value16(static_cast<uint16_t>(bits), exponent_bits);
    return std::ldexp(1.0, 1 << (exponent_bits - 1));
  };
  int low = 0, high = infinity;  // at(low) <= magnitude < at(high), unless beyond the end
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (at(middle) <= magnitude ? low : high) = middle;
  }
  const double half = (at(low) + at(high)) / 2;
  int nearest = magnitude > half ? high : low;
  if (magnitude == half) nearest = low % 2 == 0 ? low : high;
  return static_cast<uint16_t>(nearest | (std::signbit(value) ? 0x8000 : 0));
}

template <class To, class From>
std::vector<To> CastAll(FloatType from, FloatType to, const std::vector<From>& in) {
  std::vector<To> out(in.size());
  StridedCast c;
  c.src = reinterpret_cast<const std::byte*>(in.data());
  c.dst = reinterpret_cast<std::byte*>(out.data());
  c.rank = 1;
  c.extent[0] = static_cast<int64_t>(in.size());
  c.src_stride[0] = sizeof(From);
  c.dst_stride[0] = sizeof(To);
  Cast(from, to, c);
  return out;
}

// The NaN that a NaN becomes: sign and payload's top bits; quiet where those are zero. Bits of `in` are aligned to the
// top of 64.
uint64_t NanOf(uint64_t in_top, int in_exponent, int out_exponent, int out_bits) {
  const uint64_t sign = in_top >> 63;
  const uint64_t payload = in_top << (1 + in_exponent);  // its top bit is bit 63
  const uint64_t exponent = (uint64_t{1} << out_exponent) - 1;
  const uint64_t kept = payload >> (1 + out_exponent) >> (64 - out_bits) << (64 - out_bits);
  const uint64_t quiet = uint64_t{1} << (62 - out_exponent);
  const uint64_t out = (sign << 63) | (exponent << (63 - out_exponent)) | (kept != 0 ? kept : quiet);
  return out >> (64 - out_bits);
}

TEST(CastTest, Types) {
  for (FloatType a : {FloatType::kF16, FloatType::kBF16, FloatType::kF32, FloatType::kF64}) {
    for (FloatType b : {FloatType::kF16, FloatType::kBF16, FloatType::kF32, FloatType::kF64}) {
      EXPECT_EQ(CanCast(a, b), a != b);
    }
  }
  EXPECT_EQ(FloatBytes(FloatType::kF16), 2);
  EXPECT_EQ(FloatBytes(FloatType::kBF16), 2);
  EXPECT_EQ(FloatBytes(FloatType::kF32), 4);
  EXPECT_EQ(FloatBytes(FloatType::kF64), 8);
}

// All 65536 patterns to wider types, and between the two.
TEST(CastTest, All16BitPatterns) {
  std::vector<uint16_t> in(65536);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  for (auto [from, from_exponent, other, other_exponent] :
       {std::tuple{FloatType::kF16, kF16Exponent, FloatType::kBF16, kBF16Exponent},
        std::tuple{FloatType::kBF16, kBF16Exponent, FloatType::kF16, kF16Exponent}}) {
    const auto f32 = CastAll<uint32_t>(from, FloatType::kF32, in);
    const auto f64 = CastAll<uint64_t>(from, FloatType::kF64, in);
    const auto f16 = CastAll<uint16_t>(from, other, in);
    const auto back = CastAll<uint16_t>(FloatType::kF32, from, f32);
    for (size_t i = 0; i < in.size(); ++i) {
      const double value = Value16(in[i], from_exponent);
      if (std::isnan(value)) {
        const uint64_t top = static_cast<uint64_t>(in[i]) << 48;
        ASSERT_EQ(f32[i], NanOf(top, from_exponent, 8, 32)) << i;
        ASSERT_EQ(f64[i], NanOf(top, from_exponent, 11, 64)) << i;
        ASSERT_EQ(f16[i], NanOf(top, from_exponent, other_exponent, 16)) << i;
        ASSERT_EQ(back[i], NanOf(top, from_exponent, from_exponent, 16)) << i;
        continue;
      }
      ASSERT_EQ(f32[i], std::bit_cast<uint32_t>(static_cast<float>(value))) << i;  // exact in both
      ASSERT_EQ(f64[i], std::bit_cast<uint64_t>(value)) << i;
      ASSERT_EQ(f16[i], Nearest16(value, other_exponent)) << i;
      ASSERT_EQ(back[i], in[i]) << i;
    }
  }
}

// Every sign and exponent with mantissas around every rounding boundary, and random ones.
template <class Bits>
std::vector<Bits> EdgeInputs(std::mt19937_64& gen, int mantissa_bits, int exponent_bits, int64_t random) {
  std::vector<uint64_t> mantissas{0};
  const uint64_t mask = (uint64_t{1} << mantissa_bits) - 1;
  for (int bit = 0; bit < mantissa_bits; ++bit) {
    const uint64_t one = uint64_t{1} << bit;
    for (uint64_t m : {one, one - 1, one + 1, mask ^ one, mask - one, mask - one + 2, 3 * one, 3 * one - 1, 3 * one + 1,
                       mask ^ (one - 1), (gen() << (bit + 1)) | one, (gen() << bit)}) {
      mantissas.push_back(m & mask);
    }
  }
  std::vector<Bits> in;
  for (uint64_t upper = 0; upper < uint64_t{2} << exponent_bits; ++upper) {
    if (exponent_bits > 8 && Uniform(gen, 0, 99) >= testing::Share()) continue;
    for (uint64_t m : mantissas) in.push_back(static_cast<Bits>(upper << mantissa_bits | m));
  }
  for (int64_t i = 0; i < random; ++i) in.push_back(static_cast<Bits>(gen()));
  return in;
}

TEST(CastTest, NarrowingF32) {
  auto gen = SeededGenerator();
  const auto in = EdgeInputs<uint32_t>(gen, 23, 8, Cases(1000000));
  std::cout << in.size() << " values\n";
  for (SimdLevel level : Levels()) {
    ScopedLevel scoped(level);
    const auto bf16 = CastAll<uint16_t>(FloatType::kF32, FloatType::kBF16, in);
    const auto f16 = CastAll<uint16_t>(FloatType::kF32, FloatType::kF16, in);
    for (size_t i = 0; i < in.size(); ++i) {
      const double value = std::bit_cast<float>(in[i]);
      const uint64_t top = static_cast<uint64_t>(in[i]) << 32;
      const bool nan = std::isnan(value);
      ASSERT_EQ(bf16[i], nan ? NanOf(top, 8, 8, 16) : Nearest16(value, kBF16Exponent)) << std::hex << in[i];
      ASSERT_EQ(f16[i], nan ? NanOf(top, 8, 5, 16) : Nearest16(value, kF16Exponent)) << std::hex << in[i];
    }
  }
}

TEST(CastTest, NarrowingF64) {
  auto gen = SeededGenerator();
  auto in = EdgeInputs<uint64_t>(gen, 52, 11, Cases(300000));
  // Exponents in the range of the narrow types are rare among random doubles; and values one unit of F64 from a BF16
  // tie, where rounding through F32 would go wrong.
  for (int64_t i = Cases(300000); i > 0; --i) {
    in.push_back((gen() & 0x800FFFFFFFFFFFFFu) | static_cast<uint64_t>(Uniform(gen, 1023 - 160, 1023 + 130)) << 52);
    in.push_back((in.back() & ~uint64_t{0x1FFFFFFFFFFF}) + 0x100000000000u +
                 static_cast<uint64_t>(Uniform(gen, -1, 1)));
  }
  std::cout << in.size() << " values\n";
  const auto f32 = CastAll<uint32_t>(FloatType::kF64, FloatType::kF32, in);
  const auto bf16 = CastAll<uint16_t>(FloatType::kF64, FloatType::kBF16, in);
  const auto f16 = CastAll<uint16_t>(FloatType::kF64, FloatType::kF16, in);
  for (size_t i = 0; i < in.size(); ++i) {
    const double value = std::bit_cast<double>(in[i]);
    if (std::isnan(value)) {
      ASSERT_EQ(f32[i], NanOf(in[i], 11, 8, 32)) << std::hex << in[i];
      ASSERT_EQ(bf16[i], NanOf(in[i], 11, 8, 16)) << std::hex << in[i];
      ASSERT_EQ(f16[i], NanOf(in[i], 11, 5, 16)) << std::hex << in[i];
      continue;
    }
    // The processor's own conversion rounds to nearest even.
    const float beyond = std::fabs(value) >= 0x1.ffffffp127
                             ? std::copysign(INFINITY, static_cast<float>(value < 0 ? -1 : 1))
                             : static_cast<float>(value);
    ASSERT_EQ(f32[i], std::bit_cast<uint32_t>(beyond)) << std::hex << in[i];
    ASSERT_EQ(bf16[i], Nearest16(value, kBF16Exponent)) << std::hex << in[i];
    ASSERT_EQ(f16[i], Nearest16(value, kF16Exponent)) << std::hex << in[i];
  }
}

TEST(CastTest, KnownValues) {
  const std::vector<uint32_t> in{0x3F808000,  // 1 + 2^-8: a tie, to even
                                 0x3F818000,  // a tie, up to even
                                 0x3F808001, 0x7F7FFFFF, 0x7F7F7FFF, 0x00000001, 0x80008000, 0xFF800000,
                                 0x7F800001,   // a signalling NaN with its payload in the low bits
                                 0xFFC12345};  // a quiet one
  EXPECT_EQ(CastAll<uint16_t>(FloatType::kF32, FloatType::kBF16, in),
            (std::vector<uint16_t>{0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7F7F, 0x0000, 0x8000, 0xFF80, 0x7FC0, 0xFFC1}));
  // 65504 is the largest F16; from 65520 on it is infinity.
  const std::vector<float> large{65504.0f, 65519.996f, 65520.0f, -65520.0f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, -0.0f};
  EXPECT_EQ(CastAll<uint16_t>(FloatType::kF32, FloatType::kF16, large),
            (std::vector<uint16_t>{0x7BFF, 0x7BFF, 0x7C00, 0xFC00, 0x0001, 0x0000, 0x0001, 0x8000}));
}

// Boxes with all kinds of strides against a loop over elements that casts them one by one.
TEST(CastTest, StridedBoxes) {
  auto gen = SeededGenerator();
  constexpr std::byte kGuard{0xA5};
  constexpr FloatType kTypes[] = {FloatType::kF16, FloatType::kBF16, FloatType::kF32, FloatType::kF64};
  for (int64_t n = Cases(4000); n > 0; --n) {
    const FloatType from = kTypes[Uniform(gen, 0, 3)], to = kTypes[Uniform(gen, 0, 3)];
    if (from == to) continue;
    StridedCast c;
    c.rank = static_cast<int>(Uniform(gen, 0, kMaxCastLoops));
    int64_t room = 2000;
    for (int i = 0; i < c.rank; ++i) {
      c.extent[i] = Uniform(gen, Uniform(gen, 0, 30) == 0 ? 0 : 1, std::min<int64_t>(room, 50));
      room = std::max<int64_t>(1, room / std::max<int64_t>(1, c.extent[i]));
    }
    auto lay_out = [&](int64_t element, int64_t* stride) {
      std::array<int, kMaxCastLoops> order{0, 1, 2, 3, 4};
      if (Uniform(gen, 0, 1)) std::shuffle(order.begin(), order.begin() + c.rank, gen);
      int64_t bytes = element;
      for (int i = c.rank - 1; i >= 0; --i) {
        stride[order[i]] = bytes + (Uniform(gen, 0, 2) == 0 ? Uniform(gen, 0, 9) : 0);
        bytes = stride[order[i]] * std::max<int64_t>(1, c.extent[order[i]]);
      }
      return bytes;
    };
    const int64_t src_bytes = lay_out(FloatBytes(from), c.src_stride);
    const int64_t dst_bytes = lay_out(FloatBytes(to), c.dst_stride);
    auto src = testing::RandomBytes(gen, src_bytes);
    std::vector<std::byte> dst(static_cast<size_t>(dst_bytes + 64), kGuard), expect = dst;
    const int64_t skew = Uniform(gen, 0, 33);
    c.src = src.data();
    c.dst = dst.data() + skew;
    for (int i = 0; i < c.rank; ++i) {
      if (Uniform(gen, 0, 7) != 0) continue;  // this loop runs backwards in the source
      c.src += c.src_stride[i] * std::max<int64_t>(0, c.extent[i] - 1);
      c.src_stride[i] = -c.src_stride[i];
    }
    std::array<int64_t, kMaxCastLoops> extent{1, 1, 1, 1, 1}, i{};
    std::copy(c.extent, c.extent + c.rank, extent.begin());
    int64_t total = 1;
    for (int64_t e : extent) total *= e;
    for (int64_t flat = 0; flat < total; ++flat) {
      int64_t rest = flat, src_at = 0, dst_at = skew;
      for (int k = kMaxCastLoops - 1; k >= 0; --k) {
        i[k] = rest % extent[k], rest /= extent[k];
        src_at += i[k] * c.src_stride[k], dst_at += i[k] * c.dst_stride[k];
      }
      StridedCast one;
      one.src = c.src + src_at;
      one.dst = expect.data() + dst_at;
      Cast(from, to, one);
    }
    for (SimdLevel level : Levels()) {
      ScopedLevel scoped(level);
      std::fill(dst.begin(), dst.end(), kGuard);
      Cast(from, to, c);
      ASSERT_TRUE(dst == expect) << "level " << static_cast<int>(level) << " rank " << c.rank;
    }
  }
}

}  // namespace
}  // namespace headrace::kernels
