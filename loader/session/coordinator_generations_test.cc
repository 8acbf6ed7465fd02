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
  ASSERT_EQ(To(2).at(0).announced().slots_size(), 2);
  for (int rank : {0, 1}) {
    EXPECT_EQ(To(2).at(0).announced().slots(rank).publisher(), rank);
    EXPECT_EQ(To(2).at(0).announced().slots(rank).slot(), rank);
  }
  // A generation that one publisher skipped never comes; the next one does.
  Tell(PublishedOf(0, 6, 1));
  Tell(PublishedOf(1, 7, 0));
  Release(5);
  Tell(PublishedOf(0, 7, 0));
  EXPECT_EQ(To(2).at(0).announced().generation(), 7u);
  EXPECT_EQ(machine_->WaitingFor(), "");
}

TEST_F(CoordinatorTest, ReplicasThatDifferAreToldToAllAndNotAnnounced) {
  Join();
  for (const MemberKey& key : kMembers) {
    proto::Envelope planned = PlanOf(key);
    if (key.role == proto::PUBLISHER) {
      proto::Replica* replica = planned.mutable_planned()->add_replicas();
      replica->set_id(3);
      replica->set_tensor("w");
    }
    Tell(planned);
  }
  const auto publish = [&](int rank, uint64_t generation, int slot, uint64_t sum) {
    proto::Envelope published = PublishedOf(rank, generation, slot);
    published.mutable_published()->add_sums(sum);
    Tell(published);
  };
  publish(0, 1, 0, 9);
  publish(1, 1, 0, 8);
  ASSERT_EQ(actions_.messages.size(), 5u);
  for (int c : {0, 1, 2, 3, 4}) {
    ASSERT_TRUE(To(c).at(0).has_void_()) << c;
    EXPECT_EQ(To(c)[0].void_().generation(), 1u);
    EXPECT_EQ(To(c)[0].void_().why().code(), "replica_divergence");
    EXPECT_EQ(To(c)[0].void_().why().tensor(), "w");
  }
  EXPECT_EQ(machine_->last_announced(), 0u);
  EXPECT_EQ(machine_->WaitingFor(), "");
  publish(1, 2, 0, 8);
  publish(0, 2, 0, 8);
  EXPECT_EQ(To(4).at(0).announced().generation(), 2u);
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

TEST_F(CoordinatorTest, SaysWhoseVoteAndWhoseCommitOthersWaitFor) {
  MakeReady();
  auto commit = [&](ConnectionId worker) {
    proto::Envelope committed = From(kMembers[worker]);
    committed.mutable_committed()->set_generation(1);
    Tell(committed);
  };
  Announce(1);
  EXPECT_EQ(machine_->WaitingFor(), "");  // engines take a generation when they like
  Tell(VoteOf(kMembers[3], 1));
  EXPECT_EQ(machine_->WaitingFor(), "engine 0 worker 0 to vote on generation 1");
  Tell(VoteOf(kMembers[4], 1));
  EXPECT_EQ(machine_->WaitingFor(),
            "engine 0 worker 0 to vote on generation 1; engine 1 worker 0 to commit generation 1");
  Tell(VoteOf(kMembers[2], 1));
  commit(4);
  commit(2);
  EXPECT_EQ(machine_->WaitingFor(), "engine 0 worker 1 to commit generation 1");
  Tell(PublishedOf(1, 2, 1));
  EXPECT_EQ(machine_->WaitingFor(),
            "publisher rank 0 (host a, pid 70) to publish; engine 0 worker 1 to commit generation 1");
  commit(3);
  EXPECT_EQ(machine_->WaitingFor(), "publisher rank 0 (host a, pid 70) to publish");
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

TEST_F(CoordinatorTest, ADeathWithoutWhichNoPlanCanBeMadeIsToldToAllOthersByName) {
  MakeReady();
  Die(1);
  EXPECT_THAT(To(1), IsEmpty());
  for (int c : {0, 2, 3, 4}) {
    ASSERT_EQ(To(c).size(), 1u);
    EXPECT_EQ(To(c)[0].epoch(), 2u);
    EXPECT_EQ(To(c)[0].epoch_start().members_size(), 4);
  }
  proto::Envelope why_not = From(kMembers[2], MemberKey::Coordinator(), 2);
  why_not.mutable_planned()->mutable_why_not()->set_code("uncovered");
  why_not.mutable_planned()->mutable_why_not()->set_message("tensor w: rows 4 to 8 are offered by nobody");
  why_not.mutable_planned()->mutable_why_not()->set_tensor("w");
  Tell(why_not);
  ExpectEnded("peer_lost",
              "publisher rank 1 (host a, pid 71) died: reset; without it: tensor w: rows 4 to 8 are offered by nobody",
              1);
  EXPECT_EQ(SubjectOf(machine_->status()).tensor, "w");
  EXPECT_EQ(SubjectOf(machine_->status()).peer, "publisher rank 1 (host a, pid 71)");
  machine_->OnConnected(9, now_, &actions_);
  Tell(9, Hello(kMembers[1]));
  EXPECT_THAT(Refusal(9), HasSubstr("peer_lost: publisher rank 1"));
}

TEST_F(CoordinatorTest, SilenceIsDeath) {
  MakeReady();
  for (int i = 0; i < 12; ++i) {
    Tick(kSecond / 2);
    if (i == 11) {
      // Its engine is sent away, the other one goes on without it.
      EXPECT_THAT(actions_.close, ::testing::UnorderedElementsAre(2, 3));
      EXPECT_EQ(CodeOf(Told(2)), "peer_lost");
      EXPECT_THAT(Told(2).message(), HasSubstr("engine 0 worker 1 (host a, pid 71) died: no heartbeat for 6000 ms"));
      for (int c : {0, 1, 4}) EXPECT_EQ(To(c).at(0).epoch_start().members_size(), 3);
      return;
    }
    EXPECT_EQ(actions_.messages.size(), 5u);
    for (int c : {0, 1, 2, 4}) {
      proto::Envelope heartbeat = From(kMembers[c]);
      heartbeat.mutable_heartbeat();
      machine_->OnMessage(c, heartbeat, now_, &actions_);
    }
  }
  ADD_FAILURE() << "nobody noticed";
}

TEST_F(CoordinatorTest, AWorkersOwnErrorIsToldToItsEngine) {
  MakeReady();
  proto::Envelope failed = From(kMembers[2]);
  failed.mutable_failed()->mutable_why()->set_code("out_of_memory");
  failed.mutable_failed()->mutable_why()->set_message("shadow needs 9 bytes");
  Tell(failed);
  EXPECT_THAT(actions_.close, ::testing::UnorderedElementsAre(2, 3));
  EXPECT_EQ(CodeOf(Told(3)), "peer_lost");
  EXPECT_THAT(Told(3).message(),
              HasSubstr("engine 0 worker 0 (host a, pid 70) failed: out_of_memory: shadow needs 9 bytes"));
  for (int c : {0, 1, 4}) EXPECT_EQ(To(c).at(0).epoch_start().members_size(), 3);
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
  // That engine has to begin anew; the job goes on.
  Tick(kSecond);
  for (int c : {2, 3}) {
    EXPECT_TRUE(To(c).at(0).suspended().engine_broken());
    EXPECT_EQ(CodeOf(Told(c)), "deadline");
    EXPECT_THAT(Told(c).message(), HasSubstr("engine 0 worker 0, 1 did not commit generation 2"));
    EXPECT_EQ(To(c).at(1).epoch_start().members_size(), 5);
  }
  EXPECT_EQ(To(0).at(0).decision().why_not().code(), "deadline");
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kPlanning);
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

  // The other engine commits in peace; then it is seen who can go on without the one that left.
  *bye.mutable_from() = kMembers[0].ToProto();
  Tell(bye);
  EXPECT_EQ(MemberKey::From(To(4).at(0).left().member()), kMembers[0]);
  EXPECT_EQ(To(4).size(), 1u);
  proto::Envelope committed = From(kMembers[4]);
  committed.mutable_committed()->set_generation(1);
  Tell(committed);
  EXPECT_EQ(To(4).at(0).engine_committed().generation(), 1u);
  EXPECT_EQ(To(4).size(), 1u);  // generation 2 is announced and undecided
  Tell(VoteOf(kMembers[4], 2, false));
  EXPECT_EQ(To(4).at(1).epoch_start().members_size(), 2);  // publisher rank 1 and engine 1
  EXPECT_EQ(CodeOf(Told(2)), "aborted");
  EXPECT_TRUE(To(2).back().suspended().engine_broken());
}

TEST_F(CoordinatorTest, LeavingBetweenDecisionAndCommitIsADeath) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[2], 1));
  Tell(VoteOf(kMembers[3], 1));
  proto::Envelope bye = From(kMembers[3]);
  bye.mutable_bye();
  Tell(bye);
  EXPECT_EQ(CodeOf(Told(2)), "peer_lost");
  EXPECT_THAT(Told(2).message(), HasSubstr("left between its engine's decision and its commit"));
  EXPECT_EQ(To(0).at(0).decision().generation(), 1u);
  EXPECT_FALSE(To(0).at(0).decision().commit());
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

