#include "loader/session/publications.h"

#include <map>
#include <string>
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

// Generations that can never be complete, none of them since replicas differ.
std::vector<uint64_t> Passed(const std::vector<Publications::Void>& given_up) {
  std::vector<uint64_t> generations;
  for (const Publications::Void& of : given_up) {
    EXPECT_EQ(of.why, absl::OkStatus());
    generations.push_back(of.generation);
  }
  return generations;
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
  EXPECT_THAT(Passed(publications.TakeVoid()), ElementsAre(6));
  EXPECT_FALSE(*publications.Publish(0, Of(7, 0)));
  EXPECT_TRUE(*publications.Publish(1, Of(7, 0)));
}

TEST(PublicationsTest, WhatWasTakenBackBeforeTheEpochIsVoid) {
  Publications publications;
  publications.Start({{0, Holds({}, 5)}, {1, Holds({{5, 0}}, 5)}}, {kReader}, 1);
  EXPECT_EQ(publications.newest(), 0u);
  EXPECT_THAT(Passed(publications.TakeVoid()), ElementsAre(5));
}

proto::Planned Compares(proto::Planned planned, const std::vector<std::pair<uint64_t, std::string>>& replicas) {
  for (const auto& [id, tensor] : replicas) {
    proto::Replica* replica = planned.add_replicas();
    replica->set_id(id);
    replica->set_tensor(tensor);
  }
  return planned;
}
proto::Published With(proto::Published published, const std::vector<uint64_t>& sums) {
  published.mutable_sums()->Assign(sums.begin(), sums.end());
  return published;
}

// Publisher 0 offers "a" whole and "b"; 1 and 2 a half of "a" each, and 2 "b" too.
std::map<int, proto::Planned> ThreePublishers() {
  return {{0, Compares(Holds({}), {{1, "a"}, {2, "a"}, {3, "b"}})},
          {1, Compares(Holds({}), {{1, "a"}})},
          {2, Compares(Holds({}), {{2, "a"}, {3, "b"}})}};
}

TEST(PublicationsTest, EqualReplicasAreComplete) {
  Publications publications;
  publications.Start(ThreePublishers(), {kReader}, 2);
  EXPECT_EQ(*publications.Publish(0, With(Of(1, 0), {7, 8, 9})), false);
  EXPECT_EQ(*publications.Publish(2, With(Of(1, 0), {8, 9})), false);
  EXPECT_EQ(*publications.Publish(1, With(Of(1, 0), {7})), true);
  EXPECT_EQ(publications.newest(), 1u);
  EXPECT_THAT(publications.TakeVoid(), IsEmpty());
}

TEST(PublicationsTest, ReplicasThatDifferAreVoidAndTheNextGenerationCounts) {
  Publications publications;
  publications.Start(ThreePublishers(), {kReader}, 2);
  ASSERT_TRUE(publications.Publish(0, With(Of(1, 0), {7, 8, 9})).ok());
  ASSERT_TRUE(publications.Publish(1, With(Of(1, 0), {7})).ok());
  ASSERT_EQ(*publications.Publish(2, With(Of(1, 0), {8, 9})), true);
  ASSERT_TRUE(publications.Publish(0, With(Of(2, 1), {7, 8, 9})).ok());
  ASSERT_TRUE(publications.Publish(1, With(Of(2, 1), {7})).ok());
  EXPECT_EQ(*publications.Publish(2, With(Of(2, 1), {8, 10})), false);
  EXPECT_EQ(publications.newest(), 1u);
  EXPECT_THAT(publications.Lagging(), IsEmpty());
  const auto given_up = publications.TakeVoid();
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_EQ(given_up[0].generation, 2u);
  EXPECT_EQ(CodeOf(given_up[0].why), "replica_divergence");
  EXPECT_THAT(given_up[0].why.message(), HasSubstr("generation 2"));
  EXPECT_THAT(given_up[0].why.message(), HasSubstr("tensor \"b\" of publisher rank 0 and of publisher rank 2"));
  EXPECT_THAT(given_up[0].why.message(), ::testing::Not(HasSubstr("\"a\"")));
  EXPECT_EQ(SubjectOf(given_up[0].why).tensor, "b");
  EXPECT_THAT(publications.TakeVoid(), IsEmpty());
  // Nobody leases it: its slots are written at once. It is not published again.
  EXPECT_EQ(CodeOf(publications.Publish(0, With(Of(2, 1), {7, 8, 9})).status()), "generation_not_growing");
  for (int rank : {0, 1})
    ASSERT_TRUE(
        publications
            .Publish(rank, With(Of(3, 1), rank == 0 ? std::vector<uint64_t>{1, 2, 3} : std::vector<uint64_t>{1}))
            .ok());
  EXPECT_EQ(*publications.Publish(2, With(Of(3, 1), {2, 3})), true);
  EXPECT_EQ(publications.newest(), 3u);
}

