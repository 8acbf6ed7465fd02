// vllm-project/vllm#40646: a trainer that crashed and came back is a new one. What the dead one sent, and answers to
// it, are refused by their epoch's number and change nothing.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/job_testing.h"

namespace headrace::testing {
namespace {

const MemberKey kSource = MemberKey::Publisher(0), kOther = MemberKey::Publisher(1);
const MemberKey kWorker = MemberKey::Receiver(0, 0);

class StaleMessagesTest : public Job {
 protected:
  // The coordinator gets a message of an epoch, and does and says nothing.
  void ExpectVoid(ConnectionId connection, proto::Envelope message, uint64_t epoch) {
    message.set_epoch(epoch);
    CoordinatorActions actions;
    coordinator_->OnMessage(connection, message, now_, &actions);
    EXPECT_TRUE(actions.messages.empty());
    EXPECT_TRUE(actions.close.empty());
  }
};

TEST_F(StaleMessagesTest, OfADeadTrainerAreVoidInTwentyCycles) {
  Start(2, {1}, 600 * kSecond);
  uint64_t generation = 0;
  for (int cycle = 0; cycle < 20; ++cycle) {
    SCOPED_TRACE("cycle " + std::to_string(cycle));
    const uint64_t epoch = coordinator_->epoch();
    Publish(0, ++generation);
    const ConnectionId stream = *nodes_.at(kSource).connection;
    Die(kSource);
    Come(kSource);
    ASSERT_EQ(coordinator_->phase(), Coordinator::Phase::kReady);
    const uint64_t now = coordinator_->epoch();
    ASSERT_GT(now, epoch);
    Publish(1, generation);
    // What the dead one still had on its way would complete the generation.
    ExpectVoid(stream, PublishedOf(0, generation, 0), epoch);
    ExpectVoid(stream, PublishedOf(0, generation, 0), now);
    ExpectVoid(*nodes_.at(kSource).connection, PublishedOf(0, generation, 0), epoch);
    ExpectVoid(*nodes_.at(kWorker).connection, VoteOf(kWorker, generation), epoch);
    EXPECT_LT(coordinator_->last_announced(), generation);
    // Nor does a member believe the dead epoch's announcement.
    proto::Envelope announced = From(MemberKey::Coordinator(), kWorker, epoch);
    announced.mutable_announced()->set_generation(generation);
    for (int publisher : {0, 1}) AddSlot(&announced, publisher, 0);
    Forget();
    MemberActions actions;
    Session(kWorker).OnMessage(announced, now_, &actions);
    const auto refused = Effects<RefusedEffect>(actions);
    ASSERT_EQ(refused.size(), 1u);
    EXPECT_TRUE(HasCode(refused[0].status, ErrorCode::kStaleEpoch)) << refused[0].status;
    EXPECT_TRUE(Effects<AnnouncedEffect>(actions).empty());
    // The new one's generation counts.
    Publish(0, generation);
    EXPECT_EQ(coordinator_->last_announced(), generation);
    Read(kWorker, generation);
    EXPECT_EQ(Worker(kWorker).serving(), generation);
    EXPECT_EQ(coordinator_->engine_committed(0), generation);
  }
}

}  // namespace
}  // namespace headrace::testing
