// From Published to EngineCommitted, deaths, deadlines and leaving.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/coordinator.h"
#include "loader/session/coordinator_testing.h"

namespace headrace {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests

TEST_F(CoordinatorTest, AnnouncesWhenAllPublishedWithEachOnesSlot) {
  MakeReady();
  EXPECT_THAT(Tell(PublishedOf(1, 5, 1)).messages, IsEmpty());
  EXPECT_EQ(machine_->WaitingFor(), "publisher rank 0 (host a, pid 70) to publish");
  Tell(PublishedOf(0, 5, 0));
  ASSERT_EQ(actions_.messages.size(), 5u);
  EXPECT_EQ(To(2).at(0).announced().generation(), 5u);
  EXPECT_THAT(To(2).at(0).announced().slots(), ElementsAre(0, 1));
  // A generation that one publisher skipped never comes; the next one does.
  Tell(PublishedOf(0, 6, 1));
  Tell(PublishedOf(1, 7, 0));
  Release(5);
  Tell(PublishedOf(0, 7, 0));
  EXPECT_EQ(To(2).at(0).announced().generation(), 7u);
  EXPECT_EQ(machine_->WaitingFor(), "");
}

TEST_F(CoordinatorTest, TheFirstNoDecidesAndEverybodyConcernedLearnsWhy) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1));
  Tell(VoteOf(kMembers[3], 1, false));
  for (int c : {0, 1, 2, 3}) {
    const proto::Decision decision = To(c).at(0).decision();
    EXPECT_FALSE(decision.commit());
    EXPECT_EQ(decision.engine(), 0);
    EXPECT_EQ(decision.why_not().code(), "verification_failed");
    EXPECT_EQ(decision.why_not().message(), "engine 0 worker 1 gave generation 1 up: tile 3");
  }
  EXPECT_THAT(To(4), IsEmpty());
  // The other engine decides for itself, and the next generation is a new chance.
  Tell(VoteOf(kMembers[4], 1));
  EXPECT_TRUE(To(4).at(0).decision().commit());
  Announce(2, 1);
  Tell(VoteOf(kMembers[2], 2));
  Tell(VoteOf(kMembers[3], 2));
  EXPECT_TRUE(To(2).at(0).decision().commit());
}

TEST_F(CoordinatorTest, AVoteThatCrossesAnAbortIsNoError) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1, false));
  EXPECT_THAT(Tell(VoteOf(kMembers[3], 1)).messages, IsEmpty());
  Tell(VoteOf(kMembers[3], 1));
  EXPECT_THAT(Refusal(3), HasSubstr("its last vote was on generation 1"));
}

TEST_F(CoordinatorTest, TheEngineHasCommittedWhenAllItsWorkersHave) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1));
  Tell(VoteOf(kMembers[3], 1));
  proto::Envelope committed = From(kMembers[2]);
  committed.mutable_committed()->set_generation(1);
  EXPECT_THAT(Tell(committed).messages, IsEmpty());
  Tell(committed);
  EXPECT_THAT(Refusal(2), HasSubstr("a second time"));
  *committed.mutable_from() = kMembers[3].ToProto();
  Tell(committed);
  ASSERT_EQ(actions_.messages.size(), 5u);
  EXPECT_EQ(actions_.messages[0].message.engine_committed().generation(), 1u);
  EXPECT_EQ(machine_->engine_committed(0), 1u);
  EXPECT_EQ(machine_->engine_committed(1), 0u);
}

TEST_F(CoordinatorTest, RelaysStartAndAbort) {
  MakeReady();
  Announce(1);
  proto::Envelope start = From(kMembers[2], kMembers[1]);
  start.mutable_start()->set_generation(1);
  Tell(start);
  ASSERT_EQ(actions_.messages.size(), 1u);
  EXPECT_EQ(MemberKey::From(To(1).at(0).from()), kMembers[2]);
  EXPECT_EQ(To(1).at(0).start().generation(), 1u);
  proto::Envelope bye = From(kMembers[1]);
  bye.mutable_bye();
  Tell(bye);
  Tell(start);
  EXPECT_EQ(To(2).at(0).abort().why().code(), "aborted");
  EXPECT_EQ(MemberKey::From(To(2).at(0).from()), kMembers[1]);
}

TEST_F(CoordinatorTest, ReleasesGoToAllPublishers) {
  MakeReady();
  Announce(1);
  proto::Envelope release = From(kMembers[2]);
  release.mutable_release()->set_generation(1);
  Tell(release);
  ASSERT_EQ(actions_.messages.size(), 2u);
  EXPECT_EQ(MemberKey::From(To(1).at(0).from()), kMembers[2]);
}

TEST_F(CoordinatorTest, ADeathIsToldToAllOthersByName) {
  MakeReady();
  actions_ = {};
  machine_->OnDisconnected(1, Error(ErrorCode::kPeerLost, "connection closed"), now_, &actions_);
  EXPECT_THAT(To(1), IsEmpty());
  ExpectEnded("peer_lost", "publisher rank 1 (host a, pid 71) died: connection closed", 1);
  machine_->OnConnected(9, now_, &actions_);
  Tell(9, Hello(kMembers[1]));
  EXPECT_THAT(Refusal(9), HasSubstr("peer_lost: publisher rank 1"));
}

