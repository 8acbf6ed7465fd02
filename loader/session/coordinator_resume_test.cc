// What becomes of a generation that is under way when a worker dies, an epoch begins, or the coordinator is another
// one.
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/job_testing.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests
using CPhase = Coordinator::Phase;
using MPhase = MemberSession::Phase;
using State = ReceiverSession::State;

const MemberKey kP0 = MemberKey::Publisher(0), kP1 = MemberKey::Publisher(1);
const MemberKey kA = MemberKey::Receiver(0, 0), kB = MemberKey::Receiver(0, 1), kC = MemberKey::Receiver(1, 0);

class ResumeTest : public Job {
 protected:
  // Generation 1 is served; 2 has got as far at worker A as `stage` says: idle, streaming, voted, committing,
  // committed.
  void Bring(const std::string& stage, int64_t rejoin_ns, bool live = false) {
    hold_commits_ = false;
    Start(2, {2, 1}, rejoin_ns);
    PublishAll(1);
    for (const MemberKey& key : {kA, kB, kC}) Read(key, 1);
    PublishAll(2);
    hold_commits_ = true;
    if (stage == "idle") return;
    Begin(kA, 2, live);
    if (stage == "streaming") return;
    Vote(kA, 2);
    if (stage == "voted") return;
    Read(kB, 2);
    if (stage == "committing") return;
    Commit(kA);
  }
  void ReconnectAll() {
    for (auto& [key, node] : nodes_)
      if (node.session->phase() == MPhase::kLost) Connect(key);
  }
  // All of the engine serve `generation`, and the next one goes its way.
  void ExpectServes(uint64_t generation) {
    for (const MemberKey& key : {kA, kB}) EXPECT_EQ(Worker(key).serving(), generation) << NameOf(key);
    hold_commits_ = false;
    ExpectCommits(9);
  }
  void ExpectCommits(uint64_t generation) {
    hold_commits_ = false;
    for (const MemberKey& key : {kA, kB, kC})  // what is left of the older ones
      for (int i = 0; i < 3 && Worker(key).state() == State::kPlanned; ++i) {
        const uint64_t next = Got<AnnouncedEffect>(key).back().generation;
        Read(key, next);
      }
    PublishAll(generation);
    for (const MemberKey& key : {kA, kB, kC}) {
      ASSERT_EQ(Worker(key).state(), State::kPlanned) << NameOf(key);
      Read(key, generation);
    }
    for (const MemberKey& key : {kA, kB, kC}) EXPECT_EQ(Worker(key).serving(), generation) << NameOf(key);
  }
};

TEST_F(ResumeTest, AWorkersDeathByItsPeersStage) {
  struct Case {
    const char* stage;
    bool live;
    bool poisoned;  // worker A, whose peer dies
  };
  for (const int64_t rejoin_ns : {int64_t{0}, 20 * kSecond})
    for (const Case& c : {Case{"idle", false, false}, Case{"streaming", false, false}, Case{"streaming", true, true},
                          Case{"voted", false, false}, Case{"voted", true, true}, Case{"committing", false, false},
                          Case{"committing", true, true}, Case{"committed", false, true}}) {
      SCOPED_TRACE(std::string(c.stage) + (c.live ? " live" : "") + (rejoin_ns == 0 ? "" : " rejoin"));
      Bring(c.stage, rejoin_ns, c.live);
      Die(kB);
      EXPECT_EQ(Worker(kA).Carry().poisoned, c.poisoned);
      EXPECT_EQ(Worker(kA).serving(), c.poisoned ? std::nullopt : std::optional<uint64_t>(1));
      // The other engine and the publishers go on.
      EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
      EXPECT_EQ(coordinator_->epoch(), 2u);
      hold_commits_ = false;
      EXPECT_EQ(Got<AnnouncedEffect>(kC).back().generation, 2u);
      Read(kC, 2);
      EXPECT_EQ(Worker(kC).serving(), 2u);
      if (rejoin_ns == 0) {
        EXPECT_EQ(CodeOf(Session(kA).status()), c.poisoned ? "poisoned" : "peer_lost");
        continue;
      }
      EXPECT_EQ(CodeOf(Session(kA).suspended()), "peer_lost");
      EXPECT_THAT(Session(kA).suspended().message(), HasSubstr("engine 0 worker 1 "));
      Come(kB);
      EXPECT_EQ(coordinator_->epoch(), 3u);
      for (const MemberKey& key : {kA, kB}) Read(key, 2);
      EXPECT_EQ(Worker(kA).serving(), 2u);
      EXPECT_EQ(Worker(kB).serving(), 2u);
      PublishAll(3);
      ExpectNoRefusals();
    }
}

