// A whole job over loopback sockets: the coordinator's thread, and members that are driven by hand here.
#include "loader/control/coordinator_service.h"

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/control/control_client.h"
#include "loader/session/publisher_session.h"
#include "loader/session/receiver_session.h"
#include "loader/session/session_testing.h"

namespace headrace {
namespace {

using testing::EdgeOf;
using testing::Effects;
using ::testing::HasSubstr;
using testing::LayoutOf;

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

CoordinatorOptions JobOptions(int publishers, std::vector<int> workers) {
  CoordinatorOptions options;
  options.job = "job";
  options.incarnation = "run-1";
  options.publishers = publishers;
  options.workers = std::move(workers);
  options.timeouts.heartbeat_timeout_ns = 60'000'000'000;  // a busy machine is no death here
  return options;
}

std::unique_ptr<CoordinatorService> StartService(const CoordinatorOptions& options) {
  ControlServerOptions server;
  server.token = "secret";
  auto service = CoordinatorService::Start(options, server);
  EXPECT_TRUE(service.ok()) << service.status();
  return *std::move(service);
}

// A member: its machine and its stream.
template <typename Session>
class Member {
 public:
  template <typename... Args>
  Member(const std::string& address, MemberKey self, const std::string& job, Args... args) {
    MemberOptions options;
    options.job = job;
    options.self = self;
    options.host = "a";
    options.pid = 77;
    options.layout = LayoutOf();
    options.coordinator_address = address;
    options.timeouts.heartbeat_timeout_ns = 60'000'000'000;
    session = std::make_unique<Session>(options, args...);
    ControlClientOptions client_options;
    client_options.address = address;
    client_options.token = "secret";
    auto connected = ControlClient::Connect(client_options, Soon());
    EXPECT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    MemberActions actions;
    session->OnConnected(SteadyNowNs(), &actions);
    Apply(actions);
    while (session->phase() == MemberSession::Phase::kHello && HearOne()) continue;
  }

  void Apply(const MemberActions& actions) {
    for (const proto::Envelope& message : actions.messages) (void)client->Send(message);
    for (const MemberEffect& effect : actions.effects) effects.push_back(effect);
  }
  // Handles messages until an effect of this kind is there, and takes it.
  template <typename Effect>
  Effect Await() {
    while (true) {
      for (size_t i = 0; i < effects.size(); ++i) {
        if (const Effect* found = std::get_if<Effect>(&effects[i])) {
          const Effect effect = *found;
          effects.erase(effects.begin() + static_cast<std::ptrdiff_t>(i));
          return effect;
        }
      }
      if (!HearOne()) return {};
    }
  }
  bool HearOne() {
    const auto event = client->events().Pop(Soon());
    if (!event.has_value()) {
      ADD_FAILURE() << "nothing came: " << session->WaitingFor();
      return false;
    }
    MemberActions actions;
    if (event->kind == ControlEvent::Kind::kMessage)
      session->OnMessage(event->message, SteadyNowNs(), &actions);
    else
      session->OnDisconnected(event->status, SteadyNowNs(), &actions);
    Apply(actions);
    return true;
  }
  template <typename F>
  absl::Status Call(F f) {
    MemberActions actions;
    const absl::Status status = f(&actions);
    Apply(actions);
    return status;
  }
  void Plan(const std::vector<proto::Edge>& edges) {
    Await<PlanEffect>();
    EXPECT_TRUE(
        Call([&](MemberActions* a) { return session->Planned(session->epoch(), edges, SteadyNowNs(), a); }).ok());
  }

