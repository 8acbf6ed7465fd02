// Jobs whose members come, go and come back, without a restart of the others.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/transports.h"
#include "loader/testing/two_engines.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::FirstError;
using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;
using testing::OnMemory;
using testing::Soon;
using testing::TwoEngines;

constexpr int64_t kMinute = 60'000'000'000;

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a = "", const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

// Two publishers that each hold everything, and an engine of two workers.
Manifest Replicas() {
  const TensorSpec a{"a", {40, 6}, Dtype::kBF16}, b{"b", {64}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  m.source = {WholeBuffer(0, a), WholeBuffer(0, b), WholeBuffer(1, a), WholeBuffer(1, b)};
  for (int64_t r : {0, 1}) {
    m.destination.push_back(BufferOf(r, "a", a.dtype, {20, 6}, {PieceOf("a", {20 * r, 0}, {20, 6}, {0, 0})}));
    m.destination.push_back(WholeBuffer(r, b));
    m.topology.destination.push_back({r, "", "", "e0"});
  }
  return m;
}

struct Way {
  bool map;
  Shadow shadow;
};
const Way kWays[] = {{true, Shadow::kHost}, {true, Shadow::kOff}, {false, Shadow::kHost}, {false, Shadow::kOff}};

TEST(MembershipTest, AReplicaTakesOverBeforeAGenerationIsRead) {
  for (const Way& way : kWays) {
    for (size_t victim : {0, 1}) {
      SCOPED_TRACE(::testing::Message() << "map " << way.map << ", publisher " << victim);
      JobConfig config;
      config.transport = OnMemory(way.map);
      config.shadow = {way.shadow};
      Job job(Replicas(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      ASSERT_EQ(job.Round(1), absl::OkStatus());
      ASSERT_EQ(job.Publish(2), absl::OkStatus());
      job.KillPublisher(victim);
      ASSERT_EQ(FirstError(job.Take(2)), absl::OkStatus());
      EXPECT_EQ(job.Difference(), "");
      EXPECT_EQ(job.publisher(1 - victim).AwaitCommit(2, Soon()), absl::OkStatus());
      // And the job goes on with the one that is left.
      testing::PaintSource(job.manifest(), 3, &job.source());
      ASSERT_EQ(job.publisher(1 - victim).Publish(3, Soon()), absl::OkStatus());
      ASSERT_EQ(FirstError(job.Take(3)), absl::OkStatus());
      EXPECT_EQ(job.Difference(), "");
    }
  }
}

// One worker has begun to read when a publisher dies.
TEST(MembershipTest, AReplicaTakesOverInTheMiddleOfAGeneration) {
  for (const Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
    JobConfig config;
    config.transport = OnMemory(false);
    config.shadow = {shadow};
    config.chunk_bytes = 64;
    config.staging_bytes = 192;
    Job job(Replicas(), config);
    testing::TransportTap tap;
    job.receiver_transport = [&](size_t worker) {
      return worker == 0 ? testing::NewTappedTransport(config.transport(), &tap) : nullptr;
    };
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    tap.hold = true;
    const int before = tap.receives;
    const auto statuses = testing::ForAll(3, [&](size_t i) {
      if (i < 2) return job.TakeAt(i, 2);
      tap.receives.wait(before);
      job.KillPublisher(0);
      tap.hold = false;
      return absl::OkStatus();
    });
    ASSERT_EQ(FirstError(statuses), absl::OkStatus());
    for (size_t w : {0, 1}) {
      job.Expect(w, 2);
      EXPECT_EQ(job.receiver(w).serving(), 2u);
    }
    EXPECT_EQ(job.Difference(), "");
  }
}

// The next epoch waits for an engine that commits; whoever reads waits for that epoch.
TEST(MembershipTest, AReplicaTakesOverAlsoWhenAnotherEngineIsSlowToCommit) {
  Manifest m = Replicas();
  for (const TensorSpec& tensor : m.tensors) m.destination.push_back(WholeBuffer(2, tensor));
  m.topology.destination.push_back({2, "", "", "e1"});
  JobConfig config;
  config.transport = OnMemory(false);
  config.chunk_bytes = 64;
  config.staging_bytes = 192;
  config.heartbeat_timeout_ns = 4'000'000'000;  // how long the epoch waits
  Job job(m, config);
  testing::TransportTap tap;
  job.receiver_transport = [&](size_t worker) {
    return worker == 0 ? testing::NewTappedTransport(config.transport(), &tap) : nullptr;
  };
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  ASSERT_EQ(job.Publish(2), absl::OkStatus());
  ASSERT_TRUE(job.receiver(2).NextGeneration(Soon()).ok());
  ASSERT_EQ(job.receiver(2).Stage(2, job.ReceiverMemory(2)), absl::OkStatus());
  tap.hold = true;
  const int before = tap.receives;
  const auto statuses = testing::ForAll(3, [&](size_t i) {
    if (i < 2) return job.TakeAt(i, 2);
    tap.receives.wait(before);
    job.KillPublisher(0);
    tap.hold = false;
    return absl::OkStatus();
  });
  ASSERT_EQ(FirstError(statuses), absl::OkStatus());
  ASSERT_EQ(job.receiver(2).Commit(2), absl::OkStatus());
  for (size_t w : {0, 1, 2}) job.Expect(w, 2);
  EXPECT_EQ(job.Difference(), "");
}

TEST(MembershipTest, ALateEngineTakesTheNewestGeneration) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
    config.late_engines = {0, 1};
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    for (uint64_t generation = 1; generation <= 7; ++generation) {
      ASSERT_EQ(job.Publish(generation), absl::OkStatus());
    }
    ExpectError(job.publisher(0).AwaitCommit(7, absl::Now()), ErrorCode::kDeadline);  // nobody is there
    ASSERT_EQ(job.JoinEngine(0), absl::OkStatus());
    ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, 7); })), absl::OkStatus());
    for (size_t w : {0, 1}) job.Expect(w, 7);
    ASSERT_EQ(job.publisher(2).AwaitCommit(7, Soon()), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
    // The other one comes while the first serves, and both take what follows.
    ASSERT_EQ(job.JoinEngine(1), absl::OkStatus());
    ASSERT_EQ(job.TakeAt(2, 7), absl::OkStatus());
    job.Expect(2, 7);
    ASSERT_EQ(job.Difference(), "");
    ASSERT_EQ(job.Round(8), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

TEST(MembershipTest, AnEngineThatDiesHurtsNoOther) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    ASSERT_TRUE(job.receiver(0).NextGeneration(Soon()).ok());  // it is announced
    job.KillReceiver(1);
    ExpectError(job.TakeAt(0, 2), ErrorCode::kPeerLost, "engine 0 worker 1");
    EXPECT_EQ(job.receiver(0).serving(), 1u);
    ASSERT_EQ(job.TakeAt(2, 2), absl::OkStatus());
    job.Expect(2, 2);
    ExpectError(job.publisher(0).AwaitCommit(2, Soon()), ErrorCode::kPeerLost, "engine 0 worker 1");
    EXPECT_EQ(job.Difference(), "");
    // It starts again, whole, and is served what is there.
    job.KillReceiver(0);
    ASSERT_EQ(job.JoinEngine(0), absl::OkStatus());
    ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, 2); })), absl::OkStatus());
    for (size_t w : {0, 1}) job.Expect(w, 2);
    EXPECT_EQ(job.Difference(), "");
    ASSERT_EQ(job.Round(3), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  }
}

