#include "kernels/neg_exp.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/test_support.h"

namespace headrace::kernels {
namespace {

using testing::Cases;
using testing::SeededGenerator;
using testing::Uniform;

float Of(float x) {
  float y;
  StridedCast one;
  one.src = reinterpret_cast<const std::byte*>(&x);
  one.dst = reinterpret_cast<std::byte*>(&y);
  NegExp(one);
  return y;
}

// How far the result is from the exact value, in units in the last place of an F32 of that magnitude.
long double Distance(float x) {
  const long double exact = -std::exp(static_cast<long double>(x));
  const float got = Of(x);
  int exponent;
  std::frexp(exact, &exponent);
  const long double unit = std::ldexp(1.0L, std::max(exponent - 24, -149));
  // Infinity stands for the value after the largest finite one.
  const long double value = std::isinf(got) ? -std::ldexp(1.0L, 128) : static_cast<long double>(got);
  if (std::isinf(got) && exact < -std::ldexp(1.0L, 128)) return got < 0 ? 0 : 1e9L;
  return std::abs(value - exact) / unit;
}

TEST(NegExpTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Of(0.0f), -1.0f);
  EXPECT_EQ(Of(-0.0f), -1.0f);
  EXPECT_EQ(Of(kInfinity), -kInfinity);
  EXPECT_EQ(std::bit_cast<uint32_t>(Of(-kInfinity)), 0x80000000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(Of(std::bit_cast<float>(0xFFC12345u))), 0x7FC00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(Of(std::bit_cast<float>(0x7F800001u))), 0x7FC00000u);
  EXPECT_EQ(Of(1e-45f), -1.0f);
  EXPECT_TRUE(std::isfinite(Of(88.72283f)));
  EXPECT_EQ(Of(88.72284f), -kInfinity);
  EXPECT_EQ(Of(-103.97f), -1e-45f);
  EXPECT_EQ(std::bit_cast<uint32_t>(Of(-104.0f)), 0x80000000u);
}

TEST(NegExpTest, WithinOneUnitEverywhere) {
  auto gen = SeededGenerator();
  long double worst = 0;
  for (int64_t n = Cases(1000000); n > 0; --n) {
    // All magnitudes, and dense where results are finite.
    float x = std::bit_cast<float>(static_cast<uint32_t>(gen()));
    if (n % 2) x = std::uniform_real_distribution<float>(-105, 89.5)(gen);
    if (std::isnan(x)) continue;
    const long double distance = Distance(x);
    worst = std::max(worst, distance);
    ASSERT_LE(distance, 0.5001L) << x << " " << Of(x);
  }
  std::cout << "at most " << worst << " units from the exact value\n";
}

TEST(NegExpTest, StridedBoxes) {
  auto gen = SeededGenerator();
  for (int n = 0; n < 200; ++n) {
    const int64_t rows = Uniform(gen, 0, 9), cols = Uniform(gen, 0, 9);
    std::vector<float> src(static_cast<size_t>(rows * cols * 2 + 1)), dst(src.size(), 7), expected = dst;
    for (float& x : src) x = std::uniform_real_distribution<float>(-5, 5)(gen);
    StridedCast c;
    c.rank = 2;
    c.extent[0] = rows, c.extent[1] = cols;
    c.src_stride[0] = 4, c.src_stride[1] = 4 * rows;              // columns follow each other
    c.dst_stride[0] = 8 * cols, c.dst_stride[1] = n % 2 ? 4 : 8;  // rows with gaps
    c.src = reinterpret_cast<const std::byte*>(src.data());
    c.dst = reinterpret_cast<std::byte*>(dst.data());
    NegExp(c);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < cols; ++k) {
        expected[static_cast<size_t>(r * cols * 2 + k * (n % 2 ? 1 : 2))] = Of(src[static_cast<size_t>(k * rows + r)]);
      }
    }
    ASSERT_EQ(dst, expected);
  }
}

}  // namespace
}  // namespace headrace::kernels
