// From one membership to the next: publishers and engines that are lost, come back or come late, with real sessions.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/job_testing.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests
using CPhase = Coordinator::Phase;
using MPhase = MemberSession::Phase;
using State = ReceiverSession::State;

const MemberKey kP0 = MemberKey::Publisher(0), kP1 = MemberKey::Publisher(1), kP2 = MemberKey::Publisher(2);
const MemberKey kA = MemberKey::Receiver(0, 0), kB = MemberKey::Receiver(0, 1), kC = MemberKey::Receiver(1, 0);

class EpochsTest : public Job {};

TEST_F(EpochsTest, WhereOthersHoldWhatAPublisherOfferedTheyGoOnWithout) {
  for (const int64_t rejoin_ns : {int64_t{0}, 20 * kSecond}) {
    Start(2, {2, 1}, rejoin_ns);
    needed_ = {0};
    PublishAll(1);
    Begin(kA, 1);
    Forget();
    Die(kP1);
    EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
    EXPECT_EQ(coordinator_->epoch(), 2u);
    // Who reads begins anew, from those that are there; who has not begun finds it again.
    const auto again = Got<AnnouncedEffect>(kA);
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_EQ(again[0].generation, 1u);
    EXPECT_THAT(again[0].slots, ::testing::ElementsAre(::testing::Pair(0, 0)));
    Vote(kA, 1);
    Read(kB, 1);
    EXPECT_EQ(Worker(kA).serving(), 1u);
    EXPECT_EQ(Worker(kB).serving(), 1u);
    Read(kC, 1);
    PublishAll(2);
    EXPECT_EQ(coordinator_->last_announced(), 2u);
    ExpectNoRefusals();
    // It comes again.
    Come(kP1);
    EXPECT_EQ(coordinator_->epoch(), 2u);  // not while somebody may vote
    for (const MemberKey& key : {kA, kB, kC}) Read(key, 2);
    EXPECT_EQ(coordinator_->epoch(), 3u);
    EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
    ExpectNoRefusals();
  }
}

TEST_F(EpochsTest, ALostPublisherIsWaitedForByName) {
  Start(2, {2}, 20 * kSecond);
  PublishAll(1);
  for (const MemberKey& key : {kA, kB}) Read(key, 1);
  Forget();
  Die(kP1);
  EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
  for (const MemberKey& key : {kP0, kA, kB}) {
    const auto suspended = Got<SuspendedEffect>(key);
    ASSERT_THAT(suspended, SizeIs(1));
    EXPECT_EQ(CodeOf(suspended[0].status), "peer_lost");
    EXPECT_THAT(suspended[0].status.message(), HasSubstr("publisher rank 1 (host a, pid 102) died"));
    EXPECT_THAT(suspended[0].status.message(), HasSubstr("w1 is not covered"));
    EXPECT_EQ(SubjectOf(suspended[0].status).tensor, "w1");
    EXPECT_EQ(Session(key).phase(), MPhase::kWaiting);
  }
  EXPECT_EQ(Worker(kA).serving(), 1u);
  Pass(19 * kSecond);
  Come(kP1);
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_EQ(coordinator_->epoch(), 3u);
  for (const MemberKey& key : {kP0, kP1, kA, kB}) {
    EXPECT_EQ(Session(key).phase(), MPhase::kReady) << NameOf(key);
    EXPECT_TRUE(Session(key).suspended().ok());
  }
  ExpectNoRefusals();
}

TEST_F(EpochsTest, APublisherThatComesBackEmptyDoesNotBlockTheOthers) {
  Start(2, {2}, 20 * kSecond);
  for (const uint64_t generation : {1, 2}) {
    PublishAll(generation);
    for (const MemberKey& key : {kA, kB}) Read(key, generation);
  }
  Die(kP1);
  Come(kP1);
  ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
  PublishAll(3);
  EXPECT_EQ(coordinator_->last_announced(), 3u);
  for (const MemberKey& key : {kA, kB})
    if (Worker(key).state() == State::kPlanned) Read(key, 3);
  EXPECT_EQ(Worker(kA).serving(), 3u);
  ExpectNoRefusals();
}

TEST_F(EpochsTest, TheJobEndsWhenALostPublisherDoesNotComeBack) {
  for (const int64_t rejoin_ns : {int64_t{0}, 20 * kSecond}) {
    Start(2, {2}, rejoin_ns);
    Die(kP1);
    if (rejoin_ns != 0) {
      Pass(rejoin_ns - kSecond);
      EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
      Pass(kSecond);
    }
    EXPECT_EQ(coordinator_->phase(), CPhase::kEnded);
    EXPECT_EQ(CodeOf(coordinator_->status()), "peer_lost");
    EXPECT_THAT(coordinator_->status().message(), HasSubstr("publisher rank 1"));
    EXPECT_THAT(coordinator_->status().message(), HasSubstr("w1 is not covered"));
    for (const MemberKey& key : {kP0, kA, kB}) EXPECT_EQ(CodeOf(Session(key).status()), "peer_lost");
  }
}