TEST(MembershipTest, APublisherWithoutAReplicaIsWaitedFor) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::Message() << "map " << way.map);
    JobConfig config;
    config.transport = OnMemory(way.map);
    config.shadow = {way.shadow, way.shadow};
    config.rejoin_ns = 10 * kMinute;
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.publisher(0).Publish(2, Soon()), absl::OkStatus());
    job.KillPublisher(1);
    // Nothing of generation 2 can come; its publisher hears who is missing, and for which tensor.
    ExpectError(job.publisher(0).AwaitCommit(2, Soon()), ErrorCode::kPeerLost, "publisher rank 1", "\"q\"");
    // Until it was told, its wait ends as any other.
    absl::Status waited;
    do {
      waited = job.receiver(0).NextGeneration(absl::Now()).status();
    } while (HasCode(waited, ErrorCode::kDeadline));
    ExpectError(waited, ErrorCode::kPeerLost, "publisher rank 1");
    EXPECT_EQ(job.receiver(0).serving(), 1u);
    EXPECT_EQ(job.receiver(0).status(), absl::OkStatus());
    // It comes back, and knows nothing of what was.
    ASSERT_EQ(job.JoinPublisher(1), absl::OkStatus());
    ASSERT_EQ(job.Round(3), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

TEST(MembershipTest, ACoordinatorIsRebuiltFromItsMembers) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(::testing::Message() << "map " << way.map);
    JobConfig config;
    config.transport = OnMemory(way.map);
    config.shadow = {way.shadow, way.shadow};
    config.rejoin_ns = 10 * kMinute;
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    // Idle.
    job.RestartCoordinator();
    ASSERT_EQ(job.Round(2), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
    // Published, not read.
    ASSERT_EQ(job.Publish(3), absl::OkStatus());
    job.RestartCoordinator();
    ASSERT_EQ(FirstError(job.Take(3)), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
    // Decided by one engine, committed by none.
    ASSERT_EQ(job.Publish(4), absl::OkStatus());
    ASSERT_TRUE(job.receiver(2).NextGeneration(Soon()).ok());
    ASSERT_EQ(job.receiver(2).Stage(4, job.ReceiverMemory(2)), absl::OkStatus());
    job.RestartCoordinator();
    ASSERT_EQ(job.receiver(2).Commit(4), absl::OkStatus());
    job.Expect(2, 4);
    ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, 4); })), absl::OkStatus());
    for (size_t w : {0, 1}) job.Expect(w, 4);
    EXPECT_EQ(job.Difference(), "");
    for (size_t p = 0; p < job.publishers(); ++p) {
      EXPECT_EQ(job.publisher(p).AwaitCommit(4, Soon()), absl::OkStatus());
    }
    ASSERT_EQ(job.Round(5), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

// NextGeneration returned it; what became of it since is why it cannot be staged.
TEST(MembershipTest, WhatWasAnnouncedAndIsGoneSaysWhy) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
    config.rejoin_ns = 10 * kMinute;
    Job job(TwoEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    for (size_t w : {0, 2}) ASSERT_TRUE(job.receiver(w).NextGeneration(Soon()).ok());
    // The worker's engine is broken.
    job.KillReceiver(1);
    while (!absl::StrContains(job.receiver(0).WaitingFor(), "engine 0 worker 1")) std::this_thread::yield();
    ExpectError(job.receiver(0).Stage(1, job.ReceiverMemory(0)), ErrorCode::kPeerLost, "engine 0 worker 1");
    // A publisher came back without it.
    job.KillPublisher(1);
    ASSERT_EQ(job.JoinPublisher(1), absl::OkStatus());
    ExpectError(job.receiver(2).Stage(1, job.ReceiverMemory(2)), ErrorCode::kAborted, "generation 1", "membership");
    ExpectError(job.receiver(2).Stage(7, job.ReceiverMemory(2)), ErrorCode::kInvalidOption, "generation 7");
    for (size_t w : {0, 2}) EXPECT_EQ(job.receiver(w).serving(), 0u);
    ASSERT_EQ(job.JoinReceiver(1), absl::OkStatus());
    ASSERT_EQ(job.Round(2), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  }
}

// One worker wrote live bytes of a generation that was decided when another worker of its engine died.
TEST(MembershipTest, AWorkerThatAppliedIsPoisonedUntilItsEngineIsWhole) {
  JobConfig config;
  config.rejoin_ns = 10 * kMinute;
  Job job(TwoEngines(), config);
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  ASSERT_EQ(job.Publish(2), absl::OkStatus());
  const auto staged = testing::ForAll(2, [&](size_t w) {
    EXPECT_TRUE(job.receiver(w).NextGeneration(Soon()).ok());
    return job.receiver(w).Stage(2, job.ReceiverMemory(w));
  });
  ASSERT_EQ(FirstError(staged), absl::OkStatus());
  ASSERT_EQ(job.receiver(0).Apply(2), absl::OkStatus());
  job.KillReceiver(1);
  ExpectError(job.receiver(0).Commit(2), ErrorCode::kPeerLost, "engine 0 worker 1");
  EXPECT_EQ(job.receiver(0).serving(), std::nullopt);
  ASSERT_EQ(job.JoinReceiver(1), absl::OkStatus());
  ASSERT_EQ(FirstError(job.Take(2)), absl::OkStatus());
  EXPECT_EQ(job.receiver(0).serving(), 2u);
  EXPECT_EQ(job.Difference(), "");
}

// What was committed was, also when its engine has left since and an epoch has begun without it.
TEST(MembershipTest, WhatAnEngineCommittedCountsWhenItIsGone) {
  Job job(Replicas(), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Round(1), absl::OkStatus());
  for (size_t w : {0, 1}) ASSERT_EQ(job.receiver(w).Close(Soon()), absl::OkStatus());
  ASSERT_EQ(job.publisher(0).Close(Soon()), absl::OkStatus());
  while (job.coordinator().status().epoch < 2 || job.coordinator().status().phase != Coordinator::Phase::kReady) {
    std::this_thread::yield();
  }
  EXPECT_EQ(job.publisher(1).AwaitCommit(1, Soon()), absl::OkStatus());
}

TEST(MembershipTest, AnEngineThatMakesThePlanImpossibleIsSentAway) {
  JobConfig config;
  config.late_engines = {1};
  Manifest m = TwoEngines();
  m.destination[10].pieces[0].tensor = "zzz";
  ASSERT_EQ(m.destination[10].rank, 2);
  Job job(m, config);
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(job.Publish(1), absl::OkStatus());
  ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, 1); })), absl::OkStatus());
  ExpectError(job.JoinEngine(1), ErrorCode::kUnknownTensor, "zzz");
  for (size_t w : {0, 1}) job.Expect(w, 1);
  EXPECT_EQ(job.Difference(), "");
  ASSERT_EQ(job.Publish(2), absl::OkStatus());
  ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return job.TakeAt(w, 2); })), absl::OkStatus());
}

}  // namespace
}  // namespace headrace
