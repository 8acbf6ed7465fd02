// A member over the change of epochs: by hand-made messages, one machine at a time.
#include "loader/session/member_session.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/publisher_session.h"
#include "loader/session/receiver_session.h"
#include "loader/session/session_testing.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests
using Phase = MemberSession::Phase;
using State = ReceiverSession::State;

const MemberKey kPublisher = MemberKey::Publisher(0), kWorker = MemberKey::Receiver(0, 0);

class MemberSessionTest : public ::testing::Test {
 protected:
  MemberSessionTest() { Restart(kWorker, 20 * kSecond); }
  void Restart(const MemberKey& self, int64_t rejoin_ns) {
    MemberOptions options;
    options.job = "job";
    options.self = self;
    options.layout = LayoutOf(2);
    options.coordinator_address = "c:1";
    rejoin_ns_ = rejoin_ns;
    publisher_ = nullptr;
    worker_ = nullptr;
    if (self == kPublisher) {
      auto session = std::make_unique<PublisherSession>(options);
      publisher_ = session.get();
      machine_ = std::move(session);
    } else {
      auto session = std::make_unique<ReceiverSession>(options, ReceiverState());
      worker_ = session.get();
      machine_ = std::move(session);
    }
    self_ = self;
  }
  proto::Envelope Order(uint64_t epoch) const { return From(MemberKey::Coordinator(), self_, epoch); }
  MemberActions& Tell(const proto::Envelope& message) {
    actions_ = {};
    machine_->OnMessage(message, now_, &actions_);
    return actions_;
  }
  MemberActions& Connect() {
    actions_ = {};
    machine_->OnConnected(now_, &actions_);
    return actions_;
  }
  MemberActions& Cut() {
    actions_ = {};
    machine_->OnDisconnected(Error(ErrorCode::kPeerLost, "reset"), now_, &actions_);
    return actions_;
  }
  MemberActions& Tick(int64_t by_ns) {
    now_ += by_ns;
    actions_ = {};
    machine_->OnTick(now_, &actions_);
    return actions_;
  }
  void Welcome(uint64_t epoch) {
    proto::Envelope message = Order(epoch);
    message.mutable_welcome()->set_rejoin_ns(rejoin_ns_);
    Tell(message);
    ASSERT_EQ(machine_->phase(), Phase::kWaiting);
    EXPECT_TRUE(actions_.messages.at(0).has_layout());
  }
  void StartEpoch(uint64_t epoch) {
    proto::Envelope message = Order(epoch);
    for (const MemberKey& key : {kPublisher, kWorker, MemberKey::Receiver(0, 1)})
      *message.mutable_epoch_start()->add_members()->mutable_id() = key.ToProto();
    Tell(message);
  }
  proto::Planned Plan(uint64_t epoch) {
    actions_ = {};
    const absl::Status status = machine_->Planned(epoch, Edges{EdgeOf(0, 0, 0)}, now_, &actions_);
    EXPECT_TRUE(status.ok()) << status;
    return status.ok() ? actions_.messages.at(0).planned() : proto::Planned();
  }
  MemberActions& Ready(uint64_t epoch, uint64_t newest = 0) {
    proto::Envelope message = Order(epoch);
    message.mutable_epoch_ready()->set_newest(newest);
    return Tell(message);
  }
  proto::Planned Enter(uint64_t epoch, uint64_t newest = 0) {
    StartEpoch(epoch);
    const proto::Planned planned = Plan(epoch);
    Ready(epoch, newest);
    return planned;
  }
  void Join() {
    Connect();
    Welcome(1);
    Enter(1);
    ASSERT_EQ(machine_->phase(), Phase::kReady);
  }
  MemberActions& Announce(uint64_t epoch, uint64_t generation) {
    proto::Envelope message = Order(epoch);
    message.mutable_announced()->set_generation(generation);
    AddSlot(&message, 0, 0);
    return Tell(message);
  }
  MemberActions& Decide(uint64_t epoch, uint64_t generation, bool commit) {
    proto::Envelope message = Order(epoch);
    message.mutable_decision()->set_generation(generation);
    message.mutable_decision()->set_commit(commit);
    if (!commit) message.mutable_decision()->mutable_why_not()->set_code("aborted");
    return Tell(message);
  }
  MemberActions& Suspend(uint64_t epoch, const std::string& code, bool engine_broken = false) {
    proto::Envelope message = Order(epoch);
    message.mutable_suspended()->mutable_why()->set_code(code);
    message.mutable_suspended()->mutable_why()->set_message("publisher rank 1 is missing");
    message.mutable_suspended()->set_engine_broken(engine_broken);
    return Tell(message);
  }
  void Vote(uint64_t generation, const absl::Status& verdict = absl::OkStatus()) {
    actions_ = {};
    EXPECT_TRUE(worker_->Vote(generation, verdict, now_, &actions_).ok());
  }

