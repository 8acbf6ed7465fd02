#include "loader/session/publisher_session.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/session_testing.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests

const MemberKey kSelf = MemberKey::Publisher(0);
const MemberKey kA = MemberKey::Receiver(0, 0), kB = MemberKey::Receiver(0, 1);

// Publisher 0 of two, with two receivers and two slots.
class PublisherSessionTest : public ::testing::Test {
 protected:
  PublisherSessionTest() { Restart(); }
  void Restart(const std::string& incarnation = "") {
    MemberOptions options;
    options.job = "job";
    options.incarnation = incarnation;
    options.self = kSelf;
    options.host = "a";
    options.pid = 7;
    options.layout = LayoutOf(2);
    options.layout.set_hold(hold_);
    options.coordinator_address = "c:1";
    machine_.emplace(options);
  }
  MemberActions& Tell(const proto::Envelope& message) {
    actions_ = {};
    machine_->OnMessage(message, now_, &actions_);
    return actions_;
  }
  proto::Envelope Order(MemberKey from = MemberKey::Coordinator()) const { return From(from, kSelf); }
  MemberActions& Connect() {
    actions_ = {};
    machine_->OnConnected(now_, &actions_);
    return actions_;
  }
  void Welcome() {
    proto::Envelope message = Order();
    message.mutable_welcome();
    Tell(message);
  }
  proto::Envelope EpochStart() const {
    proto::Envelope message = Order();
    for (const MemberKey& key : {kSelf, MemberKey::Publisher(1), kA, kB})
      *message.mutable_epoch_start()->add_members()->mutable_id() = key.ToProto();
    return message;
  }
  void MakeReady() {
    Connect();
    Welcome();
    Tell(EpochStart());
    const std::vector<proto::Edge> edges = {EdgeOf(0, 0, 0, "da"), EdgeOf(0, 0, 1, "db")};
    ASSERT_TRUE(machine_->Planned(1, edges, now_, &actions_).ok());
    proto::Envelope ready = Order();
    ready.mutable_epoch_ready()->set_root("root");
    Tell(ready);
    ASSERT_EQ(Effects<EpochReadyEffect>(actions_).at(0).root, "root");
  }
  absl::Status Publish(uint64_t generation, int64_t deadline_ns = kNoDeadline) {
    actions_ = {};
    return machine_->Publish(generation, deadline_ns, now_, &actions_);
  }
  void PublishAll(uint64_t generation) {
    ASSERT_TRUE(Publish(generation).ok());
    const int slot = Effects<WriteSlotEffect>(actions_).at(0).slot;
    ASSERT_TRUE(machine_->Snapshotted(generation, now_, &actions_).ok());
    proto::Envelope announced = Order();
    announced.mutable_announced()->set_generation(generation);
    AddSlot(&announced, 0, slot);
    AddSlot(&announced, 1, 1);
    ASSERT_EQ(Effects<AnnouncedEffect>(Tell(announced)).size(), 1u);
  }
  MemberActions& Release(MemberKey receiver, uint64_t generation) {
    proto::Envelope message = Order(receiver);
    message.mutable_release()->set_generation(generation);
    return Tell(message);
  }
  proto::Envelope StartOf(MemberKey receiver, uint64_t generation, const std::string& digest) const {
    proto::Envelope message = Order(receiver);
    message.mutable_start()->set_generation(generation);
    message.mutable_start()->set_digest(digest);
    return message;
  }
  std::string Refused() const {
    const auto refused = Effects<RefusedEffect>(actions_);
    if (refused.empty()) return "";
    return std::string(CodeOf(refused[0].status)) + ": " + std::string(refused[0].status.message());
  }
  absl::Status Failed() const {
    const auto failed = Effects<FailEffect>(actions_);
    return failed.empty() ? absl::OkStatus() : failed[0].status;
  }

  bool hold_ = false;
  int64_t now_ = 5 * kSecond;
  MemberActions actions_;
  std::optional<PublisherSession> machine_;
};

