#include "loader/session/receiver_session.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/session_testing.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests
using State = ReceiverSession::State;

const MemberKey kSelf = MemberKey::Receiver(0, 0);

// Worker 0 of engine 0, beside worker 1 and another engine; two publishers.
class ReceiverSessionTest : public ::testing::Test {
 protected:
  ReceiverSessionTest() { Restart({}); }
  void Restart(const ReceiverState& initial) {
    MemberOptions options;
    options.job = "job";
    options.self = kSelf;
    options.layout = LayoutOf(2);
    options.coordinator_address = "c:1";
    machine_.emplace(options, initial);
    actions_ = {};
    machine_->OnConnected(now_, &actions_);
    proto::Envelope welcome = Order(), start = Order(), ready = Order();
    welcome.mutable_welcome();
    Tell(welcome);
    for (const MemberKey& key : {MemberKey::Publisher(0), MemberKey::Publisher(1), kSelf, MemberKey::Receiver(0, 1),
                                 MemberKey::Receiver(1, 0)})
      *start.mutable_epoch_start()->add_members()->mutable_id() = key.ToProto();
    Tell(start);
    EXPECT_TRUE(machine_->Planned(1, Edges{EdgeOf(0, 0, 0, "d0")}, now_, &actions_).ok());
    ready.mutable_epoch_ready();
    Tell(ready);
  }
  proto::Envelope Order(MemberKey from = MemberKey::Coordinator()) const { return From(from, kSelf); }
  MemberActions& Tell(const proto::Envelope& message) {
    actions_ = {};
    machine_->OnMessage(message, now_, &actions_);
    return actions_;
  }
  MemberActions& Announce(uint64_t generation) {
    proto::Envelope message = Order();
    message.mutable_announced()->set_generation(generation);
    AddSlot(&message, 0, 1);
    AddSlot(&message, 1, 0);
    return Tell(message);
  }
  proto::Envelope DecisionOf(uint64_t generation, bool commit, int engine = 0) const {
    proto::Envelope message = Order();
    message.mutable_decision()->set_engine(engine);
    message.mutable_decision()->set_generation(generation);
    message.mutable_decision()->set_commit(commit);
    if (!commit) message.mutable_decision()->mutable_why_not()->set_code("verification_failed");
    return message;
  }
  proto::Envelope EngineCommittedOf(uint64_t generation, int engine = 0) const {
    proto::Envelope message = Order();
    message.mutable_engine_committed()->set_engine(engine);
    message.mutable_engine_committed()->set_generation(generation);
    return message;
  }
  proto::Envelope FailedOf(const std::string& code) const {
    proto::Envelope message = Order();
    message.mutable_failed()->mutable_why()->set_code(code);
    message.mutable_failed()->mutable_why()->set_message("publisher rank 1 died");
    return message;
  }
  void Vote(uint64_t generation, const absl::Status& verdict = absl::OkStatus()) {
    actions_ = {};
    ASSERT_TRUE(machine_->Vote(generation, verdict, now_, &actions_).ok());
    ASSERT_EQ(actions_.messages.size(), 2u);
    EXPECT_EQ(actions_.messages[0].vote().has_why_not(), !verdict.ok());
    EXPECT_EQ(actions_.messages[1].release().generation(), generation);  // voting ends reading
  }
  void Commit(uint64_t generation) {
    Announce(generation);
    ASSERT_TRUE(machine_->Begin(generation, false).ok());
    Vote(generation);
    ASSERT_EQ(Effects<CommitEffect>(Tell(DecisionOf(generation, true))).size(), 1u);
    ASSERT_TRUE(machine_->BeginCommit(generation).ok());
    ASSERT_TRUE(machine_->Committed(generation, now_, &actions_).ok());
    ASSERT_EQ(Effects<EngineCommittedEffect>(Tell(EngineCommittedOf(generation))).size(), 1u);
  }
  void Lose() {
    actions_ = {};
    machine_->OnDisconnected(Error(ErrorCode::kPeerLost, "reset"), now_, &actions_);
  }
  absl::Status Failed() const {
    const auto failed = Effects<FailEffect>(actions_);
    return failed.empty() ? absl::OkStatus() : failed[0].status;
  }
  std::string Refused() const {
    const auto refused = Effects<RefusedEffect>(actions_);
    if (refused.empty()) return "";
    return std::string(CodeOf(refused[0].status)) + ": " + std::string(refused[0].status.message());
  }