  int64_t now_ = 5 * kSecond;
  int64_t rejoin_ns_ = 0;
  MemberKey self_;
  MemberActions actions_;
  std::unique_ptr<MemberSession> machine_;
  PublisherSession* publisher_ = nullptr;
  ReceiverSession* worker_ = nullptr;
};

TEST_F(MemberSessionTest, ABrokenStreamIsMendedInTime) {
  Join();
  Cut();
  ASSERT_THAT(Effects<ReconnectEffect>(actions_), SizeIs(1));
  EXPECT_EQ(Effects<ReconnectEffect>(actions_)[0].deadline_ns, now_ + 20 * kSecond);
  EXPECT_EQ(machine_->phase(), Phase::kLost);
  EXPECT_THAT(machine_->WaitingFor(), HasSubstr("the coordinator at c:1 is lost: reset"));
  EXPECT_EQ(machine_->NextDeadline(), now_ + 20 * kSecond);
  EXPECT_THAT(Tick(5 * kSecond).messages, IsEmpty());
  EXPECT_THAT(Cut().effects, IsEmpty());
  Connect();
  EXPECT_TRUE(actions_.messages.at(0).has_hello());
  EXPECT_EQ(actions_.messages[0].incarnation(), "run-1");
  EXPECT_EQ(actions_.messages[0].epoch(), 1u);
  // A second loss before an epoch was ready again has no new time.
  Welcome(1);
  EXPECT_EQ(Effects<ReconnectEffect>(Cut()).at(0).deadline_ns, now_ + 15 * kSecond);
  Connect();
  Welcome(2);
  Enter(3);
  EXPECT_EQ(machine_->phase(), Phase::kReady);
  EXPECT_TRUE(machine_->status().ok());
}

TEST_F(MemberSessionTest, ALostCoordinatorEndsItAtTheDeadlineOrAtOnce) {
  for (const int64_t rejoin_ns : {int64_t{0}, 20 * kSecond}) {
    Restart(kWorker, rejoin_ns);
    Join();
    Cut();
    if (rejoin_ns != 0) {
      Tick(rejoin_ns - 1);
      EXPECT_EQ(machine_->phase(), Phase::kLost);
      Tick(1);
    }
    ASSERT_THAT(Effects<FailEffect>(actions_), SizeIs(1));
    EXPECT_EQ(CodeOf(machine_->status()), "peer_lost");
    EXPECT_EQ(machine_->NextDeadline(), kNoDeadline);
    EXPECT_THAT(Connect().messages, IsEmpty());
  }
}

TEST_F(MemberSessionTest, SilenceBreaksTheStreamToo) {
  Join();
  Tick(6 * kSecond);
  EXPECT_THAT(Effects<ReconnectEffect>(actions_), SizeIs(1));
}

TEST_F(MemberSessionTest, AWrongTokenOrAnotherIncarnationIsNotWaitedFor) {
  Join();
  actions_ = {};
  machine_->OnDisconnected(Error(ErrorCode::kUnauthenticated, "token"), now_, &actions_);
  EXPECT_EQ(CodeOf(machine_->status()), "unauthenticated");

  Restart(kWorker, 20 * kSecond);
  Join();
  Cut();
  Connect();
  proto::Envelope welcome = Order(1);
  welcome.set_incarnation("run-2");
  welcome.mutable_welcome();
  Tell(welcome);
  EXPECT_EQ(CodeOf(machine_->status()), "wrong_job");
}

TEST_F(MemberSessionTest, ALaterEpochMakesAPlanVoid) {
  Connect();
  Welcome(1);
  StartEpoch(1);
  StartEpoch(4);
  EXPECT_EQ(Effects<PlanEffect>(actions_).at(0).epoch, 4u);
  EXPECT_EQ(CodeOf(machine_->Planned(1, Edges{}, now_, &actions_)), "stale_epoch");
  Plan(4);
  EXPECT_EQ(CodeOf(machine_->Planned(4, Edges{}, now_, &actions_)), "malformed");
  EXPECT_THAT(Effects<RefusedEffect>(Ready(1)), SizeIs(1));  // of the one before
  EXPECT_EQ(machine_->phase(), Phase::kPlanned);
  StartEpoch(3);  // no way back
  EXPECT_EQ(CodeOf(Effects<RefusedEffect>(actions_).at(0).status), "stale_epoch");
  Ready(4);
  EXPECT_EQ(machine_->phase(), Phase::kReady);
}