TEST_F(PublisherSessionTest, JoinsWithoutShowingItsLayoutToAnotherJob) {
  EXPECT_TRUE(Connect().messages.at(0).has_hello());
  EXPECT_THAT(machine_->WaitingFor(), HasSubstr("c:1"));
  proto::Envelope welcome = Order();
  welcome.set_job("job-b");
  welcome.mutable_welcome();
  Tell(welcome);
  EXPECT_EQ(CodeOf(Failed()), "wrong_job");
  EXPECT_THAT(Failed().message(), HasSubstr("\"job-b\""));
  EXPECT_THAT(Failed().message(), HasSubstr("\"job\""));
  for (const proto::Envelope& message : actions_.messages) EXPECT_FALSE(message.has_layout());

  Restart("run-2");
  Connect();
  Welcome();  // of run-1
  EXPECT_EQ(CodeOf(Failed()), "wrong_job");

  Restart();
  Connect();
  proto::Envelope failed;  // of whatever coordinator
  failed.mutable_failed()->mutable_why()->set_code("wrong_job");
  failed.mutable_failed()->mutable_why()->set_message("m");
  Tell(failed);
  EXPECT_EQ(CodeOf(Failed()), "wrong_job");

  Restart();
  Connect();
  Welcome();
  EXPECT_TRUE(actions_.messages.at(0).has_layout());
  EXPECT_EQ(machine_->incarnation(), "run-1");
  EXPECT_EQ(machine_->epoch(), 1u);
}

TEST_F(PublisherSessionTest, ARefusalBeforeTheEpochIsReadyIsFatal) {
  Connect();
  Welcome();
  proto::Envelope refused = Order();
  refused.mutable_refused()->mutable_why()->set_code("invalid_option");
  Tell(refused);
  EXPECT_EQ(CodeOf(Failed()), "invalid_option");
  EXPECT_EQ(actions_.messages.at(0).failed().why().code(), "invalid_option");
}

TEST_F(PublisherSessionTest, WritesOnlySlotsWithoutLeases) {
  MakeReady();
  PublishAll(1);
  PublishAll(2);
  ASSERT_TRUE(Publish(3).ok());
  EXPECT_THAT(actions_.effects, IsEmpty());
  EXPECT_EQ(machine_->busy_slots(), 2);
  EXPECT_THAT(Release(kA, 2).effects, IsEmpty());  // 2 and everything older
  Release(kB, 1);
  EXPECT_EQ(Effects<SlotFreeEffect>(actions_).at(0).generation, 1u);
  EXPECT_EQ(Effects<WriteSlotEffect>(actions_).at(0).generation, 3u);
  EXPECT_EQ(Effects<WriteSlotEffect>(actions_).at(0).slot, 0);
  // Given up: nothing was published, the number may be used again.
  ASSERT_TRUE(machine_->AbandonSlot(3).ok());
  EXPECT_EQ(CodeOf(machine_->Snapshotted(3, now_, &actions_)), "malformed");
  ASSERT_TRUE(Publish(3).ok());
}

TEST_F(PublisherSessionTest, AFullHouseEndsAtTheDeadlineNamingTheHolders) {
  MakeReady();
  PublishAll(1);
  PublishAll(2);
  Release(kA, 1);
  ASSERT_TRUE(Publish(3, now_ + kSecond / 10).ok());
  EXPECT_EQ(machine_->NextDeadline(), now_ + kSecond / 10);
  now_ += kSecond / 10;
  actions_ = {};
  machine_->OnTick(now_, &actions_);
  const auto failed = Effects<PublishFailedEffect>(actions_);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(CodeOf(failed[0].status), "deadline");
  EXPECT_THAT(failed[0].status.message(), HasSubstr("slot 0 holds generation 1, leased by engine 0 worker 1;"));
  EXPECT_THAT(failed[0].status.message(), HasSubstr("leased by engine 0 worker 0, engine 0 worker 1"));
  ASSERT_TRUE(Publish(3).ok());  // the session goes on
}

TEST_F(PublisherSessionTest, GenerationsGrowWithinAnIncarnation) {
  MakeReady();
  PublishAll(7);
  for (uint64_t generation : {0, 1, 7}) {
    const absl::Status status = Publish(generation);
    EXPECT_EQ(CodeOf(status), "generation_not_growing");
    EXPECT_THAT(status.message(), HasSubstr("publish(" + std::to_string(generation) + ") after generation 7"));
  }
  Restart();  // the trainer starts again
  MakeReady();
  PublishAll(1);
}

