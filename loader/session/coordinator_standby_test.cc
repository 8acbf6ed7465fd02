// Engines as sources for others, where no trainer is left, with real sessions.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/job_testing.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests
using CPhase = Coordinator::Phase;
using MPhase = MemberSession::Phase;

const MemberKey kP0 = MemberKey::Publisher(0), kP1 = MemberKey::Publisher(1);
const MemberKey kA = MemberKey::Receiver(0, 0), kB = MemberKey::Receiver(0, 1), kC = MemberKey::Receiver(1, 0),
                kD = MemberKey::Receiver(2, 0);

MemberKey Of(const MemberKey& worker) { return MemberKey::Standby(worker.engine, worker.rank); }

class StandbyTest : public Job {
 protected:
  void Hold(const MemberKey& worker, uint64_t generation) {
    if (!nodes_.contains(Of(worker))) Come(Of(worker));
    MemberActions actions;
    nodes_.at(Of(worker)).publisher->Hold(generation, &actions);
    Do(Of(worker), &actions);
    Pump();
  }
  absl::Status TakeBack(const MemberKey& worker, uint64_t generation) {
    MemberActions actions;
    const absl::Status status = nodes_.at(Of(worker)).publisher->TakeBack(generation, &actions);
    Do(Of(worker), &actions);
    Pump();
    return status;
  }
  // Engine 0 serves 5, and the trainers are gone.
  void ServeAlone(bool in_order) {
    Start(2, {2}, 20 * kSecond);
    PublishAll(5);
    for (const MemberKey& key : {kA, kB}) {
      Read(key, 5);
      if (key == kB)
        for (const MemberKey& worker : {kA, kB}) Hold(worker, 5);
    }
    for (const MemberKey& key : {kP0, kP1}) in_order ? Leave(key) : Die(key);
    needed_.clear();  // the plan is that of other sources from now on
  }
  // The publishers of the epoch.
  std::vector<MemberKey> Sources(const MemberKey& member) {
    std::vector<MemberKey> sources;
    for (const auto& of : Session(member).members().members())
      if (of.id().role() == proto::PUBLISHER) sources.push_back(MemberKey::From(of.id()));
    return sources;
  }
};

TEST_F(StandbyTest, AnEngineThatComesTakesWhatOthersServe) {
  for (const bool in_order : {true, false}) {
    ServeAlone(in_order);
    EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);  // nobody lacks anything
    EXPECT_EQ(Session(Of(kA)).phase(), MPhase::kWaiting);
    Come(kC, 1);
    ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
    EXPECT_THAT(Sources(kC), ElementsAre(Of(kA), Of(kB)));
    EXPECT_THAT(Got<AnnouncedEffect>(kC), SizeIs(1));
    EXPECT_FALSE(nodes_.at(Of(kA)).publisher->released(5));
    Read(kC, 5);
    EXPECT_EQ(Worker(kC).serving(), 5u);
    EXPECT_TRUE(nodes_.at(Of(kA)).publisher->released(5));
    // What it holds is a source for the next one, as soon as it says so.
    Hold(kC, 5);
    Come(kD, 1);
    EXPECT_THAT(Sources(kD), ElementsAre(Of(kA), Of(kB), Of(kC)));
    Read(kD, 5);
    EXPECT_EQ(Worker(kD).serving(), 5u);
    ExpectNoRefusals();
  }
}

TEST_F(StandbyTest, NobodyIsASourceBesideATrainer) {
  Start(2, {2}, 20 * kSecond);
  PublishAll(1);
  for (const MemberKey& key : {kA, kB}) Read(key, 1);
  for (const MemberKey& key : {kA, kB}) Hold(key, 1);
  Come(kC, 1);
  EXPECT_THAT(Sources(kC), ElementsAre(kP0, kP1));
  Read(kC, 1);
  Pass(1000 * kSecond);  // it waits for ever
  EXPECT_EQ(Session(Of(kA)).phase(), MPhase::kWaiting);
  EXPECT_TRUE(nodes_.at(Of(kA)).publisher->released(1));
  EXPECT_EQ(TakeBack(kA, 1), absl::OkStatus());
  ExpectNoRefusals();
}

