#include "loader/transport/nccl/matching.h"

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace headrace::nccl {
namespace {

// Whatever the order in which they come: within a tag the nth offer meets the nth receive, as soon as both are there.
TEST(NcclMatchingTest, WithinATagInOrder) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Matching matching;
    std::map<uint64_t, std::vector<uint64_t>> offers, receives;  // by tag
    size_t met = 0;
    for (uint64_t step = 1; step <= 100; ++step) {
      const uint64_t tag = random() % 4;
      std::optional<Match> match;
      if (random() % 2) {
        offers[tag].push_back(step);
        match = matching.Add(tag, IncomingOffer{step, 10, std::nullopt});
      } else {
        receives[tag].push_back(step);
        match = matching.Add(PostedReceive{step, nullptr, 10, tag});
      }
      const size_t both = std::min(offers[tag].size(), receives[tag].size());
      const bool complete = match.has_value();
      ASSERT_EQ(complete, both > 0 && (offers[tag][both - 1] == step || receives[tag][both - 1] == step));
      if (!complete) continue;
      ++met;
      EXPECT_EQ(match->offer.number, offers[tag][both - 1]);
      EXPECT_EQ(match->receive.op, receives[tag][both - 1]);
    }
    size_t left = 0;
    for (const auto& [tag, posted] : receives) {
      left += posted.size() - std::min(posted.size(), offers[tag].size());
    }
    EXPECT_GT(met, 0u);
    size_t offered = 0;
    for (const auto& [tag, numbers] : offers) offered += numbers.size();
    EXPECT_EQ(matching.waiting_offers(), offered - met);
    EXPECT_EQ(matching.TakeReceives().size(), left);
    EXPECT_TRUE(matching.TakeReceives().empty());
  }
}

TEST(NcclMatchingTest, WhatIsTakenBackMeetsNothing) {
  Matching matching;
  EXPECT_FALSE(matching.Add(PostedReceive{10, nullptr, 4, 1}).has_value());
  EXPECT_FALSE(matching.Add(2, IncomingOffer{0, 4, "here"}).has_value());
  EXPECT_FALSE(matching.Add(2, IncomingOffer{1, 400, std::nullopt}).has_value());
  EXPECT_FALSE(matching.Add(2, IncomingOffer{2, 5, "there"}).has_value());
  EXPECT_EQ(matching.TakeReceives(), std::vector<OpId>{10});
  EXPECT_FALSE(matching.Add(1, IncomingOffer{3, 4, "here"}).has_value());
  EXPECT_EQ(matching.waiting_offers(), 4u);
  matching.ForgetOffers();
  EXPECT_EQ(matching.waiting_offers(), 3u);
  // Contents that came are still there, in their order.
  EXPECT_EQ(matching.Add(PostedReceive{11, nullptr, 4, 1})->offer.number, 3u);
  EXPECT_EQ(matching.Add(PostedReceive{12, nullptr, 4, 2})->offer.number, 0u);
  EXPECT_EQ(matching.Add(PostedReceive{13, nullptr, 4, 2})->offer.number, 2u);
  EXPECT_FALSE(matching.Add(PostedReceive{14, nullptr, 4, 2}).has_value());
}

TEST(NcclMatchingTest, ReceivesPutBackAreFirstInTheirOrder) {
  Matching matching;
  const PostedReceive first{1, nullptr, 4, 7}, second{2, nullptr, 4, 7}, third{3, nullptr, 4, 7};
  matching.Add(7, IncomingOffer{0, 400, std::nullopt});
  matching.Add(7, IncomingOffer{1, 400, std::nullopt});
  matching.Add(first);
  matching.Add(second);
  matching.Add(third);
  EXPECT_TRUE(matching.PutBack({second, first}).empty());
  EXPECT_EQ(matching.Add(7, IncomingOffer{2, 4, "here"})->receive.op, 1u);
  EXPECT_EQ(matching.TakeReceives(), (std::vector<OpId>{2, 3}));
  // Contents that wait are met at once.
  matching.Add(7, IncomingOffer{3, 4, "here"});
  const std::vector<Match> matches = matching.PutBack({second, first});
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].offer.number, 3u);
  EXPECT_EQ(matches[0].receive.op, 1u);
  EXPECT_EQ(matching.TakeReceives(), std::vector<OpId>{2});
}

}  // namespace
}  // namespace headrace::nccl