TEST_F(PublisherSessionTest, SendsOnlyWhatItHoldsUnderALease) {
  MakeReady();
  PublishAll(1);
  Tell(StartOf(kA, 1, "da"));
  const auto send = Effects<SendToEffect>(actions_);
  ASSERT_EQ(send.size(), 1u);
  EXPECT_EQ(send[0].receiver, kA);
  EXPECT_EQ(send[0].slot, 0);
  proto::Envelope stale = StartOf(kA, 1, "da");
  stale.set_epoch(2);
  const std::vector<std::pair<proto::Envelope, std::string>> cases = {
      {StartOf(kA, 1, "db"), "plan_mismatch"},
      {StartOf(kA, 2, "da"), "generation_changed"},
      {StartOf(MemberKey::Receiver(4, 0), 1, "da"), "malformed"},
      {stale, "stale_epoch"},
  };
  for (const auto& [message, code] : cases) {
    Tell(message);
    EXPECT_THAT(Refused(), HasSubstr(code));
    ASSERT_EQ(actions_.messages.size(), 1u) << code;
    EXPECT_EQ(actions_.messages[0].abort().why().code(), code);
    EXPECT_EQ(MemberKey::From(actions_.messages[0].to()), MemberKey::From(message.from()));
    EXPECT_THAT(Effects<SendToEffect>(actions_), IsEmpty());
  }
  Release(kA, 1);
  Tell(StartOf(kA, 1, "da"));
  EXPECT_EQ(actions_.messages.at(0).abort().why().code(), "generation_changed");
}

TEST_F(PublisherSessionTest, LearnsWhatTheEnginesDid) {
  MakeReady();
  proto::Envelope decision = Order();
  decision.mutable_decision()->set_engine(1);
  decision.mutable_decision()->set_generation(4);
  decision.mutable_decision()->mutable_why_not()->set_code("verification_failed");
  decision.mutable_decision()->mutable_why_not()->set_message("engine 1 worker 0 gave generation 4 up: tile 3");
  const auto aborted = Effects<EngineAbortedEffect>(Tell(decision));
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(CodeOf(aborted[0].status), "verification_failed");
  proto::Envelope committed = Order();
  committed.mutable_engine_committed()->set_generation(5);
  EXPECT_EQ(Effects<EngineCommittedEffect>(Tell(committed)).at(0).generation, 5u);
}

TEST_F(PublisherSessionTest, LeaversHoldNothingAndEndWhatCannotComeAnyMore) {
  MakeReady();
  PublishAll(1);
  proto::Envelope left = Order();
  *left.mutable_left()->mutable_member() = kA.ToProto();
  Tell(left);
  Release(kB, 1);
  EXPECT_EQ(machine_->busy_slots(), 0);
  PublishAll(2);
  Release(kB, 2);
  *left.mutable_left()->mutable_member() = MemberKey::Publisher(1).ToProto();
  Tell(left);
  EXPECT_EQ(Effects<LeftEffect>(actions_).at(0).member, MemberKey::Publisher(1));
  EXPECT_TRUE(Publish(3).ok());  // until the next epoch's plan says that the other one is needed
  ASSERT_TRUE(machine_->AbandonSlot(3).ok());
  actions_ = {};
  ASSERT_TRUE(machine_->Leave(now_, &actions_).ok());
  EXPECT_TRUE(actions_.messages.at(0).has_bye());
  EXPECT_EQ(CodeOf(Publish(4)), "aborted");
}

