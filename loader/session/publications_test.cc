#include "loader/session/publications.h"

#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/session_testing.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const MemberKey kReader = MemberKey::Receiver(0, 0);

proto::Planned Holds(const std::vector<std::pair<uint64_t, int>>& held, uint64_t last = 0) {
  proto::Planned planned;
  for (const auto& [generation, slot] : held) {
    proto::Held* of = planned.add_held();
    of->set_generation(generation);
    of->set_slot(slot);
  }
  planned.set_last_published(last);
  return planned;
}
proto::Published Of(uint64_t generation, int slot) {
  proto::Published published;
  published.set_generation(generation);
  published.set_slot(slot);
  return published;
}
std::map<int, int> Slots(const Publications& publications) {
  std::map<int, int> slots;
  const proto::Announced announced = publications.Announcement();
  for (const auto& of : announced.slots()) slots[of.publisher()] = of.slot();
  return slots;
}

TEST(PublicationsTest, TheNewestThatAllHold) {
  Publications publications;
  publications.Start({{0, Holds({{4, 0}, {5, 1}})}, {2, Holds({{5, 0}, {6, 1}})}}, {kReader}, 2);
  EXPECT_EQ(publications.newest(), 5u);
  EXPECT_THAT(Slots(publications), ElementsAre(Pair(0, 1), Pair(2, 0)));
  // 6 lacks one of the two.
  EXPECT_THAT(publications.Lagging(), ElementsAre(MemberKey::Publisher(0)));
  EXPECT_EQ(*publications.Publish(0, Of(6, 0)), true);
  EXPECT_EQ(publications.newest(), 6u);
  EXPECT_THAT(Slots(publications), ElementsAre(Pair(0, 0), Pair(2, 1)));
  EXPECT_THAT(publications.Lagging(), IsEmpty());
}

TEST(PublicationsTest, ReceiversLeaseTheNewestAndWhatIsNewerOnly) {
  Publications publications;
  publications.Start({{0, Holds({{4, 0}, {5, 1}})}}, {kReader}, 2);
  EXPECT_TRUE(publications.Publish(0, Of(6, 0)).ok());  // over 4, which nobody of this epoch reads
  const auto over = publications.Publish(0, Of(7, 1));
  EXPECT_EQ(CodeOf(over.status()), "generation_changed");
  EXPECT_THAT(over.status().message(), HasSubstr("still leased by engine 0 worker 0"));
  EXPECT_TRUE(publications.Release(kReader, 5).ok());
  EXPECT_TRUE(publications.Publish(0, Of(7, 1)).ok());
}

TEST(PublicationsTest, OneWithoutAnythingLeavesNothingToAnnounce) {
  Publications publications;
  publications.Start({{0, Holds({{4, 0}, {5, 1}}, 5)}, {1, Holds({})}}, {kReader}, 2);
  EXPECT_EQ(publications.newest(), 0u);
  EXPECT_EQ(CodeOf(publications.Release(kReader, 5)), "malformed");
  // It may publish what the others still hold, or go on with them.
  EXPECT_EQ(*publications.Publish(1, Of(5, 0)), true);
  EXPECT_THAT(Slots(publications), ElementsAre(Pair(0, 1), Pair(1, 0)));
}

TEST(PublicationsTest, WhatNobodyCanReadHoldsNoSlot) {
  Publications publications;
  publications.Start({{0, Holds({{4, 0}, {5, 1}}, 5)}, {1, Holds({})}}, {kReader}, 2);
  // Neither 4 nor 5 was ever announced in this epoch; the trainer goes on with 6.
  const auto next = publications.Publish(0, Of(6, 0));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*publications.Publish(1, Of(6, 0)), true);
}

TEST(PublicationsTest, NumbersThatCannotBeAreLeftOut) {
  Publications publications;
  publications.Start({{0, Holds({{9, -1}, {8, 2}, {0, 0}, {7, 1}}, 3)}}, {kReader}, 2);
  EXPECT_EQ(publications.newest(), 7u);
  // The last published counts where it is greater than what is still held.
  EXPECT_EQ(CodeOf(publications.Publish(0, Of(7, 0)).status()), "generation_not_growing");
  Publications later;
  later.Start({{0, Holds({{7, 1}}, 9)}}, {kReader}, 2);
  EXPECT_EQ(CodeOf(later.Publish(0, Of(9, 0)).status()), "generation_not_growing");
  EXPECT_EQ(CodeOf(later.Publish(0, Of(10, 2)).status()), "out_of_bounds");
  EXPECT_TRUE(*later.Publish(0, Of(10, 0)));
}

TEST(PublicationsTest, WhatIsTakenBackIsVoidOrWasAnnounced) {
  Publications publications;
  publications.Start({{0, Holds({{5, 0}})}, {1, Holds({{5, 0}})}}, {kReader}, 1);
  EXPECT_TRUE(publications.Withdraw(0, 5));
  // Nobody leases it any more there, so the slot may be written; at the other one it is leased.
  EXPECT_FALSE(*publications.Publish(0, Of(6, 0)));
  EXPECT_EQ(CodeOf(publications.Publish(1, Of(6, 0)).status()), "generation_changed");
  // One that not all have published never will be complete.
  EXPECT_FALSE(publications.Withdraw(0, 6));
  EXPECT_THAT(publications.Lagging(), IsEmpty());
  EXPECT_TRUE(publications.Release(kReader, 5).ok());
  EXPECT_FALSE(*publications.Publish(1, Of(6, 0)));
  EXPECT_THAT(publications.TakeVoid(), ElementsAre(6));
  EXPECT_FALSE(*publications.Publish(0, Of(7, 0)));
  EXPECT_TRUE(*publications.Publish(1, Of(7, 0)));
}

TEST(PublicationsTest, WhatWasTakenBackBeforeTheEpochIsVoid) {
  Publications publications;
  publications.Start({{0, Holds({}, 5)}, {1, Holds({{5, 0}}, 5)}}, {kReader}, 1);
  EXPECT_EQ(publications.newest(), 0u);
  EXPECT_THAT(publications.TakeVoid(), ElementsAre(5));
}

}  // namespace
}  // namespace headrace