// A publisher whose weights change while they are still read.
TEST_F(CoordinatorTest, WhatIsTakenBackIsGivenUpByAllThatHaveNotDecided) {
  MakeReady();
  Announce(1);
  Tell(VoteOf(kMembers[4], 1));
  Tell(VoteOf(kMembers[2], 1));
  proto::Envelope taken_back = From(kMembers[0]);
  taken_back.mutable_void_()->set_generation(1);
  *taken_back.mutable_void_()->mutable_why() = ToFault(Error(ErrorCode::kDeadline, "its weights change"));
  Tell(taken_back);
  for (int c : {0, 1, 2, 3}) {
    const proto::Decision decision = To(c).at(0).decision();
    EXPECT_FALSE(decision.commit());
    EXPECT_EQ(decision.engine(), 0);
    EXPECT_EQ(decision.why_not().message(), "its weights change");
  }
  EXPECT_THAT(To(4), IsEmpty());  // it has all its bytes
  Tell(VoteOf(kMembers[3], 1));   // crossed it
  EXPECT_THAT(actions_.messages, IsEmpty());
  // One that was never complete.
  Tell(PublishedOf(0, 2, 1));
  taken_back.mutable_void_()->set_generation(2);
  Tell(taken_back);
  EXPECT_THAT(actions_.messages, IsEmpty());
  Tell(PublishedOf(1, 2, 1));
  EXPECT_EQ(To(1).at(0).void_().generation(), 2u);
  taken_back = From(kMembers[2]);
  taken_back.mutable_void_()->set_generation(1);
  Tell(taken_back);
  EXPECT_THAT(Refusal(2), HasSubstr("malformed"));
}

}  // namespace
}  // namespace headrace
