#include "planner/dtype.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(Dtype, NamesAndWidthsAreThoseOfSafetensors) {
  const std::map<std::string, int> bits = {{"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
                                           {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
                                           {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
                                           {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  for (const auto& [name, width] : bits) {
    const std::optional<Dtype> dtype = DtypeFromName(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(DtypeName(*dtype), name);
    EXPECT_EQ(DtypeBits(*dtype), width) << name;
  }
  for (const char* name : {"", "bf16", "BF16 ", "F8", "float32", "F128"}) EXPECT_FALSE(DtypeFromName(name)) << name;
}

TEST(Dtype, UnitsAreWholeBytes) {
  EXPECT_EQ(DtypeUnitElements(Dtype::kF4), 2);
  EXPECT_EQ(DtypeUnitBytes(Dtype::kF4), 1);
  EXPECT_EQ(DtypeUnitElements(Dtype::kF6E2M3), 4);
  EXPECT_EQ(DtypeUnitBytes(Dtype::kF6E3M2), 3);
  EXPECT_EQ(DtypeUnitElements(Dtype::kF8E4M3), 1);
  EXPECT_EQ(DtypeUnitBytes(Dtype::kF64), 8);
}

TEST(Dtype, BytesAreCountedInUnitsSoThatBitsNeedNotFit) {
  constexpr int64_t kMost = INT64_MAX;
  EXPECT_EQ(DtypeBytes(0, Dtype::kF64), 0);
  EXPECT_EQ(DtypeBytes(3, Dtype::kF4), 2);
  EXPECT_EQ(DtypeBytes(4, Dtype::kF6E2M3), 3);
  EXPECT_EQ(DtypeBytes(5, Dtype::kF6E2M3), 4);
  EXPECT_EQ(DtypeBytes(kMost, Dtype::kU8), kMost);
  EXPECT_EQ(DtypeBytes(kMost, Dtype::kF4), (kMost - 1) / 2 + 1);
  EXPECT_EQ(CheckedDtypeBytes(kMost / 8, Dtype::kF64), kMost - 7);
  EXPECT_EQ(CheckedDtypeBytes(kMost / 8 + 1, Dtype::kF64), std::nullopt);
  EXPECT_EQ(CheckedDtypeBytes(int64_t{1} << 62, Dtype::kBF16), std::nullopt);
}

TEST(Dtype, FloatsOf16BitsAndMoreConvertIntoEachOther) {
  const Dtype floats[] = {Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16};
  for (Dtype from : floats) {
    for (Dtype to : floats) {
      EXPECT_EQ(DtypeConvertible(from, to), from != to) << DtypeName(from) << DtypeName(to);
    }
    EXPECT_FALSE(DtypeConvertible(from, Dtype::kF8E4M3));
    EXPECT_FALSE(DtypeConvertible(from, Dtype::kI32));
    EXPECT_FALSE(DtypeConvertible(Dtype::kI32, from));
  }
}

}  // namespace
}  // namespace headrace