TEST_F(MemberSessionTest, APlanThatCannotBeMadeSaysWhyAndStillWhatTheMemberHas) {
  Join();
  Announce(1, 3);
  ASSERT_TRUE(worker_->Begin(3, false).ok());
  StartEpoch(2);
  EXPECT_TRUE(machine_->Planned(2, Error(ErrorCode::kUncovered, "w"), now_, &actions_).ok());
  const proto::Planned& planned = actions_.messages.at(0).planned();
  EXPECT_EQ(planned.why_not().code(), "uncovered");
  EXPECT_EQ(planned.run().stage(), proto::WorkerRun::READING);
  EXPECT_EQ(planned.run().running(), 3u);
}

TEST_F(MemberSessionTest, AnEpochsNumberIsNeverForgotten) {
  Join();
  Enter(7);
  Cut();
  Connect();
  Welcome(1);  // a coordinator that has only just begun, and dies before its first epoch
  Cut();
  Connect();
  EXPECT_EQ(actions_.messages.at(0).epoch(), 7u);
}

TEST_F(MemberSessionTest, AWorkerTellsItsStageToEveryEpoch) {
  Join();
  Announce(1, 3);
  EXPECT_EQ(Enter(2, 3).run().stage(), proto::WorkerRun::IDLE);
  Announce(2, 3);
  ASSERT_TRUE(worker_->Begin(3, false).ok());
  proto::Planned planned = Enter(3, 3);
  EXPECT_EQ(planned.run().stage(), proto::WorkerRun::READING);
  EXPECT_EQ(planned.run().running(), 3u);
  EXPECT_EQ(Effects<AnnouncedEffect>(Announce(3, 3)).size(), 1u);  // again: from the beginning
  Vote(3);
  EXPECT_EQ(Enter(4, 3).run().stage(), proto::WorkerRun::VOTED);
  Announce(4, 3);
  EXPECT_THAT(Effects<AnnouncedEffect>(actions_), IsEmpty());
  EXPECT_EQ(actions_.messages.at(0).release().generation(), 3u);
  Decide(4, 3, true);
  EXPECT_EQ(Enter(5, 3).run().stage(), proto::WorkerRun::COMMITTING);
  EXPECT_THAT(Effects<CommitEffect>(Decide(5, 3, true)), IsEmpty());  // repeated
  ASSERT_TRUE(worker_->BeginCommit(3).ok());
  StartEpoch(6);
  actions_ = {};
  ASSERT_TRUE(worker_->Committed(3, now_, &actions_).ok());
  EXPECT_THAT(actions_.messages, IsEmpty());  // it is in Planned
  planned = Plan(6);
  EXPECT_EQ(planned.run().stage(), proto::WorkerRun::COMMITTED);
  EXPECT_EQ(planned.run().holds(), 0u);
  EXPECT_THAT(Ready(6, 3).messages, IsEmpty());
  proto::Envelope committed = Order(6);
  committed.mutable_engine_committed()->set_generation(3);
  Tell(committed);
  EXPECT_EQ(worker_->serving(), 3u);
  EXPECT_EQ(Enter(7, 3).run().holds(), 3u);
  committed.set_epoch(7);
  EXPECT_THAT(Tell(committed).effects, IsEmpty());  // repeated
}

TEST_F(MemberSessionTest, ANoThatNobodyAnsweredIsForgotten) {
  Join();
  Announce(1, 3);
  ASSERT_TRUE(worker_->Begin(3, false).ok());
  Vote(3, Error(ErrorCode::kVerificationFailed, "tile 3"));
  StartEpoch(2);
  EXPECT_EQ(Effects<DiscardEffect>(actions_).at(0).generation, 3u);
  EXPECT_EQ(Plan(2).run().stage(), proto::WorkerRun::IDLE);
  Ready(2, 3);
  Announce(2, 3);
  EXPECT_TRUE(worker_->Begin(3, false).ok());
}

TEST_F(MemberSessionTest, SuspendedGivesUpWhatIsUndecidedAndABrokenEngineAllOfIt) {
  for (const bool broken : {false, true})
    for (const std::string stage : {"streaming", "voted", "committing"}) {
      SCOPED_TRACE(stage + (broken ? " broken" : ""));
      Restart(kWorker, 20 * kSecond);
      Join();
      Announce(1, 3);
      ASSERT_TRUE(worker_->Begin(3, false).ok());
      if (stage != "streaming") Vote(3);
      if (stage == "committing") {
        Decide(1, 3, true);
        ASSERT_TRUE(worker_->BeginCommit(3).ok());
      }
      Suspend(1, "peer_lost", broken);
      EXPECT_THAT(Effects<SuspendedEffect>(actions_), SizeIs(1));
      const bool kept = stage == "committing" && !broken;
      EXPECT_THAT(Effects<DiscardEffect>(actions_), SizeIs(kept ? 0 : 1));
      if (stage == "streaming") {
        EXPECT_EQ(worker_->state(), State::kAborted);
      } else if (stage == "voted") {
        EXPECT_EQ(worker_->serving(), 0u);
      } else {
        EXPECT_EQ(worker_->state(), kept ? State::kCommitting : State::kPoisoned);
      }
      if (kept) {
        EXPECT_TRUE(worker_->Committed(3, now_, &actions_).ok());
      }
      EXPECT_EQ(Plan((StartEpoch(2), 2)).run().stage(), kept ? proto::WorkerRun::COMMITTED : proto::WorkerRun::IDLE);
    }
}