TEST_F(PublisherSessionTest, DropsWhatDoesNotBelong) {
  MakeReady();
  PublishAll(3);
  const auto announced = [&](uint64_t generation, int slot) {
    proto::Envelope message = Order();
    message.mutable_announced()->set_generation(generation);
    AddSlot(&message, 0, slot);
    return message;
  };
  proto::Envelope wrong_job = announced(4, 0), wrong_incarnation = announced(4, 0), stale = announced(4, 0);
  wrong_job.set_job("x");
  wrong_incarnation.set_incarnation("run-0");
  stale.set_epoch(9);
  proto::Envelope from_member = announced(4, 0), to_other = announced(4, 0), welcome = Order(), ready = Order();
  *from_member.mutable_from() = kA.ToProto();
  *to_other.mutable_to() = kB.ToProto();
  welcome.mutable_welcome();
  ready.mutable_epoch_ready();
  proto::Envelope commit = Order(), release = Order(kA);
  commit.mutable_decision()->set_commit(true);
  *release.mutable_from() = MemberKey::Receiver(7, 7).ToProto();
  release.mutable_release()->set_generation(3);
  const std::vector<std::pair<proto::Envelope, std::string>> cases = {
      {wrong_job, "wrong_job"},
      {wrong_incarnation, "wrong_job"},
      {stale, "stale_epoch: a message of epoch 9"},
      {from_member, "only the coordinator may send"},
      {to_other, "malformed"},
      {welcome, "message welcome"},
      {ready, "EpochReady came before"},
      {EpochStart(), "a second time"},
      {Order(), "no body"},
      {announced(3, 0), "generation_not_growing: generation 3 was announced after generation 3"},
      {announced(4, 0), "does not hold it"},
      {announced(4, -1), "does not hold it"},
      {announced(4, 2), "does not hold it"},
      {commit, "for workers only"},
      {release, "not in the epoch"},
  };
  for (const auto& [message, expected] : cases) {
    Tell(message);
    EXPECT_THAT(Refused(), HasSubstr(expected));
    EXPECT_EQ(actions_.effects.size(), 1u);
    EXPECT_THAT(actions_.messages, IsEmpty());
  }
  EXPECT_EQ(machine_->phase(), MemberSession::Phase::kReady);
}