  int64_t now_ = 5 * kSecond;
  MemberActions actions_;
  std::optional<ReceiverSession> machine_;
};

TEST_F(ReceiverSessionTest, GoesRound) {
  EXPECT_EQ(machine_->state(), State::kServing);
  EXPECT_EQ(machine_->serving(), 0u);
  const auto announced = Effects<AnnouncedEffect>(Announce(3));
  EXPECT_THAT(announced.at(0).slots, ElementsAre(Pair(0, 1), Pair(1, 0)));
  EXPECT_EQ(machine_->state(), State::kPlanned);
  ASSERT_TRUE(machine_->Begin(3, false).ok());
  EXPECT_EQ(machine_->state(), State::kStreaming);
  actions_ = {};
  ASSERT_TRUE(machine_->RequestStart(0, {}, &actions_).ok());
  EXPECT_EQ(actions_.messages.at(0).start().digest(), "d0");
  EXPECT_EQ(MemberKey::From(actions_.messages[0].to()), MemberKey::Publisher(0));
  Vote(3);
  EXPECT_EQ(machine_->state(), State::kVoted);
  EXPECT_EQ(machine_->serving(), 0u);
  Tell(DecisionOf(3, true));
  EXPECT_EQ(machine_->state(), State::kCommitting);
  EXPECT_EQ(machine_->serving(), 0u);
  ASSERT_TRUE(machine_->BeginCommit(3).ok());
  EXPECT_EQ(machine_->serving(), std::nullopt);
  actions_ = {};
  ASSERT_TRUE(machine_->Committed(3, now_, &actions_).ok());
  EXPECT_EQ(actions_.messages.at(0).committed().generation(), 3u);
  EXPECT_EQ(machine_->state(), State::kCommitted);
  EXPECT_EQ(machine_->serving(), std::nullopt);  // the others may not have
  Tell(EngineCommittedOf(3, 1));
  EXPECT_EQ(machine_->state(), State::kCommitted);
  Announce(4);
  Tell(EngineCommittedOf(3));
  EXPECT_EQ(machine_->serving(), 3u);
  EXPECT_EQ(machine_->state(), State::kPlanned);  // for 4
}

TEST_F(ReceiverSessionTest, AbortKeepsTheOldGenerationUnlessLiveBytesWereTouched) {
  Commit(1);
  for (const bool live : {false, true}) {
    const uint64_t g = live ? 4 : 2;
    // While streaming.
    Announce(g);
    ASSERT_TRUE(machine_->Begin(g, live).ok());
    EXPECT_EQ(machine_->serving(), live ? std::nullopt : std::optional<uint64_t>(1));
    EXPECT_EQ(Effects<DiscardEffect>(Tell(DecisionOf(g, false))).size(), 1u);
    EXPECT_EQ(machine_->state(), State::kAborted);
    actions_ = {};
    ASSERT_TRUE(machine_->Stopped(g, now_, &actions_).ok());
    EXPECT_EQ(actions_.messages.at(0).release().generation(), g);
    EXPECT_EQ(machine_->state(), live ? State::kPoisoned : State::kServing);
    // After its vote, by the live coordinator.
    Announce(g + 1);
    ASSERT_TRUE(machine_->Begin(g + 1, live).ok());
    Vote(g + 1, live ? Error(ErrorCode::kVerificationFailed, "tile 3") : absl::OkStatus());
    EXPECT_EQ(Effects<DiscardEffect>(Tell(DecisionOf(g + 1, false))).size(), 1u);
    EXPECT_EQ(machine_->state(), live ? State::kPoisoned : State::kServing);
    EXPECT_EQ(machine_->serving(), live ? std::nullopt : std::optional<uint64_t>(1));
  }
  Commit(6);  // a full generation heals
  EXPECT_EQ(machine_->state(), State::kServing);
  EXPECT_EQ(machine_->serving(), 6u);
}