TEST_F(EpochsTest, TwoLostPublishersComeBackOneByOne) {
  for (const bool restarted : {false, true}) {
    Start(3, {1}, 20 * kSecond);
    for (const MemberKey& key : {kP1, kP2}) {
      if (restarted)
        Die(key);
      else
        Cut(key);
    }
    EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
    for (const MemberKey& key : {kP1, kP2}) {
      if (restarted)
        Come(key);
      else
        Connect(key);
      EXPECT_TRUE(Session(key).status().ok()) << Session(key).status();
    }
    EXPECT_EQ(coordinator_->phase(), CPhase::kReady) << coordinator_->status();
  }
}

TEST_F(EpochsTest, AnEngineThatComesBackWhileAPublisherIsMissingIsNotSentAway) {
  Start(2, {1, 1}, 20 * kSecond);
  nodes_.at(kP0).mute = true;  // its plan of the epoch without publisher 1 is still on its way
  nodes_.at(kC).mute = true;
  nodes_.at(kA).mute = true;
  Cut(kA);
  Cut(kP1);
  nodes_.at(kA).mute = false;
  Connect(kA);
  nodes_.at(kP0).mute = nodes_.at(kC).mute = false;
  Pump();
  EXPECT_TRUE(Session(kA).status().ok()) << Session(kA).status();
  EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
  Connect(kP1);
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_EQ(Session(kA).phase(), MPhase::kReady);
}

// Others went on without a lost publisher; one that then leaves in order is waited for by nobody.
TEST_F(EpochsTest, AnOldLossIsNoReasonToWaitForOneThatLeft) {
  for (const int64_t rejoin_ns : {int64_t{0}, 20 * kSecond}) {
    Start(3, {1}, rejoin_ns);
    needed_ = {0, 2};
    Die(kP1);
    ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
    Leave(kP2);
    const bool over = coordinator_->phase() == CPhase::kEnded || HasCode(Session(kP0).suspended(), ErrorCode::kAborted);
    if (!over) Pass(rejoin_ns + kSecond);
    EXPECT_TRUE(over || (rejoin_ns != 0 && coordinator_->phase() == CPhase::kEnded))
        << rejoin_ns << ": waits for ever: " << Session(kP0).suspended();
  }
}

TEST_F(EpochsTest, ALeaverWithoutWhomNoPlanCanBeMadeEndsAllWaitsAtOnce) {
  Start(2, {2}, 20 * kSecond);
  MemberActions actions;
  EXPECT_TRUE(Worker(kA).ExpectGeneration(kNoDeadline, now_, &actions).ok());
  hold_writes_ = true;
  Leave(kP1);
  EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
  EXPECT_EQ(CodeOf(Session(kP0).suspended()), "aborted");
  const auto ended = Got<WaitEndedEffect>(kA);
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(CodeOf(ended[0].status), "aborted");
  EXPECT_THAT(ended[0].status.message(), HasSubstr("publisher rank 1 (host a, pid 102) left"));
  actions = {};
  EXPECT_EQ(CodeOf(nodes_.at(kP0).publisher->Publish(1, kNoDeadline, now_, &actions)), "aborted");
  EXPECT_TRUE(Worker(kB).ExpectGeneration(kNoDeadline, now_, &actions).ok());
  EXPECT_THAT(Effects<WaitEndedEffect>(actions), SizeIs(1));
  Pass(300 * kSecond);  // nobody is waited for, and nothing is wrong
  EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
  EXPECT_EQ(Session(kA).phase(), MPhase::kWaiting);
}

TEST_F(EpochsTest, ALateEngineIsAnnouncedTheNewestGeneration) {
  Start(2, {1}, 0);
  for (const uint64_t generation : {1, 2}) {
    PublishAll(generation);
    Read(kA, generation);
  }
  Forget();
  Come(kC, 2);
  EXPECT_EQ(coordinator_->epoch(), 1u);  // one of its two workers is missing
  const MemberKey d = MemberKey::Receiver(1, 1);
  Come(d, 2);
  EXPECT_EQ(coordinator_->epoch(), 2u);
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  for (const MemberKey& key : {kC, d}) {
    ASSERT_THAT(Got<AnnouncedEffect>(key), SizeIs(1));
    EXPECT_EQ(Got<AnnouncedEffect>(key)[0].generation, 2u);
    Read(key, 2);
  }
  EXPECT_EQ(Worker(kC).serving(), 2u);
  EXPECT_EQ(Worker(kA).serving(), 2u);
  EXPECT_THAT(Got<AnnouncedEffect>(kA), IsEmpty());  // it has it
  PublishAll(3);
  for (const MemberKey& key : {kA, kC, d}) Read(key, 3);
  EXPECT_EQ(coordinator_->engine_committed(1), 3u);
  ExpectNoRefusals();
}

TEST_F(EpochsTest, ALateEngineThatIsNeverCompleteEndsForItself) {
  Start(1, {1}, 20 * kSecond);
  Come(kC, 2);
  Pass(65 * kSecond);
  EXPECT_EQ(Session(kC).phase(), MPhase::kWaiting);
  Pass(2 * kSecond);
  EXPECT_EQ(CodeOf(Session(kC).status()), "deadline");
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_EQ(coordinator_->epoch(), 1u);
}

