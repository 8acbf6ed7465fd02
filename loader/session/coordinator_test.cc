// Joining and planning, and every message that is refused.
#include "loader/session/coordinator.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/session/coordinator_testing.h"
#include "loader/session/merkle.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace ::headrace::testing;  // NOLINT: the words of this folder's tests

TEST_F(CoordinatorTest, WelcomesThenStartsTheEpochInOrder) {
  for (size_t c = kMembers.size(); c-- > 0;) {
    Tell(Hello(kMembers[c]));
    ASSERT_EQ(actions_.messages.size(), 1u);
    EXPECT_TRUE(actions_.messages[0].message.has_welcome());
    EXPECT_EQ(actions_.messages[0].message.incarnation(), "run-1");
    EXPECT_EQ(actions_.messages[0].message.epoch(), 1u);
  }
  EXPECT_THAT(machine_->WaitingFor(), HasSubstr("publisher rank 0 (host a, pid 70), "));
  for (size_t c = kMembers.size(); c-- > 0;) {
    EXPECT_THAT(actions_.messages.size(), 1u);
    proto::Envelope layout = From(kMembers[c]);
    *layout.mutable_layout() = LayoutOf();
    Tell(layout);
    if (c > 0) {
      EXPECT_THAT(actions_.messages, IsEmpty());
      actions_.messages.resize(1);
    }
  }
  ASSERT_EQ(actions_.messages.size(), 5u);
  const proto::EpochStart& start = actions_.messages[0].message.epoch_start();
  ASSERT_EQ(start.members_size(), 5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(MemberKey::From(start.members(i).id()), kMembers[i]);
    EXPECT_EQ(start.members(i).layout().manifest_fragment(), "fragment");
    EXPECT_EQ(start.members(i).host(), "a");
  }
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kPlanning);
}

TEST_F(CoordinatorTest, AnotherJobIsRefusedByIdentityBeforeAnyLayoutIsShown) {
  Join();
  machine_->OnConnected(9, now_, &actions_);
  proto::Envelope hello = Hello(MemberKey::Receiver(0, 0));
  hello.set_job("job-a");
  Tell(9, hello);
  EXPECT_THAT(Refusal(9), HasSubstr("wrong_job: "));
  EXPECT_THAT(Refusal(9), HasSubstr("\"job\""));
  EXPECT_THAT(Refusal(9), HasSubstr("\"job-a\""));
  EXPECT_THAT(actions_.close, ElementsAre(9));
  // Nothing more is heard from it, and nobody else was hurt.
  EXPECT_THAT(Tell(9, hello).messages, IsEmpty());
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kPlanning);
}

TEST_F(CoordinatorTest, RefusesAtTheDoor) {
  const MemberKey p0 = MemberKey::Publisher(0);
  Tell(Hello(p0));
  proto::Envelope other_incarnation = Hello(MemberKey::Publisher(1));
  other_incarnation.set_incarnation("run-0");
  proto::Envelope layout_first = From(MemberKey::Publisher(1));
  *layout_first.mutable_layout() = LayoutOf();
  proto::Envelope nothing = From(MemberKey::Publisher(1));
  proto::Envelope another_process = Hello(p0);
  another_process.mutable_hello()->set_pid(99);
  MemberKey strange = MemberKey::Publisher(0);
  strange.role = static_cast<proto::Role>(77);
  const std::vector<std::pair<proto::Envelope, std::string>> cases = {
      {other_incarnation, "wrong_job: this is incarnation \"run-1\""},
      {layout_first, "malformed: message layout of publisher rank 1 came before Hello"},
      {nothing, "malformed: message no body"},
      {Hello(MemberKey::Publisher(2)), "invalid_option: publisher rank 2 is not expected: this job has 2 publishers"},
      {Hello(MemberKey::Publisher(-1)), "invalid_option: publisher rank -1"},
      {Hello(MemberKey::Receiver(2, 0)), "invalid_option: engine 2 worker 0"},
      {Hello(MemberKey::Receiver(1, 1)), "invalid_option: engine 1 worker 1"},
      {Hello(MemberKey::Coordinator()), "invalid_option: coordinator is not expected"},
      {Hello(strange), "invalid_option: member of unknown role 77"},
      {Hello(MemberKey::Receiver(2, 2), 2), "invalid_option: engine 2 worker 2"},
      {Hello(MemberKey::Receiver(0, 1), 3), "engine 0 worker 1 is one of 3 workers, but its engine has 2"},
      {another_process, "publisher rank 0 (host a, pid 99): publisher rank 0 (host a, pid 70) has joined already"},
  };
  ConnectionId connection = 100;
  for (const auto& [message, expected] : cases) {
    machine_->OnConnected(++connection, now_, &actions_);
    Tell(connection, message);
    EXPECT_THAT(Refusal(connection), HasSubstr(expected));
    EXPECT_THAT(actions_.close, ElementsAre(connection));
  }
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kJoining);
}

