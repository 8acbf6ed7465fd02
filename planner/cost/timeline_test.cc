#include "planner/cost/timeline.h"

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(Timeline, KeepsIntervalsApartAndJoinsAdjacentOnes) {
  Timeline timeline(2, 100);
  timeline.Add(0, 0, 5);
  timeline.Add(0, 5, 7);
  timeline.Add(0, 8, 9);
  timeline.Add(0, 10, 10);
  timeline.Add(1, 3, 4);
  ASSERT_EQ(timeline.track(0).size(), 2u);
  EXPECT_EQ(timeline.track(0)[0].end, 7);
  EXPECT_EQ(timeline.track(0)[1].begin, 8);
  ASSERT_EQ(timeline.track(1).size(), 1u);
}

TEST(Timeline, ClosesTheShortestPausesFirst) {
  Timeline timeline(1, 3);
  timeline.Add(0, 0, 10);
  timeline.Add(0, 11, 20);
  timeline.Add(0, 120, 130);
  timeline.Add(0, 1000, 1010);
  ASSERT_EQ(timeline.track(0).size(), 3u);
  EXPECT_EQ(timeline.track(0)[0].begin, 0);
  EXPECT_EQ(timeline.track(0)[0].end, 20);
  EXPECT_EQ(timeline.track(0)[1].begin, 120);
  EXPECT_EQ(timeline.track(0)[2].begin, 1000);
}

TEST(Timeline, HasAnIntervalForEveryTrackThatWasUsed) {
  Timeline timeline(4, 1);
  for (int64_t t = 0; t < 4000; t += 4) timeline.Add(t / 4 % 3, t, t + 1);
  for (size_t track = 0; track < 3; ++track) {
    ASSERT_EQ(timeline.track(track).size(), 1u);
    EXPECT_EQ(timeline.track(track)[0].begin, static_cast<int64_t>(track) * 4);
  }
  EXPECT_TRUE(timeline.track(3).empty());
}

}  // namespace
}  // namespace headrace