// In an epoch of publishers that lack it: the number may be announced later, and is read under a new lease then.
TEST_F(MemberSessionTest, AReleaseNeverGoesBeyondWhatTheEpochAnnounced) {
  for (const bool voted : {false, true}) {
    SCOPED_TRACE(voted);
    Restart(kWorker, 20 * kSecond);
    Join();
    Announce(1, 5);
    ASSERT_TRUE(worker_->Begin(5, false).ok());
    StartEpoch(2);
    Plan(2);
    if (voted) Vote(5);
    std::vector<proto::Envelope> sent = Ready(2, 4).messages;
    const auto keep = [&] { sent.insert(sent.end(), actions_.messages.begin(), actions_.messages.end()); };
    Announce(2, 4);
    keep();
    Decide(2, 5, false);
    keep();
    if (!voted) {
      actions_ = {};
      ASSERT_TRUE(worker_->Stopped(5, now_, &actions_).ok());
      keep();
    }
    for (const proto::Envelope& message : sent) EXPECT_LE(message.release().generation(), 4u);
    EXPECT_THAT(Effects<AnnouncedEffect>(Announce(2, 5)), SizeIs(1));
  }
}

TEST_F(MemberSessionTest, APublisherTellsWhatItHolds) {
  Restart(kPublisher, 20 * kSecond);
  Join();
  actions_ = {};
  ASSERT_TRUE(publisher_->Publish(1, kNoDeadline, now_, &actions_).ok());
  ASSERT_TRUE(publisher_->Snapshotted(1, now_, &actions_).ok());
  ASSERT_TRUE(publisher_->Publish(2, kNoDeadline, now_, &actions_).ok());
  StartEpoch(2);
  proto::Planned planned = Plan(2);  // 2 is still being written
  ASSERT_EQ(planned.held_size(), 1);
  EXPECT_EQ(planned.held(0).generation(), 1u);
  EXPECT_EQ(planned.held(0).slot(), 0);
  EXPECT_EQ(planned.last_published(), 1u);
  actions_ = {};
  ASSERT_TRUE(publisher_->Snapshotted(2, now_, &actions_).ok());
  EXPECT_THAT(actions_.messages, IsEmpty());
  Ready(2, 1);
  ASSERT_THAT(actions_.messages, SizeIs(1));
  EXPECT_EQ(actions_.messages[0].published().generation(), 2u);
  EXPECT_EQ(actions_.messages[0].epoch(), 2u);
  EXPECT_EQ(publisher_->busy_slots(), 2);
  // The next epoch's newest is 2: nobody reads 1 any more.
  planned = Enter(3, 2);
  EXPECT_EQ(planned.held_size(), 2);
  EXPECT_EQ(Effects<SlotFreeEffect>(actions_).at(0).generation, 1u);
  EXPECT_EQ(publisher_->busy_slots(), 1);
}

TEST_F(MemberSessionTest, APublishWaitsOverAnEpochButNotForOneThatLeft) {
  for (const std::string code : {"peer_lost", "aborted"}) {
    Restart(kPublisher, 20 * kSecond);
    Join();
    StartEpoch(2);
    actions_ = {};
    ASSERT_TRUE(publisher_->Publish(1, now_ + 3 * kSecond, now_, &actions_).ok());
    EXPECT_THAT(actions_.effects, IsEmpty());
    Suspend(2, code);
    const auto failed = Effects<PublishFailedEffect>(actions_);
    if (code == "aborted") {
      ASSERT_THAT(failed, SizeIs(1));
      EXPECT_EQ(CodeOf(failed[0].status), "aborted");
      continue;
    }
    EXPECT_THAT(failed, IsEmpty());
    Tick(3 * kSecond);
    ASSERT_THAT(Effects<PublishFailedEffect>(actions_), SizeIs(1));
    EXPECT_THAT(Effects<PublishFailedEffect>(actions_)[0].status.message(), HasSubstr("publisher rank 1 is missing"));
    ASSERT_TRUE(publisher_->Publish(1, kNoDeadline, now_, &actions_).ok());
    Enter(3);
    EXPECT_EQ(Effects<WriteSlotEffect>(actions_).at(0).generation, 1u);
  }
}

}  // namespace
}  // namespace headrace