TEST_F(PublisherSessionTest, CallsOutOfTurnAreErrors) {
  EXPECT_EQ(CodeOf(Publish(1)), "malformed");
  Connect();
  EXPECT_EQ(CodeOf(machine_->Planned(0, Edges{}, now_, &actions_)), "stale_epoch");
  Welcome();
  Tell(EpochStart());
  EXPECT_EQ(CodeOf(machine_->Planned(1, Edges{EdgeOf(1, 0, 0)}, now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Planned(1, Edges{EdgeOf(0, 0, 0), EdgeOf(0, 0, 0)}, now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Planned(2, Edges{}, now_, &actions_)), "stale_epoch");
  EXPECT_TRUE(machine_->Planned(1, Edges{}, now_, &actions_).ok());
  EXPECT_EQ(CodeOf(machine_->Planned(1, Edges{}, now_, &actions_)), "malformed");
  Restart();
  MakeReady();
  ASSERT_TRUE(Publish(1).ok());
  EXPECT_EQ(CodeOf(Publish(2)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Snapshotted(2, now_, &actions_)), "malformed");
}

TEST_F(PublisherSessionTest, SaysWhatItsReplicasAre) {
  Connect();
  Welcome();
  Tell(EpochStart());
  proto::Replica replica;
  replica.set_id(77);
  replica.set_tensor("w");
  machine_->CompareBy({replica}, {});
  actions_ = {};
  ASSERT_TRUE(machine_->Planned(1, Edges{EdgeOf(0, 0, 0, "da")}, now_, &actions_).ok());
  ASSERT_EQ(actions_.messages.at(0).planned().replicas_size(), 1);
  EXPECT_EQ(actions_.messages[0].planned().replicas(0).tensor(), "w");
  proto::Envelope ready = Order();
  ready.mutable_epoch_ready();
  Tell(ready);
  ASSERT_TRUE(Publish(1).ok());
  actions_ = {};
  const std::vector<uint64_t> sums = {12345};
  ASSERT_TRUE(machine_->Snapshotted(1, now_, &actions_, sums).ok());
  EXPECT_EQ(actions_.messages.at(0).published().sums(0), 12345u);
  // Another epoch, with other replicas.
  proto::Envelope start = EpochStart();
  start.set_epoch(2);
  Tell(start);
  replica.set_id(78);
  machine_->CompareBy({replica, replica}, {{0, {5, 6}}, {1, {}}});
  actions_ = {};
  ASSERT_TRUE(machine_->Planned(2, Edges{}, now_, &actions_).ok());
  const proto::Planned planned = actions_.messages.at(0).planned();
  EXPECT_EQ(planned.replicas_size(), 2);
  ASSERT_EQ(planned.held_size(), 1);
  ASSERT_EQ(planned.held(0).sums_size(), 2);
  EXPECT_EQ(planned.held(0).sums(1), 6u);
}

TEST_F(PublisherSessionTest, AGenerationOfWhichReplicasDifferHoldsNoSlot) {
  MakeReady();
  PublishAll(1);
  ASSERT_TRUE(Publish(2).ok());
  ASSERT_TRUE(machine_->Snapshotted(2, now_, &actions_).ok());
  EXPECT_EQ(machine_->busy_slots(), 2);
  ASSERT_TRUE(Publish(3).ok());
  EXPECT_THAT(Effects<WriteSlotEffect>(actions_), IsEmpty());
  proto::Envelope message = Order();
  message.mutable_void_()->set_generation(2);
  *message.mutable_void_()->mutable_why() = ToFault(Error(ErrorCode::kReplicaDivergence, "w differs"));
  Tell(message);
  const auto given_up = Effects<GivenUpEffect>(actions_);
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_EQ(given_up[0].generation, 2u);
  EXPECT_EQ(CodeOf(given_up[0].status), "replica_divergence");
  // Its slot is for the one that waits; what was announced stays.
  ASSERT_EQ(Effects<WriteSlotEffect>(actions_).size(), 1u);
  EXPECT_EQ(Effects<WriteSlotEffect>(actions_)[0].generation, 3u);
  EXPECT_EQ(machine_->generation_in(1 - Effects<WriteSlotEffect>(actions_)[0].slot), 1u);
}

TEST_F(PublisherSessionTest, BeatsAndNoticesSilence) {
  MakeReady();
  for (int i = 0; i < 11; ++i) {
    now_ = machine_->NextDeadline();
    actions_ = {};
    machine_->OnTick(now_, &actions_);
    EXPECT_TRUE(actions_.messages.at(0).has_heartbeat());
  }
  now_ = machine_->NextDeadline();
  actions_ = {};
  machine_->OnTick(now_, &actions_);
  EXPECT_EQ(CodeOf(Failed()), "peer_lost");
  EXPECT_THAT(Failed().message(), HasSubstr("the coordinator at c:1 is lost: nothing heard for 6000 ms"));
  EXPECT_EQ(machine_->NextDeadline(), kNoDeadline);
}

TEST_F(PublisherSessionTest, WaitsForTheEpochOnlySoLong) {
  Connect();
  Welcome();
  proto::Envelope heartbeat = Order();
  heartbeat.mutable_heartbeat()->set_waiting_for("publisher rank 1 to join");
  while (machine_->phase() != MemberSession::Phase::kEnded) {
    Tell(heartbeat);
    now_ = machine_->NextDeadline();
    actions_ = {};
    machine_->OnTick(now_, &actions_);
  }
  EXPECT_EQ(CodeOf(Failed()), "deadline");
  EXPECT_THAT(Failed().message(), HasSubstr("publisher rank 1 to join"));
  EXPECT_EQ(now_, 71 * kSecond);  // 5 s + join + heartbeat timeout
}

class HoldingPublisherTest : public PublisherSessionTest {
 protected:
  HoldingPublisherTest() {
    hold_ = true;
    Restart();
  }
  // What took a generation back tells the coordinator, empty: nothing.
  std::string Voided() const {
    for (const proto::Envelope& message : actions_.messages)
      if (message.has_void_()) return absl::StrCat(message.void_().generation(), ": ", message.void_().why().message());
    return "";
  }
  absl::Status TakeBack(uint64_t generation) {
    actions_ = {};
    return machine_->TakeBack(generation, &actions_);
  }
};

TEST_F(HoldingPublisherTest, TheWeightsMayChangeWhenAllHaveReleased) {
  MakeReady();
  PublishAll(5);
  EXPECT_FALSE(machine_->released(5));
  EXPECT_EQ(CodeOf(Publish(6)), "invalid_option");  // it would change what is read
  Release(kA, 5);
  EXPECT_FALSE(machine_->released(5));
  Release(kB, 5);
  EXPECT_TRUE(machine_->released(5));
  EXPECT_EQ(TakeBack(5), absl::OkStatus());
  EXPECT_EQ(Voided(), "");
  EXPECT_EQ(TakeBack(5), absl::OkStatus());
  EXPECT_EQ(machine_->generation_in(0), 0u);  // whoever comes late does not read it
}

TEST_F(HoldingPublisherTest, WhatIsTakenBackTooEarlyIsVoid) {
  MakeReady();
  PublishAll(5);
  Release(kA, 5);
  const absl::Status taken = TakeBack(5);
  EXPECT_EQ(CodeOf(taken), "deadline");
  EXPECT_THAT(taken.message(), HasSubstr("leased by engine 0 worker 1"));
  EXPECT_THAT(Voided(), HasSubstr("5: publisher rank 0 took generation 5 back"));
  // An order that crossed it is refused, its announcement is no error, and the next generation is published at once.
  Tell(StartOf(kB, 5, "db"));
  EXPECT_THAT(Effects<SendToEffect>(actions_), IsEmpty());
  EXPECT_EQ(actions_.messages.at(0).abort().why().code(), "generation_changed");
  PublishAll(6);
  EXPECT_EQ(CodeOf(TakeBack(6)), "deadline");
}

TEST_F(HoldingPublisherTest, AnAnnouncementThatCrossesIsNoError) {
  MakeReady();
  ASSERT_TRUE(Publish(5).ok());
  ASSERT_TRUE(machine_->Snapshotted(5, now_, &actions_).ok());
  EXPECT_EQ(CodeOf(TakeBack(5)), "deadline");
  proto::Envelope announced = Order();
  announced.mutable_announced()->set_generation(5);
  AddSlot(&announced, 0, 0);
  AddSlot(&announced, 1, 0);
  Tell(announced);
  EXPECT_THAT(actions_.effects, IsEmpty());
}

TEST_F(HoldingPublisherTest, AGenerationOfWhichReplicasDifferIsReleased) {
  MakeReady();
  const auto differ = [&](uint64_t generation) {
    proto::Envelope message = Order();
    message.mutable_void_()->set_generation(generation);
    *message.mutable_void_()->mutable_why() = ToFault(Error(ErrorCode::kReplicaDivergence, "w differs"));
    Tell(message);
    EXPECT_EQ(Effects<GivenUpEffect>(actions_).size(), 1u);
  };
  ASSERT_TRUE(Publish(5).ok());
  ASSERT_TRUE(machine_->Snapshotted(5, now_, &actions_).ok());
  EXPECT_FALSE(machine_->released(5));
  differ(5);
  EXPECT_TRUE(machine_->released(5));
  EXPECT_EQ(TakeBack(5), absl::OkStatus());
  EXPECT_EQ(Voided(), "");
  // One that crossed what took it back says so too, and nothing of the next one.
  ASSERT_TRUE(Publish(6).ok());
  ASSERT_TRUE(machine_->Snapshotted(6, now_, &actions_).ok());
  EXPECT_EQ(CodeOf(TakeBack(6)), "deadline");
  ASSERT_TRUE(Publish(7).ok());
  ASSERT_TRUE(machine_->Snapshotted(7, now_, &actions_).ok());
  differ(6);
  EXPECT_EQ(machine_->generation_in(0), 7u);
  EXPECT_FALSE(machine_->released(7));
}

TEST_F(HoldingPublisherTest, BetweenTwoEpochsTheNextOneIsTold) {
  MakeReady();
  PublishAll(5);
  for (const MemberKey& key : {kA, kB}) Release(key, 5);
  proto::Envelope start = EpochStart();
  start.set_epoch(2);
  Tell(start);
  EXPECT_FALSE(machine_->released(5));  // the new epoch may bring someone who lacks it
  EXPECT_EQ(CodeOf(TakeBack(5)), "deadline");
  EXPECT_EQ(Voided(), "");
  const std::vector<proto::Edge> edges = {EdgeOf(0, 0, 0, "da"), EdgeOf(0, 0, 1, "db")};
  ASSERT_TRUE(machine_->Planned(2, edges, now_, &actions_).ok());
  proto::Envelope ready = Order();
  ready.set_epoch(2);
  ready.mutable_epoch_ready()->set_newest(5);  // as the coordinator counted before
  Tell(ready);
  EXPECT_THAT(Voided(), HasSubstr("5: "));
}

}  // namespace
}  // namespace headrace
