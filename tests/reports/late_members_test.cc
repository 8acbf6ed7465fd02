// A first commit before any subscription, and the reverse: whoever comes first waits, never without a deadline, says
// for whom, and all end with the newest complete generation.
#include "loader/testing/two_engines.h"
#include "tests/reports/report.h"

namespace headrace {
namespace {

using testing::FirstError;
using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;
using testing::Soon;

TEST(LateMembersTest, AReceiverThatStartsBeforeAnyPublisher) {
  for (bool map : {true, false}) {
    SCOPED_TRACE(::testing::Message() << "map " << map);
    MemoryOptions memory;
    memory.map = map;
    auto fabric = std::make_shared<MemoryFabric>(memory);
    JobConfig config;
    config.transport = [fabric] { return fabric->NewEndpoint(); };
    // A publisher takes its endpoint when the coordinator waits for nobody else.
    Job* the_job = nullptr;
    config.transport = [&, fabric] {
      std::string waiting;
      do {
        waiting = the_job->coordinator().status().waiting_for;
      } while (waiting.find("engine") != std::string::npos);
      EXPECT_THAT(waiting, HasSubstr("publisher rank"));
      return fabric->NewEndpoint();
    };
    Job job(testing::TwoEngines(), config);
    the_job = &job;
    job.receiver_transport = [&](size_t) { return fabric->NewEndpoint(); };
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    const absl::Status nothing = job.receiver(0).NextGeneration(absl::Now()).status();
    EXPECT_TRUE(HasCode(nothing, ErrorCode::kDeadline)) << nothing;
    EXPECT_THAT(std::string(nothing.message()), HasSubstr("no generation above 0"));
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

// Nobody waits for ever: the deadline's error names who did not come.
TEST(LateMembersTest, AReceiverWhosePublisherNeverComes) {
  Job job(testing::TwoEngines(), {});  // its parts; the coordinator is another one
  CoordinatorOptions coordinator;
  coordinator.job = "job";
  coordinator.incarnation = "run-1";
  coordinator.workers = {2, 1};
  coordinator.timeouts.join_ns = 100'000'000;
  ControlServerOptions server;
  server.token = "secret";
  const auto service = CoordinatorService::Start(coordinator, server);
  ASSERT_TRUE(service.ok()) << service.status();
  MemoryFabric fabric;
  ReceiverOptions options = job.OptionsOfReceiver(2);
  options.job.coordinator = (*service)->address();
  const absl::Status status =
      Receiver::Join(options, job.ReceiverPart(2), job.ReceiverMemory(2), fabric.NewEndpoint()).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kDeadline)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("publisher rank 0"));
  EXPECT_EQ(job.Difference(), "");
}

TEST(LateMembersTest, APublisherThatPublishesBeforeAnyReceiverExistsAndOneThatJoinsAtGenerationSeven) {
  for (bool map : {true, false}) {
    for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
      SCOPED_TRACE(::testing::Message() << "map " << map << ", " << (shadow == Shadow::kHost ? "shadow" : "in place"));
      MemoryOptions memory;
      memory.map = map;
      auto fabric = std::make_shared<MemoryFabric>(memory);
      JobConfig config;
      config.transport = [fabric] { return fabric->NewEndpoint(); };
      config.shadow = {shadow, shadow};
      config.late_engines = {0, 1};
      Job job(testing::TwoEngines(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      ASSERT_EQ(job.Publish(1), absl::OkStatus());  // nobody is there
      ASSERT_EQ(job.JoinEngine(0), absl::OkStatus());
      for (uint64_t generation = 1; generation <= 7; ++generation) {
        if (generation > 1) {
          ASSERT_EQ(job.Publish(generation), absl::OkStatus());
        }
        ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, generation); })),
                  absl::OkStatus());
        for (size_t w : {0, 1}) job.Expect(w, generation);
        ASSERT_EQ(job.Difference(), "");
      }
      ASSERT_EQ(job.JoinEngine(1), absl::OkStatus());
      ASSERT_EQ(job.TakeAt(2, 7), absl::OkStatus());
      job.Expect(2, 7);
      for (size_t w : {0, 1, 2}) EXPECT_EQ(job.receiver(w).serving(), 7u);
      EXPECT_EQ(job.Difference(), "");
      ASSERT_EQ(job.Round(8), absl::OkStatus());
      EXPECT_EQ(job.Difference(), "");
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace headrace