TEST_F(CoordinatorTest, RefusesMessagesAndChangesNothing) {
  MakeReady();
  Announce(3);
  const MemberKey p0 = kMembers[0], r0 = kMembers[2];
  const auto with = [](proto::Envelope message, const std::function<void(proto::Envelope&)>& change) {
    change(message);
    return message;
  };
  const std::vector<std::pair<proto::Envelope, std::string>> cases = {
      {with(VoteOf(r0, 3), [](auto& m) { m.set_job("x"); }), "wrong_job: "},
      {with(VoteOf(r0, 3), [](auto& m) { m.set_incarnation("run-0"); }), "wrong_job: "},
      {with(VoteOf(r0, 3), [](auto& m) { m.set_epoch(0); }), "stale_epoch: "},
      {with(VoteOf(r0, 3), [&](auto& m) { *m.mutable_to() = p0.ToProto(); }), "what only the coordinator takes"},
      {Hello(r0), "wrong_job: "},  // a second Hello knows no incarnation
      {with(From(r0), [](auto& m) { m.mutable_hello(); }), "malformed: "},
      {with(From(r0), [](auto& m) { *m.mutable_layout() = LayoutOf(); }), "sent a second Layout"},
      {PlanOf(r0), "nobody is to plan now"},
      {From(r0), "no body"},
      {with(From(r0), [](auto& m) { m.mutable_welcome(); }), "message welcome"},
      {with(From(r0), [](auto& m) { m.mutable_decision()->set_commit(true); }), "message decision"},
      {with(PublishedOf(0, 4, 0), [&](auto& m) { *m.mutable_from() = r0.ToProto(); }), "not from a receiver"},
      {PublishedOf(0, 3, 1), "published generation 3 after generation 3"},
      {PublishedOf(0, 2, 1), "generation_not_growing: publisher rank 0 published generation 2 after generation 3"},
      {PublishedOf(0, 4, 2), "out_of_bounds: publisher rank 0 published in slot 2 of 2"},
      {PublishedOf(0, 4, -1), "slot -1"},
      {PublishedOf(0, 4, 0), "still leased by engine 0 worker 0, engine 0 worker 1, engine 1 worker 0"},
      {VoteOf(p0, 3), "not from a publisher"},
      {VoteOf(r0, 4), "generation 3 is running"},
      {VoteOf(r0, 0), "last vote was on generation 0"},
      {with(From(r0), [](auto& m) { m.mutable_committed()->set_generation(3); }), "but none is decided"},
      {with(From(r0), [](auto& m) { m.mutable_release()->set_generation(4); }), "the newest announced is 3"},
      {with(From(r0), [](auto& m) { m.mutable_release(); }), "released generation 0"},
      {with(From(r0), [](auto& m) { m.mutable_start(); }), "to coordinator"},
      {with(From(r0, kMembers[3]), [](auto& m) { m.mutable_start(); }), "to engine 0 worker 1"},
      {with(From(r0, MemberKey::Publisher(5)), [](auto& m) { m.mutable_start(); }), "to publisher rank 5"},
      {with(From(p0, kMembers[1]), [](auto& m) { m.mutable_abort(); }), "to publisher rank 1"},
      {with(From(r0, p0), [](auto& m) { m.mutable_abort(); }), "not from a receiver"},
  };
  for (const auto& [message, expected] : cases) {
    const ConnectionId connection = At(MemberKey::From(message.from()));
    Tell(connection, message);
    EXPECT_THAT(Refusal(connection), HasSubstr(expected)) << message.ShortDebugString();
    EXPECT_THAT(actions_.close, IsEmpty());
  }
  Tell(2, VoteOf(kMembers[3], 3));
  EXPECT_THAT(Refusal(2), HasSubstr("engine 0 worker 0 sent a message as engine 0 worker 1"));
  // The generation goes its way as if nothing had been said.
  Tell(VoteOf(r0, 3));
  EXPECT_THAT(actions_.messages, IsEmpty());
  Tell(VoteOf(kMembers[3], 3));
  EXPECT_TRUE(To(2).at(0).decision().commit());
  EXPECT_TRUE(To(3).at(0).decision().commit());
  EXPECT_EQ(actions_.messages.size(), 2u);
}

