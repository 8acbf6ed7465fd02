// Damaged manifests are read and planned exactly or refused with a typed error; never a crash.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/manifest_json.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

constexpr uint64_t kSeed = 4711;

std::vector<std::string> Corpus() {
  std::vector<std::string> corpus;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/cases")) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  RandomManifestOptions small;
  small.max_tensors = 2;
  small.max_elements = 40;
  for (uint64_t n = 0; n < 60; ++n) {
    Random random(kSeed + n);
    corpus.push_back(ManifestToJson(RandomManifest(random, small)));
  }
  return corpus;
}

bool IsNumber(char c) { return std::isdigit(static_cast<unsigned char>(c)) || c == '-'; }

// [begin, end) of the numbers (or of the quoted strings) of a text.
std::vector<std::pair<size_t, size_t>> Tokens(const std::string& text, bool numbers) {
  std::vector<std::pair<size_t, size_t>> out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (text[i] == '"') {
      while (end < text.size() && text[end] != '"') ++end;
      ++end;
      if (!numbers && end <= text.size()) out.emplace_back(i, end);
    } else if (IsNumber(text[i])) {
      while (end < text.size() && IsNumber(text[end])) ++end;
      if (numbers) out.emplace_back(i, end);
    }
    i = end;
  }
  return out;
}

void Mutate(Random& random, std::string* text) {
  auto pick = [&](size_t size) { return static_cast<size_t>(Uniform(random, 0, static_cast<Index>(size) - 1)); };
  if (text->empty()) return;
  const Index kind = Uniform(random, 0, 9);
  if (kind == 0) {
    (*text)[pick(text->size())] = static_cast<char>(random());
    return;
  }
  if (kind == 1) {
    const size_t at = pick(text->size());
    text->erase(at, pick(8) + 1);
    return;
  }
  const bool numbers = kind > 3;
  const auto tokens = Tokens(*text, numbers);
  if (tokens.empty()) return;
  const auto [begin, end] = tokens[pick(tokens.size())];
  std::string with;
  if (!numbers || kind == 4) {  // another token of the same kind
    const auto [from, to] = tokens[pick(tokens.size())];
    with = text->substr(from, to - from);
  } else if (kind < 9) {  // small numbers keep many manifests plannable
    with = absl::StrCat(Uniform(random, kind == 5 ? -2 : 0, 6));
  } else {
    const char* const edges[] = {"9223372036854775807",
                                 "-9223372036854775808",
                                 "9223372036854775808",
                                 "4294967296",
                                 "1099511627776",
                                 "4611686018427387904",
                                 "-1",
                                 "2147483648",
                                 "1e3",
                                 "1.5"};
    with = edges[pick(std::size(edges))];
  }
  text->replace(begin, end - begin, with);
}

TEST(Fuzz, DamagedManifestsAreExactOrTypedErrors) {
  CaseShare share("damaged manifests", kSeed);
  const std::vector<std::string> corpus = Corpus();
  std::map<std::string, int> outcomes;
  int checked = 0;
  for (uint64_t n = 0; n < 300000; ++n) {
    if (!share.Take()) continue;
    Random random(kSeed * 1000003 + n);
    std::string text = corpus[n % corpus.size()];
    for (Index k = Uniform(random, 1, 3); k > 0; --k) Mutate(random, &text);
    const absl::StatusOr<Manifest> m = ParseManifest(text);
    absl::Status status = m.status();
    if (m.ok()) {
      const absl::StatusOr<Plan> plan = BuildPlan(*m);
      status = plan.status();
      if (plan.ok() && TotalElements(*m) < 20000 && !SourcesContradict(*m)) {
        ++checked;
        ASSERT_EQ(CheckPlan(*m, *plan), "") << "case " << n << "\n" << text;
      }
    }
    const std::string code(CodeOf(status));
    ASSERT_NE(code, "internal") << "case " << n << ": " << status << "\n" << text;
    ASSERT_NE(code, "plan_invalid") << "case " << n << ": " << status << "\n" << text;
    ++outcomes[code.empty() ? "planned" : code];
  }
  for (const auto& [code, count] : outcomes) std::cout << code << ": " << count << "\n";
  std::cout << checked << " plans executed and compared\n";
}

}  // namespace
}  // namespace headrace
