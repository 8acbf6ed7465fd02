#include "planner/utf8.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace headrace {
namespace {

// RFC 3629's way to write a code point.
std::string Encoded(uint32_t code) {
  auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8Test, EveryCodePointAndNothingElse) {
  for (uint32_t code = 0; code < 0x200000; ++code) {
    const bool good = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    const std::string text = Encoded(code);
    ASSERT_EQ(IsUtf8(text), good) << code;
    ASSERT_EQ(IsUtf8("a" + text + "b"), good) << code;
    if (text.size() > 1) ASSERT_FALSE(IsUtf8(text.substr(0, text.size() - 1))) << code;
  }
}

TEST(Utf8Test, OverlongForms) {
  for (const char* text : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\x80", "\xFF"}) {
    EXPECT_FALSE(IsUtf8(text));
  }
}

}  // namespace
}  // namespace headrace
