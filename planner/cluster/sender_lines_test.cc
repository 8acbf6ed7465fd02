#include "planner/cluster/sender_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

constexpr SideShape kShape{64, 4, 4};
constexpr Index kMiB = Index{1} << 20;

ConsumerSet SetOf(std::vector<int32_t> ranks, Index bytes) {
  ConsumerSet set(std::move(ranks), kShape);
  set.AddBytes(bytes);
  return set;
}

// The example of the header.
TEST(SenderLinesTest, PartsGoToTheirRails) {
  RailRoom zero(SetOf({0, 4}, 10 * kMiB), kShape), one(SetOf({1, 5}, 10 * kMiB), kShape);
  const std::vector<SenderStretch> sent =
      PlaceSenders({{0, 10 * kMiB, &zero}, {10 * kMiB, 10 * kMiB, &one}}, {10 * kMiB, 10 * kMiB}, {1, 0});
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].candidate, 1);
  EXPECT_EQ(sent[1].begin, 10 * kMiB);
  EXPECT_EQ(sent[1].candidate, 0);
  EXPECT_EQ(zero.rails()[0].bytes, 0);
}

// Two domains of two ranks each: one has equal parts, one does not.
TEST(SenderLinesTest, RoomIsWhatRanksEnter) {
  ConsumerSet set = SetOf({0, 1, 4, 5}, 40);
  set.SetShares(1, {36, 4});
  const RailRoom room(set, kShape);
  ASSERT_EQ(room.rails().size(), 2u);
  EXPECT_EQ(room.rails()[0].bytes, (20 + 36) / 2);
  EXPECT_EQ(room.rails()[1].bytes, (20 + 4) / 2);
}

// The set with one rail chooses before the one with both, which comes first on the line.
TEST(SenderLinesTest, ThoseWithTheLeastChoiceChooseFirst) {
  RailRoom both(SetOf({0, 1}, 10 * kMiB), kShape), zero(SetOf({0, 4}, 10 * kMiB), kShape);
  const std::vector<SenderStretch> sent =
      PlaceSenders({{0, 10 * kMiB, &both}, {10 * kMiB, 10 * kMiB, &zero}}, {10 * kMiB, 10 * kMiB}, {0, 1});
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].candidate, 1);
  EXPECT_EQ(sent[1].candidate, 0);
}

TEST(SenderLinesTest, KeepsTheSharesAndFillsRails) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    std::vector<Index> shares;
    std::vector<int32_t> rails;
    std::map<int32_t, Index> of_rail;
    Index bytes = 0;
    for (Index n = Uniform(random, 1, 8); n > 0; --n) {
      shares.push_back(Uniform(random, 0, 4) * kMiB + Uniform(random, 0, 100));
      rails.push_back(static_cast<int32_t>(Uniform(random, 0, 3)));
      of_rail[rails.back()] += shares.back();
      bytes += shares.back();
    }
    if (bytes < 8) continue;
    // Sets of one rail, each with one part or two: then as much as rails have stays on them.
    std::vector<ConsumerSet> sets;
    std::vector<std::pair<Index, size_t>> cuts;  // bytes, set
    std::map<int32_t, Index> wanted;
    Index left = bytes;
    for (int32_t rail = 0; rail < 4; ++rail) {
      sets.emplace_back(std::vector<int32_t>{rail, rail + 4}, kShape);
      const Index all = rail == 3 ? left : Uniform(random, 1, left - 3 + rail);
      left -= all;
      wanted[rail] += all;
      const Index first = Uniform(random, 0, all);
      for (Index part : {first, all - first}) {
        if (part > 0) cuts.emplace_back(part, sets.size() - 1);
      }
      sets.back().AddBytes(all);
    }
    std::shuffle(cuts.begin(), cuts.end(), random);
    std::vector<RailRoom> rooms;
    for (const ConsumerSet& set : sets) rooms.emplace_back(set, kShape);
    std::vector<LinePart> parts;
    Index at = 0;
    for (const auto& [size, set] : cuts) {
      parts.push_back({at, size, &rooms[set]});
      at += size;
    }
    const std::vector<SenderStretch> sent = PlaceSenders(parts, shares, rails);
    ASSERT_FALSE(sent.empty());
    EXPECT_EQ(sent[0].begin, 0);
    std::vector<Index> have(shares.size(), 0);
    Index stays = 0, most = 0;
    for (size_t s = 0; s < sent.size(); ++s) {
      const Index end = s + 1 < sent.size() ? sent[s + 1].begin : bytes;
      ASSERT_LT(sent[s].begin, end);
      if (s > 0) {
        EXPECT_NE(sent[s].candidate, sent[s - 1].candidate);
      }
      have[sent[s].candidate] += end - sent[s].begin;
      for (size_t p = 0; p < parts.size(); ++p) {
        if (static_cast<int32_t>(cuts[p].second) != rails[sent[s].candidate]) continue;
        stays += std::max<Index>(
            0, std::min(end, parts[p].begin + parts[p].bytes) - std::max(sent[s].begin, parts[p].begin));
      }
    }
    EXPECT_EQ(have, shares);
    for (const auto& [rail, want] : wanted) most += std::min(want, of_rail[rail]);
    EXPECT_GE(stays, most - 8 * (Index{64} << 10));  // ends that are too short for a stripe
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace headrace
