#include "loader/stream_tags.h"

#include <memory>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/idle_transport.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

testing::IdleTransport Tagged(int tag_bits) {
  Capabilities capabilities;
  capabilities.tag_bits = tag_bits;
  return testing::IdleTransport("tagged", capabilities);
}

Plan PlanOf(size_t streams) {
  Plan plan;
  plan.streams.resize(streams);
  return plan;
}

Edge EdgeOf(int stream) {
  Edge edge;
  edge.stream = stream;
  return edge;
}

TEST(StreamTagsTest, EdgesNeighbouringGenerationsAndEpochsDiffer) {
  for (int bits : {32, 40, 64}) {
    for (size_t streams : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{65535}}) {
      const Plan plan = PlanOf(streams);
      std::set<uint64_t> tags;
      size_t made = 0;
      for (uint64_t epoch = 1; epoch < 40; ++epoch) {
        const auto maker = StreamTags::Create(Tagged(bits), plan, epoch);
        ASSERT_TRUE(maker.ok()) << maker.status();
        for (int stream : {-1, 0, static_cast<int>(streams / 2), static_cast<int>(streams) - 1}) {
          if (stream >= static_cast<int>(streams)) continue;
          for (uint64_t generation = 1000; generation < 1100; ++generation) {
            const uint64_t tag = maker->Of(EdgeOf(stream), generation);
            ASSERT_TRUE(bits == 64 || tag < uint64_t{1} << bits);
            tags.insert(tag);
          }
        }
        made += 100 * std::set<int>{-1, streams > 0 ? 0 : -1, streams > 1 ? static_cast<int>(streams / 2) : -1,
                                    static_cast<int>(streams) - 1}
                          .size();
      }
      EXPECT_EQ(tags.size(), made) << bits << " bits, " << streams << " streams";
    }
  }
}

TEST(StreamTagsTest, BothEndsMakeTheSame) {
  const Plan plan = PlanOf(3);
  const auto a = StreamTags::Create(Tagged(32), plan, 5), b = StreamTags::Create(Tagged(32), plan, 5);
  ASSERT_TRUE(a.ok() && b.ok());
  for (int stream : {-1, 0, 2}) EXPECT_EQ(a->Of(EdgeOf(stream), ~uint64_t{0}), b->Of(EdgeOf(stream), ~uint64_t{0}));
}

TEST(StreamTagsTest, MoreStreamsThanTagsAreRefused) {
  EXPECT_TRUE(StreamTags::Create(Tagged(32), PlanOf(65535), 1).ok());
  const absl::Status refused = StreamTags::Create(Tagged(32), PlanOf(65536), 1).status();
  EXPECT_TRUE(HasCode(refused, ErrorCode::kInvalidOption)) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("65536 streams"), HasSubstr("tell 65535 apart")));
  EXPECT_FALSE(StreamTags::Create(Tagged(0), PlanOf(0), 1).ok());
}

}  // namespace
}  // namespace headrace