TEST_F(EpochsTest, AWorkerNeedNotSayWhatTheCoordinatorKnowsOfItsLateEngine) {
  Start(1, {1}, 20 * kSecond);
  const MemberKey d = MemberKey::Receiver(1, 1);
  Come(d, 2);
  Come(kC);  // 0: as many as the coordinator was told, by the other worker
  EXPECT_EQ(coordinator_->epoch(), 2u);
  Die(d);
  Come(d, 2);
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_EQ(Session(d).phase(), MPhase::kReady);
  EXPECT_EQ(Session(kC).phase(), MPhase::kReady);
}

TEST_F(EpochsTest, AnEngineThatMakesThePlanFailIsSentAway) {
  Start(2, {1}, 0);
  PublishAll(1);
  Read(kA, 1);
  bad_ = {1};
  Come(kC, 1);
  EXPECT_EQ(CodeOf(Session(kC).status()), "shape_mismatch");
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_EQ(coordinator_->epoch(), 3u);
  for (const MemberKey& key : {kP0, kP1, kA}) EXPECT_EQ(Session(key).phase(), MPhase::kReady);
  PublishAll(2);
  Read(kA, 2);
  EXPECT_EQ(Worker(kA).serving(), 2u);
}

TEST_F(EpochsTest, GrowthWaitsForVotesAndCommits) {
  Start(1, {2}, 0);
  hold_commits_ = true;
  PublishAll(1);
  Read(kA, 1);
  Come(kC, 1);
  EXPECT_EQ(coordinator_->epoch(), 1u);
  Read(kB, 1);
  Commit(kA);
  EXPECT_EQ(coordinator_->epoch(), 1u);
  // What is published meanwhile the next epoch announces, to all.
  PublishAll(2);
  EXPECT_EQ(coordinator_->last_announced(), 1u);
  Commit(kB);
  EXPECT_EQ(coordinator_->epoch(), 2u);
  EXPECT_EQ(coordinator_->last_announced(), 2u);
  for (const MemberKey& key : {kA, kB, kC}) EXPECT_EQ(Worker(key).state(), State::kPlanned);
  ExpectNoRefusals();
}

TEST_F(EpochsTest, AnEngineThatNobodyDrivesHoldsUpNobodyForEver) {
  Start(1, {2}, 0);
  PublishAll(1);
  Come(kC, 1);
  Pass(29 * kSecond);
  EXPECT_EQ(coordinator_->epoch(), 1u);
  Pass(kSecond);
  EXPECT_EQ(coordinator_->epoch(), 2u);
  EXPECT_EQ(Worker(kC).state(), State::kPlanned);
  // A vote under way holds it up until its own deadline.
  const MemberKey d = MemberKey::Receiver(2, 0);
  Read(kC, 1);
  Read(kA, 1);
  Come(d, 1);
  Pass(29 * kSecond);
  EXPECT_EQ(coordinator_->epoch(), 2u);
  Pass(2 * kSecond);
  EXPECT_EQ(coordinator_->epoch(), 3u);
}

TEST_F(EpochsTest, ALossWaitsForCommitsButNotForLong) {
  Start(2, {1}, 20 * kSecond);
  needed_ = {0};
  hold_commits_ = true;
  PublishAll(1);
  Read(kA, 1);
  Die(kP1);
  EXPECT_EQ(coordinator_->epoch(), 1u);
  Commit(kA);
  EXPECT_EQ(Worker(kA).serving(), 1u);
  EXPECT_EQ(coordinator_->epoch(), 2u);

  Start(2, {1}, 20 * kSecond);
  needed_ = {0};
  PublishAll(1);
  Read(kA, 1);
  Die(kP1);
  Pass(6 * kSecond);
  EXPECT_EQ(coordinator_->epoch(), 2u);
  EXPECT_EQ(Worker(kA).state(), State::kCommitting);  // the decision stands
  Commit(kA);
  EXPECT_EQ(Worker(kA).serving(), 1u);
  EXPECT_EQ(coordinator_->engine_committed(0), 1u);
  ExpectNoRefusals();
}

TEST_F(EpochsTest, TheSameProcessOnANewStreamReplacesTheOldOne) {
  Start(2, {1}, 20 * kSecond);
  PublishAll(1);
  const ConnectionId old = *nodes_.at(kP1).connection;
  LoseStream(kP1);  // the coordinator does not know yet
  Connect(kP1);
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_EQ(Session(kP1).phase(), MPhase::kReady);
  EXPECT_EQ(coordinator_->last_announced(), 1u);  // it still holds it
  Hear(old);                                      // late news of a stream that is nobody's
  EXPECT_EQ(coordinator_->phase(), CPhase::kReady);
  Read(kA, 1);
  EXPECT_EQ(Worker(kA).serving(), 1u);
  ExpectNoRefusals();
}

}  // namespace
}  // namespace headrace