// It crossed the news that its replicas differ.
TEST(PublicationsTest, WhatIsTakenBackAfterReplicasDifferedIsVoidOnce) {
  Publications publications;
  const proto::Planned planned = Compares(Holds({}), {{1, "a"}});
  publications.Start({{0, planned}, {1, planned}}, {kReader}, 1);
  ASSERT_TRUE(publications.Publish(0, With(Of(5, 0), {7})).ok());
  ASSERT_EQ(*publications.Publish(1, With(Of(5, 0), {8})), false);
  ASSERT_EQ(publications.TakeVoid().size(), 1u);
  EXPECT_FALSE(publications.Withdraw(0, 5));
  EXPECT_THAT(publications.TakeVoid(), IsEmpty());
  // What was taken back before all had published it is not compared.
  ASSERT_TRUE(publications.Publish(0, With(Of(6, 0), {7})).ok());
  EXPECT_FALSE(publications.Withdraw(0, 6));
  EXPECT_FALSE(*publications.Publish(1, With(Of(6, 0), {8})));
  EXPECT_THAT(Passed(publications.TakeVoid()), ElementsAre(6));
  ASSERT_TRUE(publications.Publish(0, With(Of(7, 0), {7})).ok());
  EXPECT_TRUE(*publications.Publish(1, With(Of(7, 0), {7})));
}

// Of three the one that stands alone is the error's subject.
TEST(PublicationsTest, TheFewestAreNamed) {
  Publications publications;
  const proto::Planned planned = Compares(Holds({}), {{1, "a"}, {2, "b"}, {4, "c"}});
  publications.Start({{0, planned}, {1, planned}, {2, planned}}, {}, 2);
  ASSERT_TRUE(publications.Publish(0, With(Of(1, 0), {7, 8, 9})).ok());
  ASSERT_TRUE(publications.Publish(1, With(Of(1, 0), {7, 5, 6})).ok());
  ASSERT_TRUE(publications.Publish(2, With(Of(1, 0), {7, 8, 9})).ok());
  const auto given_up = publications.TakeVoid();
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_THAT(given_up[0].why.message(),
              HasSubstr("tensor \"b\" of publisher rank 0, 2 and of publisher rank 1; tensor \"c\" of"));
  EXPECT_EQ(SubjectOf(given_up[0].why).rank, 1);
  EXPECT_EQ(SubjectOf(given_up[0].why).peer, "publisher rank 1");
}

// A new epoch compares what its slots hold: an older generation may be what is left.
TEST(PublicationsTest, ANewEpochComparesWhatIsHeld) {
  const auto holds = [](uint64_t newest_sum, int sums = 1) {
    proto::Planned planned = Compares(Holds({{4, 0}, {5, 1}}, 5), {{1, "a"}});
    planned.mutable_held(0)->add_sums(3);
    for (int i = 0; i < sums; ++i) planned.mutable_held(1)->add_sums(newest_sum);
    return planned;
  };
  Publications publications;
  publications.Start({{0, holds(7)}, {1, holds(7)}}, {kReader}, 2);
  EXPECT_EQ(publications.newest(), 5u);
  EXPECT_THAT(publications.TakeVoid(), IsEmpty());
  Publications differ;
  differ.Start({{0, holds(7)}, {1, holds(6)}}, {kReader}, 2);
  EXPECT_EQ(differ.newest(), 4u);
  const auto given_up = differ.TakeVoid();
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_EQ(given_up[0].generation, 5u);
  EXPECT_EQ(CodeOf(given_up[0].why), "replica_divergence");
  // Who does not say what its replicas are holds nothing.
  Publications unsaid;
  unsaid.Start({{0, holds(7)}, {1, holds(7, 2)}}, {kReader}, 2);
  EXPECT_EQ(unsaid.newest(), 4u);
}

TEST(PublicationsTest, AsManySumsAsReplicas) {
  Publications publications;
  publications.Start(ThreePublishers(), {kReader}, 2);
  EXPECT_EQ(CodeOf(publications.Publish(1, Of(1, 0)).status()), "malformed");
  EXPECT_EQ(CodeOf(publications.Publish(1, With(Of(1, 0), {1, 2})).status()), "malformed");
  EXPECT_TRUE(publications.Publish(1, With(Of(1, 0), {1})).ok());
}

}  // namespace
}  // namespace headrace