  std::unique_ptr<Session> session;
  std::unique_ptr<ControlClient> client;
  std::vector<MemberEffect> effects;
};
using Publisher = Member<PublisherSession>;
using Receiver = Member<ReceiverSession>;

TEST(CoordinatorServiceTest, CommitsAGenerationAndEndsInOrder) {
  auto service = StartService(JobOptions(1, {1}));
  Publisher publisher(service->address(), MemberKey::Publisher(0), "job");
  Receiver receiver(service->address(), MemberKey::Receiver(0, 0), "job", ReceiverState{});
  publisher.Plan({EdgeOf(0, 0, 0)});
  receiver.Plan({EdgeOf(0, 0, 0)});
  const std::string root = publisher.Await<EpochReadyEffect>().root;
  EXPECT_EQ(receiver.Await<EpochReadyEffect>().root, root);
  const int64_t now = SteadyNowNs();
  ASSERT_TRUE(publisher.Call([&](auto* a) { return publisher.session->Publish(1, kNoDeadline, now, a); }).ok());
  publisher.Await<WriteSlotEffect>();
  ASSERT_TRUE(publisher.Call([&](auto* a) { return publisher.session->Snapshotted(1, now, a); }).ok());
  EXPECT_EQ(receiver.Await<AnnouncedEffect>().generation, 1u);
  ASSERT_TRUE(receiver.session->Begin(1, false).ok());
  ASSERT_TRUE(receiver.Call([&](auto* a) { return receiver.session->Vote(1, absl::OkStatus(), now, a); }).ok());
  receiver.Await<CommitEffect>();
  ASSERT_TRUE(receiver
                  .Call([&](auto* a) -> absl::Status {
                    HR_RETURN_IF_ERROR(receiver.session->BeginCommit(1));
                    return receiver.session->Committed(1, now, a);
                  })
                  .ok());
  EXPECT_EQ(receiver.Await<EngineCommittedEffect>().generation, 1u);
  EXPECT_EQ(publisher.Await<EngineCommittedEffect>().generation, 1u);
  EXPECT_EQ(publisher.session->busy_slots(), 0);
  EXPECT_EQ(receiver.session->serving(), 1u);
  EXPECT_EQ(service->status().engine_committed, std::vector<uint64_t>{1});
  EXPECT_EQ(service->status().root, root);

  ASSERT_TRUE(receiver.Call([&](auto* a) { return receiver.session->Leave(now, a); }).ok());
  receiver.client->Finish(Soon());
  EXPECT_EQ(publisher.Await<LeftEffect>().member, MemberKey::Receiver(0, 0));
  ASSERT_TRUE(publisher.Call([&](auto* a) { return publisher.session->Leave(now, a); }).ok());
  publisher.client->Finish(Soon());
  service->Stop();
  EXPECT_EQ(service->status().phase, Coordinator::Phase::kEnded);
  EXPECT_THAT(service->status().status.message(), HasSubstr("all members left"));
}

TEST(CoordinatorServiceTest, AReceiverOfAnotherJobSeesNoLayout) {
  auto service = StartService(JobOptions(1, {1}));
  Receiver receiver(service->address(), MemberKey::Receiver(0, 0), "job-a", ReceiverState{});
  const absl::Status status = receiver.Await<FailEffect>().status;
  EXPECT_EQ(CodeOf(status), "wrong_job");
  EXPECT_THAT(status.message(), HasSubstr("\"job\""));
  EXPECT_THAT(status.message(), HasSubstr("\"job-a\""));
  EXPECT_EQ(service->status().phase, Coordinator::Phase::kJoining);
}

TEST(CoordinatorServiceTest, ADeadClientEndsTheEpochByName) {
  auto service = StartService(JobOptions(2, {1}));
  Publisher survivor(service->address(), MemberKey::Publisher(0), "job");
  { Publisher victim(service->address(), MemberKey::Publisher(1), "job"); }
  const absl::Status status = survivor.Await<FailEffect>().status;
  EXPECT_EQ(CodeOf(status), "peer_lost");
  EXPECT_EQ(status.message(), "publisher rank 1 (host a, pid 77) died: connection closed");
}

TEST(CoordinatorServiceTest, StoppingTellsTheMembers) {
  auto service = StartService(JobOptions(1, {1}));
  Publisher publisher(service->address(), MemberKey::Publisher(0), "job");
  service->Stop();
  service->Stop();
  const absl::Status status = publisher.Await<FailEffect>().status;
  EXPECT_EQ(CodeOf(status), "aborted");
  EXPECT_THAT(status.message(), HasSubstr("the coordinator was stopped"));
}

TEST(CoordinatorServiceTest, ItsTimersRunWithoutMessages) {
  CoordinatorOptions options = JobOptions(1, {1});
  options.timeouts.join_ns = 50'000'000;
  auto service = StartService(options);
  Publisher publisher(service->address(), MemberKey::Publisher(0), "job");
  const absl::Status status = publisher.Await<FailEffect>().status;
  EXPECT_EQ(CodeOf(status), "deadline");
  EXPECT_THAT(status.message(), HasSubstr("engine 0 worker 0"));
}

}  // namespace
}  // namespace headrace