TEST_F(ResumeTest, AnotherCoordinatorGoesOn) {
  for (const char* stage : {"idle", "streaming", "voted", "committing", "committed"}) {
    SCOPED_TRACE(stage);
    Bring(stage, 20 * kSecond);
    Forget();
    ReplaceCoordinator();
    for (const MemberKey& key : {kP0, kA, kB}) EXPECT_THAT(Got<ReconnectEffect>(key), SizeIs(1));
    ReconnectAll();
    ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
    EXPECT_EQ(coordinator_->epoch(), 2u);  // above what the members were in
    EXPECT_EQ(coordinator_->last_announced(), 2u);
    const std::string at = stage;
    if (at == "streaming") Vote(kA, 2);
    if (at == "idle") Read(kA, 2);
    if (at == "idle" || at == "streaming" || at == "voted") Read(kB, 2);
    if (at != "committed") Commit(kA);
    Commit(kB);
    EXPECT_EQ(coordinator_->engine_committed(0), 2u);
    ExpectServes(2);
    ExpectNoRefusals();
  }
}

// Peers would wait for ever for what it should pass on.
TEST_F(ResumeTest, AWorkerThatVotedTakesNoPartInTheNextEpochsTransfer) {
  for (const char* stage : {"streaming", "voted"}) {
    SCOPED_TRACE(stage);
    Bring(stage, 20 * kSecond);
    Begin(kB, 2);
    needed_ = {0};
    Die(kP1);
    ASSERT_EQ(coordinator_->epoch(), 2u);
    const std::vector<MemberKey> absent = std::string(stage) == "voted" ? std::vector{kA} : std::vector<MemberKey>();
    for (const MemberKey& key : {kP0, kB}) EXPECT_EQ(Got<AnnouncedEffect>(key).back().absent, absent) << NameOf(key);
    if (absent.empty()) Vote(kA, 2);
    Vote(kB, 2);
    for (const MemberKey& key : {kA, kB}) Commit(key);
    EXPECT_EQ(coordinator_->engine_committed(0), 2u);
    ExpectNoRefusals();
  }
}

TEST_F(ResumeTest, AnotherCoordinatorFindsAllVotesAndDecides) {
  Bring("voted", 20 * kSecond);
  nodes_.at(kB).mute = true;  // its vote is lost with the coordinator
  Read(kB, 2);
  nodes_.at(kB).mute = false;
  ReplaceCoordinator();
  ReconnectAll();
  EXPECT_THAT(Got<CommitEffect>(kA), SizeIs(2));  // of 1 and of 2
  Commit(kA);
  Commit(kB);
  ExpectServes(2);
  ExpectNoRefusals();
}

TEST_F(ResumeTest, OneThatHeardTheDecisionIsEnough) {
  Bring("voted", 20 * kSecond);
  nodes_.at(kB).deaf = true;
  Read(kB, 2);
  EXPECT_EQ(Worker(kA).state(), State::kCommitting);
  EXPECT_EQ(Worker(kB).state(), State::kVoted);
  nodes_.at(kB).deaf = false;
  ReplaceCoordinator();
  ReconnectAll();
  EXPECT_EQ(Worker(kB).state(), State::kCommitting);
  Commit(kA);
  Commit(kB);
  ExpectServes(2);
  ExpectNoRefusals();
}

TEST_F(ResumeTest, OneThatComesBackWithoutADecidedGenerationPoisonsWhoWroteIt) {
  for (const bool committed : {false, true}) {
    SCOPED_TRACE(committed);
    Bring(committed ? "committed" : "committing", 20 * kSecond);
    nodes_.erase(kB);
    ReplaceCoordinator();
    Come(kB);
    ReconnectAll();
    EXPECT_EQ(Worker(kA).serving(), committed ? std::nullopt : std::optional<uint64_t>(1));
    EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
    // Generation 2 is still there: both may take it, or leave it, and then the next one.
    ExpectCommits(3);
  }
}

