// Each manifest of tests/cases gives what its "expect" says: an error's code and what the message must mention, or
// every element of every destination buffer.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/digest.h"
#include "planner/manifest_json.h"
#include "planner/manifest_wire.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::filesystem::path> CasePaths() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/cases")) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

int Find(const std::vector<Buffer>& buffers, int64_t rank, const std::string& name) {
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].rank == rank && buffers[b].name == name) return static_cast<int>(b);
  }
  return -1;
}

void ExpectMemory(const Manifest& m, const Json& wanted, const DestinationMemory& memory) {
  const int b = Find(m.destination, wanted["rank"], wanted["buffer"]);
  ASSERT_GE(b, 0) << wanted["buffer"];
  const Buffer& buffer = m.destination[b];
  const int bits = DtypeBits(buffer.dtype);
  const uint64_t poison = 0xA5A5A5A5A5A5A5A5u >> (64 - bits);
  Index at = 0;
  for (const Json& run : wanted["memory"]) {
    for (Index k = 0; k < run["count"].get<Index>(); ++k, ++at) {
      uint64_t value = 0;
      if (run.contains("tensor")) {
        int t = 0;
        while (m.tensors.at(t).name != run["tensor"]) ++t;
        value = PatternBits(t, run["first"].get<Index>() + k, bits);
      } else if (run["fill"] != "zero") {
        value = poison;
      }
      ASSERT_EQ(memory.Element(b, at), value) << buffer.name << " rank " << buffer.rank << " element " << at;
    }
  }
  EXPECT_EQ(at, SpanElements(buffer)) << "the case does not describe the whole buffer " << buffer.name;
}

class CasesTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(CasesTest, GivesWhatItExpects) {
  const std::string text = ReadFile(GetParam());
  // Read leniently: a case may be malformed on purpose.
  const Json expect = Json::parse(text)["expect"];
  absl::StatusOr<Plan> plan = Plan{};
  absl::StatusOr<Manifest> m = ParseManifest(text);
  absl::Status status = m.status();
  if (status.ok()) {
    plan = BuildPlan(*m);
    status = plan.status();
  }
  if (expect["outcome"] == "error") {
    EXPECT_EQ(std::string(CodeOf(status)), expect["code"].get<std::string>()) << status;
    for (const std::string mention : expect["mentions"]) {
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(mention));
    }
    return;
  }
  ASSERT_TRUE(status.ok()) << status;
  const absl::StatusOr<Manifest> wired = ParseManifestWire(ManifestToWire(*m));
  ASSERT_TRUE(wired.ok()) << wired.status();
  EXPECT_EQ(PlanDigest(*wired, *BuildPlan(*wired)), PlanDigest(*m, *plan)) << "the wire changed the plan";
  const PlanFigures figures = Measure(*m, *plan);
  EXPECT_EQ(figures.wire_bytes, figures.needed_bytes);
  if (TotalElements(*m) > 1e6) return;  // to be planned only
  EXPECT_EQ(CheckPlan(*m, *plan), "");
  if (expect["outcome"] == "planned") return;
  ASSERT_EQ(expect["outcome"], "ok");
  const Interpretation got = Interpret(*m, *plan);
  for (const Json& wanted : expect["destination"]) ExpectMemory(*m, wanted, got.memory);
}

// Sources in another order: the same memory.
TEST_P(CasesTest, DoesNotDependOnTheOrderOfBuffers) {
  absl::StatusOr<Manifest> m = ParseManifest(ReadFile(GetParam()));
  if (!m.ok() || TotalElements(*m) > 1e6 || !BuildPlan(*m).ok()) return;
  std::reverse(m->source.begin(), m->source.end());
  for (auto* side : {&m->source, &m->destination}) {
    for (Buffer& b : *side) std::reverse(b.pieces.begin(), b.pieces.end());
  }
  const absl::StatusOr<Plan> plan = BuildPlan(*m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CheckPlan(*m, *plan), "");
}

std::string CaseName(const testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, CasesTest, testing::ValuesIn(CasePaths()), CaseName);

TEST(Cases, AreThere) { EXPECT_GE(CasePaths().size(), 146u); }

}  // namespace
}  // namespace headrace
