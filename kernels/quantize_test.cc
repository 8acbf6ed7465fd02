#include "kernels/quantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/quantize_bits.h"
#include "kernels/test_support.h"

namespace headrace::kernels {
namespace {

using testing::Cases;
using testing::SeededGenerator;
using testing::Uniform;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value of a non-negative F8_E4M3 code, by the format's definition.
double E4M3Value(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// The nearest code by search, ties to the even one, with saturation; NaN is 0x7F.
uint8_t OracleE4M3(double x) {
  if (std::isnan(x)) return 0x7F;
  const double magnitude = std::min(std::abs(x), 448.0);
  int best = 0;
  for (int code = 1; code <= 0x7E; ++code) {
    const double d = std::abs(E4M3Value(code) - magnitude), least = std::abs(E4M3Value(best) - magnitude);
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(E4M3Test, NearestOfAllBF16AndTies) {
  for (uint32_t high = 0; high < 65536; ++high) {
    const uint32_t bits = high << 16;
    const auto x = std::bit_cast<float>(bits);
    const uint8_t expected = std::isnan(x) ? 0x7F | (high >> 15 << 7) : OracleE4M3(x);
    ASSERT_EQ(internal::E4M3Bits(bits, 0), expected) << x;
  }
  // Halfway between codes, and its neighbours.
  for (int code = 0; code < 0x7E; ++code) {
    const auto half = static_cast<float>((E4M3Value(code) + E4M3Value(code + 1)) / 2);
    for (float x : {half, std::nextafter(half, 0.0f), std::nextafter(half, 1000.0f)}) {
      for (int power : {0, 1, -3}) {
        ASSERT_EQ(internal::E4M3Bits(std::bit_cast<uint32_t>(std::ldexp(x, -power)), power), OracleE4M3(x)) << x;
        ASSERT_EQ(internal::E4M3Bits(std::bit_cast<uint32_t>(-x), 0), OracleE4M3(-x)) << x;
      }
    }
  }
}

TEST(E4M3Test, PowersBeyondF32) {
  EXPECT_EQ(internal::E4M3Bits(1, 127 + 22), OracleE4M3(1));  // the least denormal, 2^-149
  EXPECT_EQ(internal::E4M3Bits(1, 127), OracleE4M3(std::ldexp(1, -22)));
  EXPECT_EQ(internal::E4M3Bits(0x7F7FFFFF, -127), OracleE4M3(2));
  EXPECT_EQ(internal::E4M3Bits(0x7F7FFFFF, 127), 0x7E);
  EXPECT_EQ(internal::E4M3Bits(0x00000001, -127), 0);
}

TEST(BlockScaleTest, E8M0IsTheLeastThatHoldsTheMaximum) {
  auto gen = SeededGenerator();
  for (int64_t n = Cases(100000); n > 0; --n) {
    auto bits = static_cast<uint32_t>(gen() & 0x7FFFFFFF);
    if (n % 3 == 0) bits = (bits & 0x7F800000) + 0x600000u + static_cast<uint32_t>(Uniform(gen, -1, 1));
    if (bits > 0x7F800000) continue;
    const double maximum = std::bit_cast<float>(bits);
    int e = 0;
    while (e < 254 && maximum > std::ldexp(448.0, e - 127)) ++e;
    ASSERT_EQ(internal::BlockScaleE8M0(bits), e) << maximum;
  }
}

// A matrix, quantized as a whole by the definitions.
struct Reference {
  std::vector<uint8_t> elements;
  std::map<std::pair<int64_t, int64_t>, uint32_t> scales;  // bits, by block
};

Reference QuantizeWhole(BlockScale scale, int64_t rows, int64_t cols, const std::vector<float>& x) {
  const int64_t height = scale == BlockScale::kF32Of128x128 ? 128 : 1, width = height == 1 ? 32 : 128;
  Reference reference;
  std::map<std::pair<int64_t, int64_t>, float> amax;
  auto block = [&](int64_t i) { return std::pair(i / cols / height, i % cols / width); };
  for (int64_t i = 0; i < rows * cols; ++i) {
    float& most = amax[block(i)];
    const float magnitude = std::abs(x[static_cast<size_t>(i)]);
    most = std::isnan(most) || std::isnan(magnitude) ? kNaN : std::max(most, magnitude);
  }
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float most = amax[block(i)], value = x[static_cast<size_t>(i)];
    if (height == 128) {
      const float factor = std::isnan(most) ? kNaN : std::max(most, 1e-4f) / 448.0f;
      reference.scales[block(i)] = std::bit_cast<uint32_t>(factor);
      reference.elements.push_back(OracleE4M3(value * (1.0f / factor)));
    } else {
      int e = 0;
      while (e < 254 && most > std::ldexp(448.0, e - 127)) ++e;
      if (std::isnan(most)) e = 255;
      reference.scales[block(i)] = static_cast<uint32_t>(e);
      reference.elements.push_back(e == 255 ? 0x7F : OracleE4M3(std::ldexp(static_cast<double>(value), 127 - e)));
    }
  }
  return reference;
}

struct Shard {
  QuantizeBox box;
  BlockGrid grid;
  std::vector<float> memory;
  std::vector<uint32_t> maxima;
};

// Cuts a matrix at random rows and columns into shards, some column-major; each is quantized by itself but for the
// maxima of common blocks.
void CheckShards(std::mt19937_64& gen, BlockScale scale, int64_t rows, int64_t cols, const std::vector<float>& x) {
  const Reference reference = QuantizeWhole(scale, rows, cols, x);
  std::vector<int64_t> row_cuts{0, rows, Uniform(gen, 0, rows), Uniform(gen, 0, rows)};
  std::vector<int64_t> col_cuts{0, cols, Uniform(gen, 0, cols), Uniform(gen, 0, cols)};
  std::sort(row_cuts.begin(), row_cuts.end());
  std::sort(col_cuts.begin(), col_cuts.end());
  std::vector<Shard> shards;
  std::map<std::pair<int64_t, int64_t>, uint32_t> combined;
  for (size_t i = 1; i < row_cuts.size(); ++i) {
    for (size_t j = 1; j < col_cuts.size(); ++j) {
      Shard s;
      s.box.first_row = row_cuts[i - 1], s.box.rows = row_cuts[i] - row_cuts[i - 1];
      s.box.first_col = col_cuts[j - 1], s.box.cols = col_cuts[j] - col_cuts[j - 1];
      const bool column_major = Uniform(gen, 0, 2) == 0;
      s.box.src_stride[0] = 4 * (column_major ? 1 : s.box.cols);
      s.box.src_stride[1] = 4 * (column_major ? s.box.rows : 1);
      s.memory.resize(static_cast<size_t>(s.box.rows * s.box.cols));
      for (int64_t r = 0; r < s.box.rows; ++r) {
        for (int64_t c = 0; c < s.box.cols; ++c) {
          s.memory[static_cast<size_t>((r * s.box.src_stride[0] + c * s.box.src_stride[1]) / 4)] =
              x[static_cast<size_t>((s.box.first_row + r) * cols + s.box.first_col + c)];
        }
      }
      s.box.src = reinterpret_cast<const std::byte*>(s.memory.data());
      s.grid = BlocksOf(scale, s.box);
      s.maxima.resize(static_cast<size_t>(s.grid.rows * s.grid.cols));
      BlockMaxima(scale, s.box, s.maxima.data(), s.grid.cols);
      for (size_t b = 0; b < s.maxima.size(); ++b) {
        const auto at = static_cast<int64_t>(b);
        uint32_t& all = combined[{s.grid.first_row + at / s.grid.cols, s.grid.first_col + at % s.grid.cols}];
        CombineMaxima(&s.maxima[b], 1, &all);
      }
      shards.push_back(std::move(s));
    }
  }
  for (Shard& s : shards) {
    std::vector<std::byte> elements(static_cast<size_t>(s.box.rows * s.box.cols * 2), std::byte{0xA5});
    const int scale_bytes = ScaleBytes(scale);
    std::vector<std::byte> scales(s.maxima.size() * static_cast<size_t>(scale_bytes));
    for (size_t b = 0; b < s.maxima.size(); ++b) {
      const auto at = static_cast<int64_t>(b);
      s.maxima[b] = combined[{s.grid.first_row + at / s.grid.cols, s.grid.first_col + at % s.grid.cols}];
    }
    Quantize(scale, s.box, s.maxima.data(), s.grid.cols,
             {elements.data(), {s.box.cols * 2, 2}, scales.data(), {scale_bytes, scale_bytes * s.grid.rows}});
    for (int64_t r = 0; r < s.box.rows; ++r) {
      for (int64_t c = 0; c < s.box.cols; ++c) {
        const auto at = static_cast<size_t>((r * s.box.cols + c) * 2);
        ASSERT_EQ(static_cast<int>(elements[at]),
                  reference.elements[static_cast<size_t>((s.box.first_row + r) * cols + s.box.first_col + c)])
            << r << " " << c << " value " << x[static_cast<size_t>((s.box.first_row + r) * cols + s.box.first_col + c)];
        ASSERT_EQ(elements[at + 1], std::byte{0xA5});
      }
    }
    for (int64_t i = 0; i < s.grid.rows; ++i) {
      for (int64_t j = 0; j < s.grid.cols; ++j) {
        uint32_t got = 0;
        std::memcpy(&got, scales.data() + scale_bytes * (i + j * s.grid.rows), static_cast<size_t>(scale_bytes));
        ASSERT_EQ(got, reference.scales.at({s.grid.first_row + i, s.grid.first_col + j}));
      }
    }
  }
}

class QuantizeTest : public ::testing::TestWithParam<BlockScale> {};

TEST_P(QuantizeTest, RandomMatricesCutAnywhere) {
  auto gen = SeededGenerator();
  for (int64_t n = Cases(40); n > 0; --n) {
    const int64_t rows = Uniform(gen, 1, 300), cols = Uniform(gen, 1, 300);
    std::vector<float> x(static_cast<size_t>(rows * cols));
    const int exponent = static_cast<int>(Uniform(gen, -150, 120));
    for (float& v : x) {
      v = std::normal_distribution<float>(0, 1)(gen);
      if (n % 3 == 0) v = std::ldexp(v, exponent);
      constexpr float kSpecial[] = {0.0f, -0.0f, 1e-45f, -1e-40f, kInfinity, -kInfinity, kNaN, 3.4e38f, 448.0f, 1e-4f};
      if (n % 2 == 0 && Uniform(gen, 0, 500) == 0) v = kSpecial[Uniform(gen, 0, 9)];
    }
    ASSERT_NO_FATAL_FAILURE(CheckShards(gen, GetParam(), rows, cols, x));
  }
}

// A block across two shards, all of whose maximum is in the second.
TEST_P(QuantizeTest, TheMaximumOnAnotherShard) {
  for (float maximum : {448.0f, 449.0f, 3e4f, kInfinity, kNaN}) {
    QuantizeBox first, second;
    const std::vector<float> a(16, 1.0f), b{2.0f, maximum, 1.0f, -0.0f};
    first.src = reinterpret_cast<const std::byte*>(a.data());
    first.rows = 1, first.cols = 16, first.src_stride[1] = 4;
    second.src = reinterpret_cast<const std::byte*>(b.data());
    second.rows = 1, second.cols = 4, second.src_stride[1] = 4, second.first_col = 16;
    uint32_t maxima[2] = {};
    BlockMaxima(GetParam(), first, &maxima[0], 1);
    BlockMaxima(GetParam(), second, &maxima[1], 1);
    EXPECT_EQ(std::bit_cast<float>(maxima[0]), 1.0f);
    CombineMaxima(&maxima[1], 1, &maxima[0]);
    std::vector<std::byte> elements(16);
    std::byte scale[4];
    Quantize(GetParam(), first, maxima, 1, {elements.data(), {16, 1}, scale, {4, 4}});
    std::vector<float> whole = a;
    whole.insert(whole.end(), b.begin(), b.end());
    const Reference reference = QuantizeWhole(GetParam(), 1, 20, whole);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(static_cast<int>(elements[i]), reference.elements[i]) << maximum;
  }
}

INSTANTIATE_TEST_SUITE_P(Scales, QuantizeTest, ::testing::Values(BlockScale::kF32Of128x128, BlockScale::kE8M0Of1x32),
                         [](const auto& info) {
                           return info.param == BlockScale::kF32Of128x128 ? "F32Of128x128" : "E8M0Of1x32";
                         });

TEST(QuantizeTypesTest, F16AndBF16AreWidened) {
  const uint16_t half[2] = {0x3C00, 0xC000}, brain[2] = {0x3F80, 0xC000};  // 1, -2
  for (FloatType type : {FloatType::kF16, FloatType::kBF16}) {
    ASSERT_TRUE(CanQuantize(type));
    QuantizeBox box;
    box.type = type;
    box.src = reinterpret_cast<const std::byte*>(type == FloatType::kF16 ? half : brain);
    box.rows = 1, box.cols = 2, box.src_stride[1] = 2;
    uint32_t maximum = 0;
    BlockMaxima(BlockScale::kE8M0Of1x32, box, &maximum, 1);
    EXPECT_EQ(std::bit_cast<float>(maximum), 2.0f);
    std::byte elements[2], scale;
    Quantize(BlockScale::kE8M0Of1x32, box, &maximum, 1, {elements, {2, 1}, &scale, {1, 1}});
    EXPECT_EQ(static_cast<int>(scale), 127 - 7);  // 2 / 448 is above 2^-8
    EXPECT_EQ(static_cast<int>(elements[0]), OracleE4M3(128));
    EXPECT_EQ(static_cast<int>(elements[1]), OracleE4M3(-256));
  }
  EXPECT_FALSE(CanQuantize(FloatType::kF64));
}

// One NaN for all, so that ranks combine and compare integers.
TEST(BlockMaximaTest, EveryNaNIsTheSame) {
  for (uint32_t bits : {0x7F800001u, 0xFFC12345u, 0x7FFFFFFFu}) {
    const uint32_t values[3] = {0x3F800000u, bits, 0x7F800000u};
    QuantizeBox box;
    box.src = reinterpret_cast<const std::byte*>(values);
    box.rows = 1, box.cols = 3, box.src_stride[1] = 4;
    uint32_t maximum = 0;
    BlockMaxima(BlockScale::kF32Of128x128, box, &maximum, 1);
    EXPECT_EQ(maximum, 0x7FC00000u);
  }
}

}  // namespace
}  // namespace headrace::kernels
