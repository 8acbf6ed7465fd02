#include "planner/number_columns.h"

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

std::string CodeOfColumn(const std::vector<int64_t>& values) {
  std::string code;
  AppendColumn(values, &code);
  return code;
}

void ExpectReadBack(const std::vector<int64_t>& values) {
  const std::string code = CodeOfColumn(values) + "rest";
  absl::string_view in = code;
  const auto back = TakeColumn(&in, values.size());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, values);
  EXPECT_EQ(in, "rest");
}

TEST(NumberColumnsTest, ExtremesAreReadBack) {
  ExpectReadBack({});
  for (const int64_t a : {kLeast, kLeast + 1, int64_t{-1}, int64_t{0}, int64_t{1}, kMost}) {
    for (const int64_t b : {kLeast, int64_t{-1}, int64_t{0}, kMost}) {
      ExpectReadBack({a});
      ExpectReadBack({a, b});
      ExpectReadBack({a, b, a, b, a, b, a, b});
      ExpectReadBack({a, a, a, a, b, b, b, b});
    }
  }
}

TEST(NumberColumnsTest, RandomColumnsAreReadBack) {
  const uint64_t seed = 5;
  std::mt19937_64 random(seed);
  for (int n = 0; n < 20000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", case " << n);
    std::vector<int64_t> values;
    // Loops of random depth, with some noise.
    const int64_t inner = 1 + random() % 5, outer = 1 + random() % 6;
    const int64_t step = static_cast<int64_t>(random() % 7) - 3, jump = static_cast<int64_t>(random() % 100);
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) values.push_back(o * jump + i * step);
      if (random() % 20 == 0) values.push_back(static_cast<int64_t>(random()));
    }
    ExpectReadBack(values);
    if (HasFailure()) return;
  }
}

TEST(NumberColumnsTest, NestedLoopsTakeAFewBytes) {
  std::vector<int64_t> layers, experts, kinds, offsets;
  for (int64_t layer = 3; layer < 61; ++layer) {
    for (int64_t expert = 0; expert < 256; ++expert) {
      for (int64_t kind = 0; kind < 3; ++kind) {
        layers.push_back(layer);
        experts.push_back(expert);
        kinds.push_back(kind);
        offsets.push_back(expert * 64 + kind);
      }
    }
  }
  for (const auto* column : {&layers, &experts, &kinds, &offsets}) {
    ExpectReadBack(*column);
    EXPECT_LT(CodeOfColumn(*column).size(), 64u);
  }
}

TEST(NumberColumnsTest, NeverMuchLargerThanTheNumbers) {
  const uint64_t seed = 6;
  std::mt19937_64 random(seed);
  for (int n = 0; n < 2000; ++n) {
    std::vector<int64_t> values(random() % 40);
    for (int64_t& value : values) value = static_cast<int64_t>(random() >> (random() % 64));
    size_t plain = 1;
    for (const int64_t value : values) {
      std::string code;
      AppendVarint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63), &code);
      plain += code.size();
    }
    EXPECT_LE(CodeOfColumn(values).size(), plain) << "seed " << seed << ", case " << n;
  }
}

TEST(NumberColumnsTest, Varints) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const uint64_t value : {(uint64_t{1} << bits) - 1, uint64_t{1} << bits, ~uint64_t{0} >> bits}) {
      std::string code;
      AppendVarint(value, &code);
      absl::string_view in = code;
      const auto back = TakeVarint(&in);
      ASSERT_TRUE(back.ok());
      EXPECT_EQ(*back, value);
      EXPECT_TRUE(in.empty());
      for (size_t cut = 0; cut < code.size(); ++cut) {
        absl::string_view early = absl::string_view(code).substr(0, cut);
        EXPECT_FALSE(TakeVarint(&early).ok());
      }
    }
  }
  absl::string_view wide("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02");  // a 65th bit
  EXPECT_FALSE(TakeVarint(&wide).ok());
}

TEST(NumberColumnsTest, DamageIsRefusedOrAnotherColumn) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  std::vector<int64_t> values;
  for (int64_t o = 0; o < 30; ++o) {
    for (int64_t i = 0; i < 10; ++i) values.push_back(o * o + i);
  }
  const std::string code = CodeOfColumn(values);
  for (size_t cut = 0; cut < code.size(); ++cut) {
    absl::string_view in = absl::string_view(code).substr(0, cut);
    const auto column = TakeColumn(&in, values.size());
    ASSERT_FALSE(column.ok()) << cut;
    EXPECT_TRUE(HasCode(column.status(), ErrorCode::kMalformed));
  }
  for (int n = 0; n < 50000; ++n) {
    std::string bytes = code;
    for (uint64_t k = 1 + random() % 3; k > 0; --k) bytes[random() % bytes.size()] = static_cast<char>(random());
    absl::string_view in = bytes;
    const auto column = TakeColumn(&in, values.size());
    if (column.ok()) ASSERT_EQ(column->size(), values.size()) << "seed " << seed << ", case " << n;
  }
}

}  // namespace
}  // namespace headrace