TEST_F(ReceiverSessionTest, WhatItHadNotBegunItReleases) {
  Announce(1);
  Announce(2);
  EXPECT_EQ(CodeOf(machine_->Begin(2, false)), "malformed");  // in order, or an engine would split
  Tell(DecisionOf(1, false));
  EXPECT_EQ(Effects<DiscardEffect>(actions_).at(0).generation, 1u);
  EXPECT_EQ(actions_.messages.at(0).release().generation(), 1u);
  EXPECT_TRUE(machine_->Begin(2, false).ok());
}

TEST_F(ReceiverSessionTest, TheEndOfTheSessionByState) {
  enum class How { kLost, kFailed, kSilent };
  struct Case {
    const char* when;
    bool live;
    How how;
    bool poisoned;
  };
  const std::vector<Case> cases = {
      {"serving", false, How::kLost, false},     {"planned", false, How::kLost, false},
      {"streaming", false, How::kLost, false},   {"streaming", true, How::kLost, true},
      {"streaming", false, How::kFailed, false}, {"streaming", true, How::kFailed, true},
      {"voted", false, How::kLost, false},       {"voted", false, How::kSilent, false},
      {"voted", true, How::kLost, true},         {"voted", true, How::kFailed, true},
      {"voted no", false, How::kLost, false},    {"voted no", true, How::kLost, true},
      {"decided", false, How::kLost, false},     {"decided", true, How::kLost, true},
      {"decided", false, How::kFailed, false},   {"decided", false, How::kSilent, false},
      {"committing", false, How::kLost, true},   {"committing", false, How::kFailed, true},
      {"committed", false, How::kLost, true},    {"committed", false, How::kFailed, true},
      {"aborted", false, How::kLost, false},     {"aborted", true, How::kLost, true},
  };
  for (const Case& c : cases) {
    const std::string when = c.when;
    SCOPED_TRACE(when + (c.live ? " live " : " shadow ") + std::to_string(static_cast<int>(c.how)));
    Restart({});
    Commit(1);
    if (when != "serving") Announce(2);
    if (when != "serving" && when != "planned") {
      ASSERT_TRUE(machine_->Begin(2, c.live).ok());
    }
    if (when == "aborted") Tell(DecisionOf(2, false));
    if (when == "voted no") Vote(2, Error(ErrorCode::kVerificationFailed, "tile 3"));
    const bool committing = when == "committing" || when == "committed", decided = when == "decided" || committing;
    if (when == "voted" || decided) Vote(2);
    if (decided) Tell(DecisionOf(2, true));
    if (committing) {
      ASSERT_TRUE(machine_->BeginCommit(2).ok());
    }
    if (when == "committed") {
      ASSERT_TRUE(machine_->Committed(2, now_, &actions_).ok());
    }
    EXPECT_EQ(machine_->Carry().poisoned, c.poisoned);
    EXPECT_EQ(machine_->serving(), c.poisoned ? std::nullopt : std::optional<uint64_t>(1));
    if (c.how == How::kFailed) Tell(FailedOf("peer_lost"));
    if (c.how == How::kLost) Lose();
    if (c.how == How::kSilent) {
      now_ += 6 * kSecond;
      actions_ = {};
      machine_->OnTick(now_, &actions_);
    }
    EXPECT_EQ(CodeOf(Failed()), c.poisoned ? "poisoned" : "peer_lost");
    EXPECT_EQ(machine_->state(), c.poisoned ? State::kPoisoned : State::kServing);
    EXPECT_EQ(machine_->serving(), c.poisoned ? std::nullopt : std::optional<uint64_t>(1));
    EXPECT_EQ(machine_->Carry().poisoned, c.poisoned);
    EXPECT_EQ(machine_->Carry().committed_generation, 1u);
    if (c.how == How::kFailed) {
      EXPECT_THAT(Failed().message(), HasSubstr("publisher rank 1 died"));
    }
    EXPECT_FALSE(machine_->Begin(3, false).ok());
  }
}

