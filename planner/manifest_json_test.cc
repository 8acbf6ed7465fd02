#include "planner/manifest_json.h"

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

constexpr absl::string_view kValid = R"({
  "title": "t", "tensors": [{"name": "q", "shape": [4, 2], "dtype": "BF16"}, {"name": "q2", "shape": [2, 1], "dtype": "F32"}],
  "source": [{"rank": 0, "buffer": "s", "dtype": "F32", "shape": [4, 2], "strides": [3, 1], "convert": "rne",
              "pieces": [{"tensor": "q", "tensor_offset": [0, 0], "shape": [4, 2], "buffer_offset": [0, 0]}]}],
  "destination": [{"rank": 1, "buffer": "d", "dtype": "BF16", "shape": [3, 4], "storage": {"id": "m", "offset_bytes": 8},
                   "pieces": [{"tensor": "q", "tensor_offset": [0, 0], "shape": [4, 2], "buffer_offset": [0, 0],
                               "axes": [1, 0], "view": [4, 2]},
                              {"fill": "zero", "shape": [1, 4], "buffer_offset": [2, 0]}]},
                  {"rank": 1, "buffer": "e", "dtype": "BF16", "shape": [3, 4], "storage": {"id": "m", "offset_bytes": 8},
                   "pieces": [], "alias_of": "d"}],
  "topology": {"source": [{"rank": 0, "host": "a", "domain": "a0"}], "destination": [{"rank": 1, "engine": "e0"}]},
  "ignore": ["q"], "coupled": [{"weight": "q", "scale": "q2", "block": [2, 2]}], "expect": {"anything": [1.5, null]}})";

std::string With(absl::string_view from, absl::string_view to) {
  EXPECT_NE(kValid.find(from), absl::string_view::npos) << from;
  const size_t at = kValid.find(from);
  return absl::StrCat(kValid.substr(0, at), to, kValid.substr(at + from.size()));
}

void ExpectCode(const std::string& json, ErrorCode code, absl::string_view mention = "") {
  const auto m = ParseManifest(json);
  ASSERT_FALSE(m.ok()) << json;
  EXPECT_EQ(std::string(CodeOf(m.status())), std::string(CodeName(code))) << m.status() << "\n" << json;
  EXPECT_THAT(std::string(m.status().message()), HasSubstr(std::string(mention)));
}

TEST(ManifestJson, ReadsEveryField) {
  const auto m = ParseManifest(kValid);
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(m->tensors[0].name, "q");
  EXPECT_EQ(m->tensors[0].shape, (Extents{4, 2}));
  EXPECT_EQ(m->source[0].strides, (Extents{3, 1}));
  EXPECT_TRUE(m->source[0].convert_rne);
  EXPECT_EQ(m->source[0].dtype, Dtype::kF32);
  const Buffer& d = m->destination[0];
  EXPECT_EQ(d.rank, 1);
  EXPECT_EQ(d.name, "d");
  EXPECT_EQ(d.strides, (Extents{4, 1}));
  EXPECT_EQ(d.storage->id, "m");
  EXPECT_EQ(d.storage->offset_bytes, 8);
  EXPECT_EQ(d.pieces[0].axes, (std::vector<int>{1, 0}));
  EXPECT_EQ(*d.pieces[0].view, (Extents{4, 2}));
  EXPECT_EQ(d.pieces[1].kind, PieceKind::kZero);
  EXPECT_EQ(d.pieces[1].buffer_offset, (Extents{2, 0}));
  EXPECT_EQ(*m->destination[1].alias_of, "d");
  EXPECT_EQ(m->topology.source[0].domain, "a0");
  EXPECT_EQ(m->topology.destination[0].engine, "e0");
  EXPECT_EQ(m->ignore, std::vector<std::string>{"q"});
  EXPECT_EQ(m->coupled[0].scale, "q2");
  EXPECT_EQ(m->coupled[0].block, (Extents{2, 2}));
}

TEST(ManifestJson, RoundTrips) {
  const uint64_t seed = 41;
  for (uint64_t n = 0; n < 2000; ++n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    const Manifest m = RandomManifest(random);
    const std::string json = ManifestToJson(m);
    const auto from_json = ParseManifest(json);
    ASSERT_TRUE(from_json.ok()) << from_json.status();
    ASSERT_EQ(ManifestToJson(*from_json), json);
    for (size_t b = 0; b < m.destination.size(); ++b) {
      ASSERT_EQ(from_json->destination[b].strides, m.destination[b].strides);
      ASSERT_EQ(from_json->destination[b].pieces.size(), m.destination[b].pieces.size());
    }
  }
}

