#include "loader/slot.h"

#include <cstring>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/naive_copy.h"
#include "planner/status.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(SlotTest, HeaderAndBuffersAreDisjointAndInsideAndSoAreSums) {
  for (int seed = 0; seed < testing::Share(1000); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = 1 + seed % 3;
    options.broadcast_percent = 30;
    const Manifest m = RandomManifest(random, options);
    const auto plan = BuildPlan(m, {.policy = seed % 2 == 0 ? Policy::kAuto : Policy::kHybrid});
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (int64_t rank = 0; rank < 4; ++rank) {
      const SlotLayout layout(m, rank);
      const SumsLayout sums(*plan, rank);
      std::vector<std::pair<int64_t, int64_t>> parts = {{0, sizeof(SlotHeader)}}, sum_parts;
      for (const Edge& e : plan->edges) {
        if (e.source_rank != rank) continue;
        const int64_t at = sums.Offset(e);
        EXPECT_EQ(at % 8, 0);
        if (e.stream < 0) {
          sum_parts.emplace_back(at, at + static_cast<int64_t>(e.count) * 8);
        } else {
          EXPECT_EQ(at, sums.OffsetOfStream(e.stream));  // the same for all of a chain
        }
      }
      for (size_t s = 0; s < plan->streams.size(); ++s) {
        if (plan->streams[s].source_rank != rank) continue;
        const int64_t at = sums.OffsetOfStream(static_cast<int>(s));
        EXPECT_EQ(at % 8, 0);
        sum_parts.emplace_back(at, at + static_cast<int64_t>(plan->streams[s].parts.size()) * 8);
      }
      for (size_t s = 0; s < m.source.size(); ++s) {
        int64_t reach = 0;
        const Copy* last = nullptr;
        for (const Copy& c : plan->copies) {
          if (c.source != static_cast<int>(s)) continue;
          last = &c;
          testing::VisitCopy(c, [&](Index from, Index, Index) { reach = std::max(reach, from + 1); });
        }
        if (reach == 0 || m.source[s].rank != rank) continue;
        const int64_t at = layout.BufferOffset(*last);
        EXPECT_EQ(at % 4096, 0);
        parts.emplace_back(at, at + reach);
      }
      for (auto [list, end] : {std::pair(&parts, layout.bytes()), std::pair(&sum_parts, sums.slot_bytes())}) {
        std::sort(list->begin(), list->end());
        for (size_t i = 0; i < list->size(); ++i) {
          EXPECT_LE((*list)[i].second, i + 1 < list->size() ? (*list)[i + 1].first : end);
        }
      }
      std::vector<std::byte> region(sums.bytes());
      EXPECT_EQ(sums.Of(1, absl::MakeSpan(region)).data(), region.data() + sums.slot_bytes());
      EXPECT_EQ(sums.Of(1, absl::MakeSpan(region)).size(), static_cast<size_t>(sums.slot_bytes()));
    }
  }
}

class StampsTest : public ::testing::Test {
 protected:
  absl::Status Check(uint64_t incarnation, uint64_t generation) {
    return CheckSlot(absl::MakeConstSpan(slot_), incarnation, generation, "publisher rank 3");
  }
  void ExpectChanged(const absl::Status& status) {
    EXPECT_TRUE(HasCode(status, ErrorCode::kGenerationChanged)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("publisher rank 3"));
  }

  std::vector<std::byte> slot_ = std::vector<std::byte>(4096);
};

TEST_F(StampsTest, AFreshSlotHoldsNothing) { ExpectChanged(Check(0, 0)); }

TEST_F(StampsTest, AClosedSlotHoldsItsGenerationAlone) {
  ASSERT_TRUE(OpenSlot(absl::MakeSpan(slot_), 7, 1).ok());
  ASSERT_TRUE(CloseSlot(absl::MakeSpan(slot_), 1).ok());
  EXPECT_TRUE(Check(7, 1).ok());
  ExpectChanged(Check(7, 2));
  ExpectChanged(Check(8, 1));
}

TEST_F(StampsTest, AWriteInProgressIsSeen) {
  ASSERT_TRUE(OpenSlot(absl::MakeSpan(slot_), 7, 1).ok());
  ExpectChanged(Check(7, 1));
  ASSERT_TRUE(CloseSlot(absl::MakeSpan(slot_), 1).ok());
  ASSERT_TRUE(OpenSlot(absl::MakeSpan(slot_), 7, 3).ok());
  ExpectChanged(Check(7, 1));
  ExpectChanged(Check(7, 3));
  EXPECT_THAT(std::string(Check(7, 1).message()), HasSubstr("overwritten with 3"));
  ASSERT_TRUE(CloseSlot(absl::MakeSpan(slot_), 3).ok());
  EXPECT_TRUE(Check(7, 3).ok());
}

TEST_F(StampsTest, IncarnationsDiffer) {
  EXPECT_NE(IncarnationStamp("run-1"), IncarnationStamp("run-2"));
  EXPECT_NE(IncarnationStamp(""), IncarnationStamp("a"));
}

}  // namespace
}  // namespace headrace