TEST_F(ReceiverSessionTest, NoDecisionByTheDeadlineKeepsTheOldGeneration) {
  Announce(1);
  ASSERT_TRUE(machine_->Begin(1, false).ok());
  Vote(1);
  const int64_t voted = now_;
  proto::Envelope heartbeat = Order();
  heartbeat.mutable_heartbeat();
  while (machine_->phase() != MemberSession::Phase::kEnded) {
    Tell(heartbeat);
    now_ = machine_->NextDeadline();
    actions_ = {};
    machine_->OnTick(now_, &actions_);
  }
  EXPECT_EQ(now_, voted + 36 * kSecond);
  EXPECT_EQ(CodeOf(Failed()), "deadline");
  EXPECT_EQ(machine_->serving(), std::optional<uint64_t>(0));
  EXPECT_THAT(Failed().message(), HasSubstr("got no decision on generation 1 by the deadline"));
  EXPECT_EQ(actions_.messages.back().failed().why().code(), "deadline");
}

TEST_F(ReceiverSessionTest, AWorkerThatVotedCannotLeave) {
  Announce(1);
  ASSERT_TRUE(machine_->Begin(1, false).ok());
  Vote(1);
  actions_ = {};
  EXPECT_EQ(CodeOf(machine_->Leave(now_, &actions_)), "aborted");
  Tell(DecisionOf(1, true));
  EXPECT_EQ(CodeOf(machine_->Leave(now_, &actions_)), "aborted");
  EXPECT_THAT(actions_.messages, IsEmpty());
  ASSERT_TRUE(machine_->BeginCommit(1).ok());
  ASSERT_TRUE(machine_->Committed(1, now_, &actions_).ok());
  Tell(EngineCommittedOf(1));
  actions_ = {};
  EXPECT_TRUE(machine_->Leave(now_, &actions_).ok());
  EXPECT_TRUE(actions_.messages.at(0).has_bye());
  EXPECT_EQ(machine_->serving(), 1u);
}

TEST_F(ReceiverSessionTest, GenerationsGrowAcrossSessionsOfOneIncarnation) {
  Restart({.committed_generation = 7, .committed_incarnation = "run-1"});
  Announce(6);
  // The coordinator gives it up as well; nobody waits for a vote.
  EXPECT_THAT(Effects<AnnouncedEffect>(actions_), IsEmpty());
  ASSERT_EQ(actions_.messages.size(), 1u);
  EXPECT_EQ(actions_.messages[0].release().generation(), 6u);
  EXPECT_THAT(Tell(DecisionOf(6, false)).effects, IsEmpty());
  Announce(6);
  EXPECT_THAT(Refused(), HasSubstr("generation 6 was announced after generation 6"));
  Announce(8);
  EXPECT_EQ(machine_->state(), State::kPlanned);
  // Poisoned, it needs what it committed once, but nothing older.
  Restart({.committed_generation = 7, .committed_incarnation = "run-1", .poisoned = true});
  Announce(6);
  EXPECT_THAT(Refused(), HasSubstr("generation_not_growing"));
  EXPECT_THAT(Refused(), HasSubstr("generation 6 "));
  EXPECT_THAT(Refused(), HasSubstr("generation 7 "));
  EXPECT_EQ(actions_.messages.at(0).release().generation(), 6u);
  Announce(7);
  EXPECT_EQ(machine_->state(), State::kPlanned);
  // The trainer started again: from 1.
  Restart({.committed_generation = 7, .committed_incarnation = "run-0"});
  Commit(1);
  EXPECT_EQ(machine_->serving(), 1u);
}

TEST_F(ReceiverSessionTest, WaitsForAGenerationOnlyAsLongAsItIsTold) {
  EXPECT_TRUE(machine_->ExpectGeneration(now_ + kSecond / 10, now_, &actions_).ok());
  EXPECT_EQ(machine_->NextDeadline(), now_ + kSecond / 10);
  now_ += kSecond / 10;
  actions_ = {};
  machine_->OnTick(now_, &actions_);
  const auto ended = Effects<WaitEndedEffect>(actions_);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(CodeOf(ended[0].status), "deadline");
  EXPECT_THAT(ended[0].status.message(), HasSubstr("no generation above 0"));
  // A generation in time ends the wait.
  EXPECT_TRUE(machine_->ExpectGeneration(now_ + kSecond / 10, now_, &actions_).ok());
  Announce(1);
  now_ += kSecond / 10;
  actions_ = {};
  machine_->OnTick(now_, &actions_);
  EXPECT_THAT(Effects<WaitEndedEffect>(actions_), IsEmpty());
}