TEST(ManifestJson, RefusesWhatIsNotJson) {
  for (const char* text :
       {"", " ", "{", "nul", "{\"tensors\": [}", "[1, 2", "\"", "{} {}", "{\"a\":1,}", "\xff\xfe{}"}) {
    ExpectCode(text, ErrorCode::kMalformed);
  }
  ExpectCode("[]", ErrorCode::kMalformed, "object");
  ExpectCode("null", ErrorCode::kMalformed);
  ExpectCode("17", ErrorCode::kMalformed);
  for (size_t cut = 0; cut < kValid.size(); ++cut)
    ExpectCode(std::string(kValid.substr(0, cut)), ErrorCode::kMalformed);
}

TEST(ManifestJson, RefusesTextThatIsNotUtf8) {
  ExpectCode(With("\"name\": \"q\"", "\"name\": \"q\xff\""), ErrorCode::kMalformed);
  ExpectCode(With("\"name\": \"q\"", "\"name\": \"\xc3\""), ErrorCode::kMalformed);
  ExpectCode(With("\"name\": \"q\"", "\"name\": \"\xed\xa0\x80\""), ErrorCode::kMalformed);
  ExpectCode(With("\"name\": \"q\"", "\"name\": \"\\ud800\""), ErrorCode::kMalformed);
}

TEST(ManifestJson, RefusesDeepNesting) {
  for (int depth : {70, 1000, 200000}) {
    ExpectCode(With("null", std::string(depth, '[') + std::string(depth, ']')), ErrorCode::kMalformed, "deep");
    std::string open, close;
    for (int i = 0; i < depth; ++i) open += "{\"a\":", close += "}";
    ExpectCode(With("null", open + "1" + close), ErrorCode::kMalformed, "deep");
    ExpectCode(std::string(depth, '['), ErrorCode::kMalformed);
  }
}

TEST(ManifestJson, RefusesDuplicateKeysAnywhere) {
  ExpectCode(With("\"title\": \"t\"", "\"title\": \"t\", \"title\": \"t\""), ErrorCode::kMalformed, "title");
  ExpectCode(With("\"dtype\": \"BF16\"", "\"dtype\": \"BF16\", \"dtype\": \"BF16\""), ErrorCode::kMalformed, "dtype");
  ExpectCode(With("\"fill\": \"zero\"", "\"fill\": \"zero\", \"fill\": \"keep\""), ErrorCode::kMalformed, "fill");
  ExpectCode(With("\"fill\"", "\"sh\\u0061pe\": [1], \"fill\""), ErrorCode::kMalformed, "shape");
  ExpectCode(With("\"ignore\": [\"q\"]", "\"ignore\": [\"q\"], \"ignore\": []"), ErrorCode::kMalformed, "ignore");
  ExpectCode(With("\"anything\"", "\"anything\": 1, \"anything\""), ErrorCode::kMalformed, "anything");
}

TEST(ManifestJson, RefusesMissingFields) {
  const char* const fields[] = {"\"name\": \"q\", ",           "\"shape\": [4, 2], ",  "\"rank\": 0, ",
                                "\"buffer\": \"s\", ",         "\"dtype\": \"F32\", ", "\"tensor\": \"q\", ",
                                "\"tensor_offset\": [0, 0], ", "\"id\": \"m\", ",      "\"weight\": \"q\", ",
                                "\"scale\": \"q2\", "};
  for (const char* field : fields) ExpectCode(With(field, ""), ErrorCode::kMalformed, "lacks");
  ExpectCode(With(", \"buffer_offset\": [2, 0]", ""), ErrorCode::kMalformed, "buffer_offset");
  ExpectCode(With(", \"dtype\": \"BF16\"}, ", "}, "), ErrorCode::kMalformed, "tensors[0]");
  ExpectCode(With(", \"offset_bytes\": 8", ""), ErrorCode::kMalformed, "offset_bytes");
  ExpectCode(With(", \"block\": [2, 2]", ""), ErrorCode::kMalformed, "block");
  ExpectCode(With("\"pieces\": [], ", ""), ErrorCode::kMalformed, "pieces");
  ExpectCode(With("\"rank\": 0, \"host\"", "\"host\""), ErrorCode::kMalformed, "topology.source[0]");
  for (const char* side : {"source", "destination", "tensors"}) {
    ExpectCode(absl::StrReplaceAll("{\"tensors\":[],\"source\":[],\"destination\":[]}",
                                   {{absl::StrCat("\"", side, "\":[]"), "\"title\":\"\""}}),
               ErrorCode::kMalformed, side);
  }
}