TEST_F(CoordinatorTest, DifferingOptionsEndTheEpochNamingBoth) {
  struct Case {
    proto::Layout layout;
    const char* text;
  };
  for (const Case& c :
       {Case{LayoutOf(2, "host", 4096), "chunk_bytes = 4096, but publisher rank 0 (host a, pid 70) has 8192"},
        Case{LayoutOf(3), "slots = 3"}, Case{LayoutOf(2, "ucx"), "transport = ucx"}}) {
    Restart(Options());
    for (const MemberKey& key : kMembers) Tell(Hello(key));
    proto::Envelope first = From(kMembers[0]);
    *first.mutable_layout() = LayoutOf();
    Tell(first);
    proto::Envelope second = From(kMembers[2]);
    *second.mutable_layout() = c.layout;
    Tell(second);
    ExpectEnded("invalid_option", c.text);
    EXPECT_THAT(machine_->status().message(), HasSubstr("engine 0 worker 0 (host a, pid 70) has "));
  }
}

TEST_F(CoordinatorTest, PlansThatAgreeGiveTheRoot) {
  MakeReady();
  EXPECT_EQ(machine_->phase(), Coordinator::Phase::kReady);
  std::vector<proto::Edge> edges;
  for (int p = 0; p < 2; ++p)
    for (const MemberKey& r : {kMembers[2], kMembers[3], kMembers[4]}) edges.push_back(EdgeOf(p, r.engine, r.rank));
  ASSERT_EQ(actions_.messages.size(), 5u);
  EXPECT_EQ(actions_.messages[0].message.epoch_ready().root(), MerkleRoot(edges));
}

TEST_F(CoordinatorTest, PlansThatDifferEndTheEpochNamingTheEdge) {
  Join();
  for (const MemberKey& key : kMembers) Tell(PlanOf(key, key == kMembers[3] ? "other" : "d"));
  ExpectEnded("plan_mismatch", "edge publisher rank 0 to engine 0 worker 1");
}

TEST_F(CoordinatorTest, AMissingEndIsADifference) {
  Join();
  proto::Envelope short_plan = PlanOf(kMembers[4]);
  short_plan.mutable_planned()->mutable_edges()->RemoveLast();
  for (const MemberKey& key : kMembers) Tell(key == kMembers[4] ? short_plan : PlanOf(key));
  ExpectEnded("plan_mismatch", "edge publisher rank 1 to engine 1 worker 0: only the publisher planned it");
}

TEST_F(CoordinatorTest, RefusesPlansOfOthers) {
  Join();
  proto::Envelope foreign = PlanOf(kMembers[3]);
  *foreign.mutable_from() = kMembers[2].ToProto();
  Tell(foreign);
  EXPECT_THAT(Refusal(2), HasSubstr("engine 0 worker 0 planned an edge of engine 0 worker 1"));
  proto::Envelope unknown = PlanOf(kMembers[2]);
  unknown.mutable_planned()->mutable_edges(0)->set_publisher(9);
  Tell(unknown);
  EXPECT_THAT(Refusal(2), HasSubstr("publisher rank 9, which is not in this epoch"));
  proto::Envelope twice = PlanOf(kMembers[2]);
  *twice.mutable_planned()->add_edges() = twice.planned().edges(0);
  Tell(twice);
  EXPECT_THAT(Refusal(2), HasSubstr("twice"));
  EXPECT_THAT(Tell(PlanOf(kMembers[2])).messages, IsEmpty());
  Tell(PlanOf(kMembers[2]));
  EXPECT_THAT(Refusal(2), HasSubstr("a second Planned"));
}

}  // namespace
}  // namespace headrace
