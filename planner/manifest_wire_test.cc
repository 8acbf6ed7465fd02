#include "planner/manifest_wire.h"

#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/manifest_json.h"
#include "planner/number_columns.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"
#include "planner/validate.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

void ExpectMalformed(const std::string& bytes) {
  const auto m = ParseManifestWire(bytes);
  ASSERT_FALSE(m.ok());
  EXPECT_TRUE(HasCode(m.status(), ErrorCode::kMalformed)) << m.status();
}

TEST(ManifestWire, RandomManifestsAreReadBack) {
  const uint64_t seed = 41;
  CaseShare share("random manifests", seed);
  for (uint64_t n = 0; n < 2000; ++n) {
    if (!share.Take()) continue;
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    const Manifest m = RandomManifest(random);
    const std::string wire = ManifestToWire(m);
    const auto back = ParseManifestWire(wire);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_EQ(ManifestToJson(*back), ManifestToJson(m));
    ASSERT_EQ(ManifestToWire(*back), wire);
  }
}

TEST(ManifestWire, EveryFieldIsReadBack) {
  Manifest m = WholeManifest({{"q", {4, 6}, Dtype::kU64}, {"s", {2, 3}, Dtype::kF32}});
  Buffer& b = m.destination[0];
  b.strides = {7, 1};
  b.storage = Storage{"pool", 4096};
  b.pieces[0].axes = {1, 0};
  b.pieces[0].view = Extents{6, 4};
  m.source[1].convert_rne = true;
  Buffer alias = b;
  alias.name = "tied";
  alias.alias_of = b.name;
  alias.pieces = {FillOf(PieceKind::kZero, {1, 2}, {3, 4}), FillOf(PieceKind::kKeep, {5, 6}, {7, 8})};
  m.destination.push_back(alias);
  m.topology.source = {{0, "host", "domain", ""}};
  m.topology.destination = {{0, "", "", "engine"}};
  m.ignore = {"x"};
  m.coupled = {{"q", "s", {2, 2}}};
  const auto back = ParseManifestWire(ManifestToWire(m));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ManifestToJson(*back), ManifestToJson(m));
}

TEST(ManifestWire, DigitsInNamesAreReadBack) {
  Manifest m;
  for (const char* name : {"", "0", "00", "007", "1", "-1", "a1", "1a", "1.2", "01.10", "999999999999999999",
                           "1000000000000000000", "99999999999999999999999999", "#", "layers.10.w",
                           "\xC3\xA9"
                           "1"}) {
    m.tensors.push_back({name, {1}, Dtype::kU8});
  }
  const auto back = ParseManifestWire(ManifestToWire(m));
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->tensors.size(), m.tensors.size());
  for (size_t i = 0; i < m.tensors.size(); ++i) EXPECT_EQ(back->tensors[i].name, m.tensors[i].name);
}

// What the format is for: a rank with an expert's slice of each of 44,544 tensors.
TEST(ManifestWire, ALargeRankIsAFewRules) {
  Manifest m;
  for (int layer = 3; layer < 61; ++layer) {
    Buffer w13 = BufferOf(5, absl::StrCat("layers.", layer, ".w13"), Dtype::kBF16, {256, 128, 7168}, {});
    for (int expert = 0; expert < 256; ++expert) {
      int row = 0;
      for (const char* part : {"gate", "up"}) {
        const std::string name = absl::StrCat("model.layers.", layer, ".experts.", expert, ".", part);
        m.tensors.push_back({name, {2048, 7168}, Dtype::kBF16});
        w13.pieces.push_back(ViewPiece(name, {1, 2048, 7168}, {0, 320, 0}, {1, 64, 7168}, {expert, row, 0}));
        row += 64;
      }
    }
    m.destination.push_back(std::move(w13));
  }
  const std::string wire = ManifestToWire(m), json = ManifestToJson(m);
  std::cout << wire.size() << " bytes, as JSON " << json.size() << "\n";
  EXPECT_LT(wire.size(), 1000u);
  const auto back = ParseManifestWire(wire);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(ManifestToJson(*back) == json);
}

TEST(ManifestWire, RefusesBrokenBytes) {
  const std::string wire = ManifestToWire(WholeManifest({{"q", {2, 3}, Dtype::kU8}, {"k", {4}, Dtype::kBF16}}));
  for (size_t cut = 0; cut < wire.size(); ++cut) ExpectMalformed(wire.substr(0, cut));
  ExpectMalformed(wire + '\0');
  std::string other_version = wire;
  other_version[0] = 2;
  ExpectMalformed(other_version);
  EXPECT_THAT(std::string(ParseManifestWire(other_version).status().message()), HasSubstr("version"));
  for (size_t at = wire.find('q'); at != std::string::npos; at = wire.find('q', at + 1)) {
    std::string text = wire;
    text[at] = '\xff';
    ExpectMalformed(text);
  }
}

TEST(ManifestWire, AFewBytesDoNotMakeALargeManifest) {
  // One kind, an ignored tensor of no name; 2^40 of them, or as many as memory for 2^29 would have.
  for (const uint64_t count : {uint64_t{1} << 40, uint64_t{1} << 29}) {
    std::string wire("\x01\x01\x03\x05\x00\x00", 6);
    for (int list = 0; list < 8; ++list) {
      if (list != 5) {
        AppendVarint(0, &wire);
        AppendColumn({}, &wire);
        continue;
      }
      AppendVarint(count, &wire);
      wire.push_back(1);  // one run: from 0 on, in steps of 0
      AppendVarint(1, &wire);
      for (const int64_t number : {int64_t{0}, int64_t{0}, static_cast<int64_t>(count)}) AppendColumn({number}, &wire);
    }
    AppendVarint(0, &wire);
    const auto m = ParseManifestWire(wire);
    ASSERT_FALSE(m.ok());
    EXPECT_TRUE(HasCode(m.status(), ErrorCode::kOutOfMemory)) << m.status();
  }
}

TEST(ManifestWire, RandomDamageIsNeverACrash) {
  const uint64_t seed = 77;
  Random random(seed);
  CaseShare share("damaged manifests", seed);
  int accepted = 0;
  for (int n = 0; n < 30000; ++n) {
    if (!share.Take()) continue;
    Random of_manifest(seed + static_cast<uint64_t>(n / 1000));
    std::string bytes = ManifestToWire(RandomManifest(of_manifest));
    for (Index k = Uniform(random, 1, 4); k > 0; --k) {
      bytes[static_cast<size_t>(Uniform(random, 0, static_cast<Index>(bytes.size()) - 1))] =
          static_cast<char>(random());
    }
    const auto m = ParseManifestWire(bytes);
    if (m.ok()) {
      ++accepted;
      (void)Validate(*m);
      const std::string wire = ManifestToWire(*m);
      ASSERT_EQ(ManifestToWire(*ParseManifestWire(wire)), wire) << "seed " << seed << ", case " << n;
    } else {
      ASSERT_TRUE(HasCode(m.status(), ErrorCode::kMalformed) || HasCode(m.status(), ErrorCode::kOutOfMemory))
          << m.status();
    }
  }
  std::cout << accepted << " damaged manifests still read\n";
}

}  // namespace
}  // namespace headrace