TEST(ManifestJson, RefusesUnknownFields) {
  ExpectCode(With("\"title\": \"t\"", "\"tilte\": \"t\""), ErrorCode::kMalformed, "tilte");
  ExpectCode(With("\"name\": \"q\"", "\"name\": \"q\", \"stride\": 1"), ErrorCode::kMalformed, "stride");
  ExpectCode(With("\"rank\": 0", "\"rank\": 0, \"Rank\": 0"), ErrorCode::kMalformed, "Rank");
  ExpectCode(With("\"tensor\": \"q\"", "\"tensor\": \"q\", \"strides\": [1]"), ErrorCode::kMalformed, "strides");
  ExpectCode(With("\"fill\": \"zero\"", "\"fill\": \"zero\", \"tensor\": \"q\""), ErrorCode::kMalformed, "tensor");
  ExpectCode(With("\"fill\": \"zero\"", "\"fill\": \"zero\", \"axes\": [0, 1]"), ErrorCode::kMalformed, "axes");
  ExpectCode(With("\"id\": \"m\"", "\"id\": \"m\", \"size\": 1"), ErrorCode::kMalformed, "size");
  ExpectCode(With("\"host\": \"a\"", "\"host\": \"a\", \"engine\": \"e\""), ErrorCode::kMalformed, "engine");
  ExpectCode(With("\"alias_of\": \"d\"", "\"convert\": \"rne\""), ErrorCode::kMalformed, "convert");
  ExpectCode(With("\"weight\": \"q\"", "\"weight\": \"q\", \"x\": 0"), ErrorCode::kMalformed, "x");
  ExpectCode(With("\"topology\": {", "\"topology\": {\"engines\": [], "), ErrorCode::kMalformed, "engines");
}

TEST(ManifestJson, RefusesWrongTypes) {
  for (const char* wrong : {"null", "true", "\"0\"", "[0]", "{}", "1.5", "0.5e1"}) {
    ExpectCode(With("\"rank\": 0", absl::StrCat("\"rank\": ", wrong)), ErrorCode::kMalformed, "rank");
    ExpectCode(With("[3, 1]", absl::StrCat("[3, ", wrong, "]")), ErrorCode::kMalformed, "strides[1]");
    ExpectCode(With("\"offset_bytes\": 8", absl::StrCat("\"offset_bytes\": ", wrong)), ErrorCode::kMalformed);
  }
  for (const char* wrong : {"null", "true", "0", "[]", "{}", "\"\""}) {
    ExpectCode(With("\"name\": \"q\"", absl::StrCat("\"name\": ", wrong)), ErrorCode::kMalformed, "name");
    ExpectCode(With("\"dtype\": \"F32\"", absl::StrCat("\"dtype\": ", wrong)), ErrorCode::kMalformed, "dtype");
    ExpectCode(With("\"fill\": \"zero\"", absl::StrCat("\"fill\": ", wrong)), ErrorCode::kMalformed, "fill");
    ExpectCode(With("\"convert\": \"rne\"", absl::StrCat("\"convert\": ", wrong)), ErrorCode::kMalformed, "convert");
    ExpectCode(With("\"alias_of\": \"d\"", absl::StrCat("\"alias_of\": ", wrong)), ErrorCode::kMalformed, "alias_of");
    ExpectCode(With("\"host\": \"a\"", absl::StrCat("\"host\": ", wrong)), ErrorCode::kMalformed, "host");
    ExpectCode(With("\"ignore\": [\"q\"]", absl::StrCat("\"ignore\": [", wrong, "]")), ErrorCode::kMalformed, "ignore");
  }
  for (const char* wrong : {"null", "true", "0", "\"x\"", "{}"}) {
    ExpectCode(With("\"view\": [4, 2]", absl::StrCat("\"view\": ", wrong)), ErrorCode::kMalformed, "view");
    ExpectCode(With("\"axes\": [1, 0]", absl::StrCat("\"axes\": ", wrong)), ErrorCode::kMalformed, "axes");
    ExpectCode(With("\"shape\": [4, 2]", absl::StrCat("\"shape\": ", wrong)), ErrorCode::kMalformed, "shape");
    ExpectCode(With("\"pieces\": []", absl::StrCat("\"pieces\": ", wrong)), ErrorCode::kMalformed, "pieces");
    ExpectCode(With("\"ignore\": [\"q\"]", absl::StrCat("\"ignore\": ", wrong)), ErrorCode::kMalformed, "ignore");
  }
  for (const char* wrong : {"null", "true", "0", "\"x\"", "[]"}) {
    ExpectCode(With("{\"id\": \"m\", \"offset_bytes\": 8}", wrong), ErrorCode::kMalformed, "storage");
    ExpectCode(With("\"topology\": {", absl::StrCat("\"topology\": ", wrong, ", \"expect2\": {")),
               ErrorCode::kMalformed);
  }
  ExpectCode(With("\"BF16\"", "\"bf16\""), ErrorCode::kMalformed, "bf16");
  ExpectCode(With("\"zero\"", "\"one\""), ErrorCode::kMalformed, "one");
  ExpectCode(With("\"convert\": \"rne\"", "\"convert\": \"rtz\""), ErrorCode::kMalformed, "rtz");
  ExpectCode(With("\"axes\": [1, 0]", "\"axes\": []"), ErrorCode::kMalformed, "axes");
  ExpectCode(With("\"axes\": [1, 0]", "\"axes\": [-1, 0]"), ErrorCode::kMalformed, "axes");
  ExpectCode(With("\"rank\": 0", "\"rank\": -1"), ErrorCode::kMalformed, "-1");
}