TEST_F(ResumeTest, TheLastCommitIsNotLostWithTheCoordinator) {
  for (const bool heard_by_one : {false, true}) {
    SCOPED_TRACE(heard_by_one);
    Bring("committed", 20 * kSecond);
    if (heard_by_one)
      nodes_.at(kA).deaf = true;
    else
      nodes_.at(kB).mute = true;
    Commit(kB);
    EXPECT_EQ(Worker(kA).state(), State::kCommitted);
    EXPECT_EQ(Worker(kB).serving(), heard_by_one ? std::optional<uint64_t>(2) : std::nullopt);
    nodes_.at(kA).deaf = nodes_.at(kB).mute = false;
    ReplaceCoordinator();
    ReconnectAll();
    EXPECT_EQ(coordinator_->engine_committed(0), 2u);
    ExpectServes(2);
    ExpectNoRefusals();
  }
}

// What is said while an epoch begins: before it is heard of, before Planned, and between that and EpochReady.
TEST_F(ResumeTest, WhatCrossesAnEpochIsNeitherLostNorDoubled) {
  for (const std::string what : {"vote", "no", "committed", "published"})
    for (const int when : {0, 1, 2}) {
      SCOPED_TRACE(what + " " + std::to_string(when));
      Bring(what == "committed" ? "committing" : what == "published" ? "idle" : "streaming", 20 * kSecond);
      const bool published = what == "published";
      const auto say = [&] {
        if (what == "vote") Vote(kA, 2);
        if (what == "no") Vote(kA, 2, Error(ErrorCode::kVerificationFailed, "tile 3"));
        if (what == "committed") Commit(kA);
        if (published) Publish(0, 3);
      };
      if (published) {
        hold_commits_ = false;
        for (const MemberKey& key : {kA, kB, kC}) Read(key, 2);
      }
      Node& self = nodes_.at(published ? kP0 : kA);
      Node& other = nodes_.at(kC);
      // The next epoch waits a while for commits.
      const bool committing = what == "committed";
      if (committing) {
        Cut(kC);
        Pass(11 * kSecond / 2);
      }
      const auto begin = [&] {
        if (committing)
          Pass(kSecond / 2);
        else
          Cut(kC);
        EXPECT_EQ(coordinator_->epoch(), 2u);
      };
      if (when == 0) {
        // Said before the new epoch's start came.
        self.deaf = true;
        begin();
        say();
        self.deaf = false;
      } else if (when == 1) {
        // On its way when the epoch began.
        self.mute = true;
        say();
        begin();
        self.mute = false;
      } else {
        // Between Planned and EpochReady.
        nodes_.at(kP1).mute = true;
        begin();
        EXPECT_EQ(self.session->phase(), MPhase::kPlanned);
        say();
        nodes_.at(kP1).mute = false;
      }
      Pump();
      EXPECT_EQ(other.session->phase(), MPhase::kLost);
      EXPECT_EQ(self.session->phase(), MPhase::kReady);
      if (what == "vote") Read(kB, 2);
      if (what == "no") {
        // Given up for all, or a new chance for all.
        if (Worker(kA).state() == State::kPlanned) {
          Read(kA, 2);
          Read(kB, 2);
        } else {
          EXPECT_EQ(Worker(kB).state(), State::kServing);
        }
        EXPECT_EQ(Worker(kA).state(), Worker(kB).state());
        continue;
      }
      if (what == "vote") Commit(kA);
      if (!published) {
        Commit(kB);
        EXPECT_EQ(coordinator_->engine_committed(0), 2u);
        EXPECT_EQ(Worker(kA).serving(), 2u);
        EXPECT_EQ(Worker(kB).serving(), 2u);
      } else {
        Publish(1, 3);
        EXPECT_EQ(coordinator_->last_announced(), 3u);
      }
      ExpectNoRefusals();
    }
}

// A fresh peer catches up on what the other one serves, while the next generation comes.
TEST_F(ResumeTest, AWorkerGoesOnWhenItsPeerHasCaughtUp) {
  Bring("idle", 20 * kSecond);
  hold_commits_ = false;
  for (const MemberKey& key : {kA, kB, kC}) Read(key, 2);
  Die(kB);
  Come(kB);
  PublishAll(3);
  Forget();
  EXPECT_TRUE(Worker(kA).between_epochs());
  Read(kB, 2);
  EXPECT_FALSE(Worker(kA).between_epochs());
  Read(kA, 3);
  Read(kB, 3);
  EXPECT_EQ(Worker(kA).serving(), 3u);
  EXPECT_EQ(Worker(kB).serving(), 3u);
  ExpectNoRefusals();
}

}  // namespace
}  // namespace headrace