TEST_F(StandbyTest, TheNewestCountsAndAWholeEngine) {
  ServeAlone(/*in_order=*/true);
  Come(kC, 1);
  Read(kC, 5);
  Hold(kC, 4);  // as if it had come from an older one
  Come(kD, 1);
  EXPECT_THAT(Sources(kD), ElementsAre(Of(kA), Of(kB)));
  // Half an engine is none.
  ServeAlone(/*in_order=*/true);
  EXPECT_EQ(TakeBack(kB, 5), absl::OkStatus());
  Come(kC, 1);
  EXPECT_EQ(coordinator_->phase(), CPhase::kSuspended);
  Hold(kB, 5);  // it holds it after all
  ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
  Read(kC, 5);
  EXPECT_EQ(Worker(kC).serving(), 5u);
  ExpectNoRefusals();
}

TEST_F(StandbyTest, TrainersThatComeBackReplaceThem) {
  ServeAlone(/*in_order=*/false);
  Come(kC, 1);
  Begin(kC, 5);
  needed_ = {0, 1};
  Come(kP0);
  Pass(40 * kSecond);  // an engine that reads holds it up only so long
  Come(kP1);
  Pass(40 * kSecond);
  ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_THAT(Sources(kC), ElementsAre(kP0, kP1));
  EXPECT_THAT(Got<DiscardEffect>(kC), SizeIs(1));
  EXPECT_EQ(Session(Of(kA)).phase(), MPhase::kWaiting);
  EXPECT_TRUE(nodes_.at(Of(kA)).publisher->released(5));
  PublishAll(6);
  for (const MemberKey& key : {kA, kB, kC}) Read(key, 6);
  EXPECT_EQ(Worker(kC).serving(), 6u);
  ExpectNoRefusals();
}

TEST_F(StandbyTest, WeightsThatChangeWhileTheyAreReadAreTakenBack) {
  ServeAlone(/*in_order=*/true);
  Come(kC, 1);
  Begin(kC, 5);
  EXPECT_EQ(CodeOf(TakeBack(kB, 5)), "deadline");
  ASSERT_THAT(Got<DiscardEffect>(kC), SizeIs(1));
  EXPECT_THAT(Got<DiscardEffect>(kC)[0].status.message(),
              ::testing::HasSubstr("engine 0 worker 1 as a source took generation 5 back"));
  ExpectNoRefusals();
}

// A coordinator in place of one that died learns from them what they hold.
TEST_F(StandbyTest, AnotherCoordinatorFindsThem) {
  ServeAlone(/*in_order=*/true);
  ReplaceCoordinator();
  for (const MemberKey& key : {Of(kA), Of(kB), kA, kB}) Connect(key);
  EXPECT_EQ(Session(Of(kA)).phase(), MPhase::kWaiting);
  ExpectNoRefusals();
}

// The trainers die between an engine's decision and its commit, which takes longer than the others wait.
TEST_F(StandbyTest, WhatAnEngineCommitsWhileItIsASourceReachesTheOthers) {
  Start(2, {2}, 20 * kSecond);
  PublishAll(5);
  for (const MemberKey& key : {kA, kB}) Read(key, 5);
  for (const MemberKey& key : {kA, kB}) Hold(key, 5);
  hold_commits_ = true;
  PublishAll(6);
  for (const MemberKey& key : {kA, kB}) Read(key, 6);
  needed_.clear();
  for (const MemberKey& key : {kP0, kP1}) Die(key);
  Come(kC, 1);
  Pass(10 * kSecond);
  ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_THAT(Sources(kC), ElementsAre(Of(kA), Of(kB)));
  for (const MemberKey& key : {kA, kB}) (void)TakeBack(key, 5);
  for (const MemberKey& key : {kA, kB}) Commit(key);
  hold_commits_ = false;
  Forget();
  for (const MemberKey& key : {kA, kB}) Hold(key, 6);
  Pass(10 * kSecond);
  ASSERT_THAT(Got<AnnouncedEffect>(kC), SizeIs(1));
  Read(kC, 6);
  EXPECT_EQ(Worker(kC).serving(), 6u);
}

// An engine is not to blame for trainers that come back one by one.
TEST_F(StandbyTest, AnEngineThatComesWithTheFirstTrainerWaitsForTheOthers) {
  ServeAlone(/*in_order=*/false);
  Come(kC, 1);
  Begin(kC, 5);
  needed_ = {0, 1};
  Come(kP0);
  Come(kD, 1);
  Pass(40 * kSecond);
  ASSERT_TRUE(Session(kD).status().ok()) << Session(kD).status();
  Come(kP1);
  Pass(40 * kSecond);
  ASSERT_EQ(coordinator_->phase(), CPhase::kReady);
  EXPECT_THAT(Sources(kD), ElementsAre(kP0, kP1));
}

}  // namespace
}  // namespace headrace