TEST(ManifestJson, IntegersPast64BitsAreOutOfBounds) {
  for (const char* huge : {"9223372036854775808", "18446744073709551616", "-9223372036854775809",
                           "-18446744073709551616", "340282366920938463463374607431768211456"}) {
    for (const char* place : {"\"strides\": [3, ", "\"tensor_offset\": [0, ", "\"block\": [2, "}) {
      const size_t at = kValid.find(place) + std::string(place).size();
      std::string text(kValid);
      ExpectCode(text.replace(at, 1, huge), ErrorCode::kOutOfBounds,
                 absl::StrCat(" is ", huge, ", outside of 64 bits ("));
    }
    ExpectCode(absl::StrReplaceAll(kValid, {{"\"offset_bytes\": 8", absl::StrCat("\"offset_bytes\": ", huge)}}),
               ErrorCode::kOutOfBounds);
  }
  ExpectCode(With("[4, 2], \"dtype\"", absl::StrCat("[4, ", std::string(400, '9'), "], \"dtype\"")),
             ErrorCode::kOutOfBounds);
  // Products are for Validate, which names them.
  EXPECT_TRUE(
      ParseManifest(With("\"shape\": [4, 2], \"strides\": [3, 1]", "\"shape\": [4294967296, 4294967296]")).ok());
  EXPECT_TRUE(ParseManifest(With("\"offset_bytes\": 8", "\"offset_bytes\": 9223372036854775807")).ok());
  EXPECT_TRUE(ParseManifest(With("\"offset_bytes\": 8", "\"offset_bytes\": -9223372036854775808")).ok());
}