TEST_F(ReceiverSessionTest, ALeaverEndsTheWaitByName) {
  proto::Envelope left = Order();
  *left.mutable_left()->mutable_member() = MemberKey::Receiver(1, 0).ToProto();
  EXPECT_TRUE(machine_->ExpectGeneration(kNoDeadline, now_, &actions_).ok());
  EXPECT_EQ(Tell(left).effects.size(), 1u);  // another engine's worker is none of its business
  *left.mutable_left()->mutable_member() = MemberKey::Publisher(1).ToProto();
  EXPECT_EQ(Tell(left).effects.size(), 1u);  // the other publisher may have all it had
  *left.mutable_left()->mutable_member() = MemberKey::Publisher(0).ToProto();
  const auto ended = Effects<WaitEndedEffect>(Tell(left));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(CodeOf(ended[0].status), "aborted");
  EXPECT_THAT(ended[0].status.message(), HasSubstr("publisher rank 0 left"));
  actions_ = {};
  EXPECT_TRUE(machine_->ExpectGeneration(kNoDeadline, now_, &actions_).ok());
  EXPECT_EQ(Effects<WaitEndedEffect>(actions_).size(), 1u);
  *left.mutable_left()->mutable_member() = MemberKey::Receiver(0, 1).ToProto();
  Tell(left);
  EXPECT_EQ(CodeOf(machine_->Begin(1, false)), "aborted");
}

TEST_F(ReceiverSessionTest, DropsWhatDoesNotBelong) {
  Announce(1);
  ASSERT_TRUE(machine_->Begin(1, false).ok());
  proto::Envelope abort = Order(MemberKey::Publisher(0)), published = Order();
  abort.mutable_abort()->set_generation(2);
  published.mutable_published();
  proto::Envelope stale = DecisionOf(1, false);
  stale.set_epoch(2);
  const std::vector<std::pair<proto::Envelope, std::string>> cases = {
      {DecisionOf(1, true), "has no vote that stands"},
      {DecisionOf(2, false), "not undecided here"},
      {DecisionOf(1, false, 1), "a decision of engine 1"},
      {EngineCommittedOf(1), "without the commit of engine 0 worker 0"},
      {abort, "answers no Start"},
      {published, "message published is not for a receiver"},
      {stale, "stale_epoch"},
  };
  for (const auto& [message, expected] : cases) {
    Tell(message);
    EXPECT_THAT(Refused(), HasSubstr(expected));
    EXPECT_EQ(actions_.effects.size(), 1u);
    EXPECT_THAT(actions_.messages, IsEmpty());
  }
  EXPECT_EQ(machine_->state(), State::kStreaming);
  abort.mutable_abort()->set_generation(1);
  abort.mutable_abort()->mutable_why()->set_code("plan_mismatch");
  const auto refused = Effects<StartRefusedEffect>(Tell(abort));
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(CodeOf(refused[0].status), "plan_mismatch");
  // A no does not make a yes.
  Vote(1, Error(ErrorCode::kPlanMismatch, "m"));
  Tell(DecisionOf(1, true));
  EXPECT_THAT(Refused(), HasSubstr("has no vote that stands"));
}