TEST_F(CoordinatorTest, SilenceIsDeath) {
  MakeReady();
  for (int i = 0; i < 12; ++i) {
    Tick(kSecond / 2);
    if (machine_->phase() == Coordinator::Phase::kEnded) break;
    EXPECT_EQ(actions_.messages.size(), 5u);
    for (int c : {0, 1, 2, 4}) {
      proto::Envelope heartbeat = From(kMembers[c]);
      heartbeat.mutable_heartbeat();
      machine_->OnMessage(c, heartbeat, now_, &actions_);
    }
  }
  ExpectEnded("peer_lost", "engine 0 worker 1 (host a, pid 71) died: no heartbeat for 6000 ms", 3);
}

TEST_F(CoordinatorTest, AMembersOwnErrorIsToldToTheOthers) {
  MakeReady();
  proto::Envelope failed = From(kMembers[2]);
  failed.mutable_failed()->mutable_why()->set_code("out_of_memory");
  failed.mutable_failed()->mutable_why()->set_message("shadow needs 9 bytes");
  Tell(failed);
  ExpectEnded("peer_lost", "engine 0 worker 0 (host a, pid 70) failed: out_of_memory: shadow needs 9 bytes", 2);
}

TEST_F(CoordinatorTest, EveryWaitEnds) {
  Tell(Hello(kMembers[0]));
  EXPECT_EQ(machine_->NextDeadline(), now_ + kSecond / 2);
  // A stream without Hello.
  Tick(6 * kSecond);
  EXPECT_EQ(To(4).at(0).failed().why().code(), "deadline");
  EXPECT_THAT(actions_.close, Contains(4));

  CoordinatorOptions options = Options();
  options.timeouts.heartbeat_timeout_ns = 1000 * kSecond;
  Restart(options);
  for (int c = 0; c < 4; ++c) Tell(Hello(kMembers[c]));
  Tick(60 * kSecond);
  EXPECT_EQ(To(0).at(0).failed().why().code(), "deadline");
  EXPECT_THAT(To(0).at(0).failed().why().message(), HasSubstr("engine 1 worker 0 to join"));

  Restart(options);
  Join();
  for (int c = 1; c < 5; ++c) Tell(PlanOf(kMembers[c]));
  Tick(60 * kSecond);
  ExpectEnded("deadline", "in vain for publisher rank 0 (host a, pid 70) to plan");

  Restart(options);
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1));
  Tick(30 * kSecond);
  EXPECT_EQ(To(2).at(0).decision().why_not().code(), "deadline");
  EXPECT_THAT(To(2).at(0).decision().why_not().message(), HasSubstr("engine 0 worker 1 did not vote on generation 1"));
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kReady);
  Announce(2, 1);
  Tell(VoteOf(kMembers[2], 2));
  Tell(VoteOf(kMembers[3], 2));
  Tick(599 * kSecond);
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kReady);
  Tick(kSecond);
  ExpectEnded("deadline", "engine 0 worker 0, 1 did not commit generation 2");
}

TEST_F(CoordinatorTest, ALeaverIsAnnouncedAndHoldsNothing) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1));
  proto::Envelope bye = From(kMembers[3]);
  bye.mutable_bye();
  Tell(bye);
  EXPECT_THAT(actions_.close, ElementsAre(3));
  EXPECT_EQ(MemberKey::From(To(0).at(0).left().member()), kMembers[3]);
  // Its engine cannot commit any more; the other one can.
  EXPECT_EQ(To(2).at(1).decision().why_not().message(), "engine 0 worker 1 left");
  EXPECT_EQ(To(0).at(1).decision().engine(), 0);
  Announce(2, 1);
  EXPECT_EQ(To(2).at(1).decision().generation(), 2u);
  Tell(VoteOf(kMembers[4], 1));
  EXPECT_TRUE(To(4).at(0).decision().commit());
  // A closed stream after the Bye is no death.
  actions_ = {};
  machine_->OnDisconnected(3, absl::OkStatus(), now_, &actions_);
  EXPECT_THAT(actions_.messages, IsEmpty());

  *bye.mutable_from() = kMembers[0].ToProto();
  Tell(bye);
  EXPECT_EQ(MemberKey::From(To(4).at(0).left().member()), kMembers[0]);
  Tell(PublishedOf(1, 3, 0));
  EXPECT_THAT(Refusal(1), HasSubstr("aborted: publisher rank 0 (host a, pid 70) left"));
}

TEST_F(CoordinatorTest, LeavingBetweenDecisionAndCommitIsADeath) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1));
  Tell(VoteOf(kMembers[3], 1));
  proto::Envelope bye = From(kMembers[3]);
  bye.mutable_bye();
  Tell(bye);
  ExpectEnded("peer_lost", "left between its engine's decision and its commit", 3);
}

TEST_F(CoordinatorTest, EndsWhenAllHaveLeft) {
  MakeReady();
  for (const MemberKey& key : kMembers) {
    proto::Envelope bye = From(key);
    bye.mutable_bye();
    Tell(bye);
  }
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kEnded);
  EXPECT_EQ(CodeOf(machine_->status()), "aborted");
  EXPECT_EQ(machine_->NextDeadline(), kNoDeadline);
}

}  // namespace
}  // namespace headrace