TEST(ManifestJson, EarlierCodesComeBeforeIntegersPast64Bits) {
  const std::string huge = "9223372036854775808";
  // Malformed, unknown_tensor and shape_mismatch stand before out_of_bounds in the list.
  ExpectCode(
      absl::StrReplaceAll(kValid, {{"\"offset_bytes\": 8", "\"offset_bytes\": " + huge}, {"\"fill\"", "\"fil\""}}),
      ErrorCode::kMalformed);
  auto text = [&](absl::string_view tensors, absl::string_view piece) {
    return absl::StrCat(R"({"tensors": [)", tensors, R"(], "destination": [], "source": [{"rank": 0, "buffer": "b", )",
                        R"("dtype": "U8", "shape": [4], "pieces": [)", piece, "]}]}");
  };
  const std::string tensor = R"({"name": "a", "shape": [4], "dtype": "U8"})";
  auto piece = [](absl::string_view name, absl::string_view offset) {
    return absl::StrCat(R"({"tensor": ")", name, R"(", "tensor_offset": )", offset,
                        R"(, "shape": [4], "buffer_offset": [0]})");
  };
  ExpectCode(text(tensor, piece("a", "[" + huge + "]")), ErrorCode::kOutOfBounds);
  ExpectCode(text(tensor + ", " + tensor, piece("a", "[" + huge + "]")), ErrorCode::kMalformed, "twice");
  ExpectCode(text(tensor, piece("b", "[" + huge + "]")), ErrorCode::kUnknownTensor, "b");
  ExpectCode(text(tensor, piece("a", "[0, " + huge + "]")), ErrorCode::kShapeMismatch, "a");
}

TEST(ManifestJson, FloatsAreMalformedHoweverLarge) {
  for (const char* number : {"4.0", "4e0", "1e20", "1e999", "-1E20", "18446744073709551616.0"}) {
    ExpectCode(With("[4, 2], \"strides\"", absl::StrCat("[4, ", number, "], \"strides\"")), ErrorCode::kMalformed);
  }
  EXPECT_TRUE(ParseManifest(With("\"t\"", "[1e20, 18446744073709551616, null, {\"a\": -0.5}]")).ok());
}

TEST(ManifestJson, TextAfterANulByteIsMalformed) {
  ExpectCode(absl::StrCat(kValid, std::string("\0and more", 9)), ErrorCode::kMalformed, "NUL");
  ExpectCode(absl::StrCat(kValid, std::string(1, '\0')), ErrorCode::kMalformed, "NUL");
}

// Each error says which rank, buffer and tensor it is about.
TEST(ManifestJson, MessagesNameRankBufferAndTensor) {
  const std::string piece = "(destination rank 1, buffer \"d\", tensor \"q\")",
                    buffer = "(destination rank 1, buffer \"d\")";
  const ErrorCode malformed = ErrorCode::kMalformed;
  ExpectCode(With("\"axes\": [1, 0]", "\"axes\": [-1, 0]"), malformed, piece);
  ExpectCode(With("\"axes\": [1, 0]", "\"axes\": []"), malformed, piece);
  ExpectCode(With("\"axes\": [1, 0]", "\"offset\": [1, 0]"), malformed, piece);
  ExpectCode(With("\"fill\": \"zero\"", "\"fill\": \"one\""), malformed, buffer);
  ExpectCode(With("\"dtype\": \"BF16\", \"shape\": [3, 4]", "\"dtype\": \"BF17\", \"shape\": [3, 4]"), malformed,
             buffer);
  ExpectCode(With("\"storage\"", "\"convert\": \"rne\", \"storage\""), malformed, buffer);
  ExpectCode(With("\"shape\": [4, 2], \"buffer_offset\": [0, 0]}]}]", "\"shape\": [4, 2]}]}]"), malformed,
             "lacks the field \"buffer_offset\" (source rank 0, buffer \"s\", tensor \"q\")");
  ExpectCode(With("\"shape\": [3, 4]", "\"shape\": [3, 4.0]"), malformed, buffer);
  ExpectCode(With("{\"rank\": 1, \"buffer\": \"d\"", "{\"rank\": -1, \"buffer\": \"d\""), malformed,
             "(destination rank -1, buffer \"d\")");
  ExpectCode(With("\"shape\": [4, 2], \"dtype\": \"BF16\"", "\"shape\": [4, 2], \"dtype\": \"bf16\""), malformed,
             "(tensor \"q\")");
  ExpectCode(With("\"block\": [2, 2]", "\"blocks\": [2, 2]"), malformed, "(coupled weight \"q\", scale \"q2\")");
  const ErrorCode bounds = ErrorCode::kOutOfBounds;
  ExpectCode(With("\"buffer_offset\": [0, 0],\n", "\"buffer_offset\": [9223372036854775808, 0],\n"), bounds, piece);
  ExpectCode(With("\"block\": [2, 2]", "\"block\": [2, 9223372036854775808]"), bounds,
             "coupled[0].block[1] is 9223372036854775808, outside of 64 bits (coupled weight \"q\", scale \"q2\")");
}

}  // namespace
}  // namespace headrace