TEST_F(ReceiverSessionTest, CallsOutOfTurnAreErrors) {
  EXPECT_EQ(CodeOf(machine_->Begin(1, false)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Vote(1, absl::OkStatus(), now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Committed(1, now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Stopped(1, now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->RequestStart(0, {}, &actions_)), "malformed");
  Announce(1);
  ASSERT_TRUE(machine_->Begin(1, false).ok());
  EXPECT_EQ(CodeOf(machine_->Begin(1, false)), "malformed");
  EXPECT_EQ(CodeOf(machine_->Vote(2, absl::OkStatus(), now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->RequestStart(1, {}, &actions_)), "malformed");  // no edge
}

TEST_F(ReceiverSessionTest, AFailedCommitIsPoison) {
  Announce(1);
  ASSERT_TRUE(machine_->Begin(1, false).ok());
  Vote(1);
  Tell(DecisionOf(1, true));
  ASSERT_TRUE(machine_->BeginCommit(1).ok());
  actions_ = {};
  machine_->Poison(Error(ErrorCode::kOutOfMemory, "device copy"), now_, &actions_);
  EXPECT_EQ(actions_.messages.at(0).failed().why().code(), "out_of_memory");
  EXPECT_EQ(CodeOf(Failed()), "poisoned");
  EXPECT_EQ(machine_->serving(), std::nullopt);
}

TEST_F(ReceiverSessionTest, PoisonAfterTheEndOfTheSession) {
  Announce(1);
  Lose();
  EXPECT_EQ(machine_->serving(), std::optional<uint64_t>(0));
  actions_ = {};
  machine_->Poison(Error(ErrorCode::kInternal, "the loader threw"), now_, &actions_);
  EXPECT_TRUE(actions_.messages.empty());
  EXPECT_EQ(machine_->serving(), std::nullopt);
  EXPECT_TRUE(machine_->Carry().poisoned);
}

TEST_F(ReceiverSessionTest, CommittedComesAfterBeginCommit) {
  Announce(1);
  EXPECT_EQ(CodeOf(machine_->BeginCommit(1)), "malformed");
  ASSERT_TRUE(machine_->Begin(1, false).ok());
  Vote(1);
  EXPECT_EQ(CodeOf(machine_->BeginCommit(1)), "malformed");
  Tell(DecisionOf(1, true));
  actions_ = {};
  EXPECT_EQ(CodeOf(machine_->Committed(1, now_, &actions_)), "malformed");
  EXPECT_EQ(CodeOf(machine_->BeginCommit(2)), "malformed");
  ASSERT_TRUE(machine_->BeginCommit(1).ok());
  EXPECT_TRUE(machine_->Committed(1, now_, &actions_).ok());
}

TEST_F(ReceiverSessionTest, HearsOfAGenerationOfWhichReplicasDiffer) {
  Commit(1);
  const auto void_of = [&](uint64_t generation) {
    proto::Envelope message = Order();
    message.mutable_void_()->set_generation(generation);
    *message.mutable_void_()->mutable_why() =
        ToFault(About(Error(ErrorCode::kReplicaDivergence, "w differs"), {.tensor = "w"}));
    return message;
  };
  ASSERT_TRUE(machine_->ExpectGeneration(now_ + kSecond, now_, &actions_).ok());
  Tell(void_of(2));
  const auto given_up = Effects<GivenUpEffect>(actions_);
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_EQ(given_up[0].generation, 2u);
  EXPECT_EQ(CodeOf(given_up[0].status), "replica_divergence");
  EXPECT_EQ(SubjectOf(given_up[0].status).tensor, "w");
  EXPECT_FALSE(machine_->expecting());
  EXPECT_THAT(actions_.messages, IsEmpty());
  EXPECT_EQ(machine_->serving(), 1u);
  // It cannot be begun; the next one can.
  EXPECT_EQ(CodeOf(machine_->Begin(2, true)), "malformed");
  EXPECT_EQ(machine_->serving(), 1u);
  Commit(3);
  // What is served, or is being read since an earlier epoch, ends otherwise.
  Tell(void_of(3));
  EXPECT_THAT(actions_.effects, IsEmpty());
  Announce(4);
  ASSERT_TRUE(machine_->Begin(4, false).ok());
  Tell(void_of(4));
  EXPECT_THAT(actions_.effects, IsEmpty());
  proto::Envelope bare = Order();
  bare.mutable_void_()->set_generation(9);
  Tell(bare);
  EXPECT_THAT(Refused(), HasSubstr("malformed"));
}

}  // namespace
}  // namespace headrace
