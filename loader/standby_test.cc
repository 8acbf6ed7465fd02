// Engines that take weights from other engines, since no trainer is left.
#include "loader/standby.h"

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/transports.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::ForAll;
using testing::HasUcx;
using testing::Job;
using testing::JobConfig;
using testing::MakeTransport;
using testing::OnMemory;
using testing::OnNcclChecker;
using testing::OnTransport;
using testing::Soon;

std::vector<std::pair<std::string, MakeTransport>> Ways() {
  std::vector<std::pair<std::string, MakeTransport>> ways = {{"mapped", OnMemory(true)},
                                                             {"messages", OnMemory(false)},
                                                             {"host", OnTransport("host")},
                                                             {"nccl", OnNcclChecker()}};
  if (HasUcx()) ways.emplace_back("ucx", OnTransport("ucx"));
  return ways;
}

// Two trainers with halves. Engine "e0" of two workers (0, 1) that cut the other way, with padding and a buffer that
// nobody sends; "e1" of one worker (2) and "e2" of one worker (3) with everything.
Manifest ThreeEngines() {
  const TensorSpec a{"a", {8, 6}, Dtype::kBF16}, b{"b", {5}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  for (int64_t r : {0, 1})
    m.source.push_back(BufferOf(r, "a", a.dtype, {4, 6}, {PieceOf("a", {4 * r, 0}, {4, 6}, {0, 0})}));
  m.source.push_back(WholeBuffer(1, b));
  for (int64_t r : {0, 1}) {
    m.destination.push_back(BufferOf(
        r, "a", a.dtype, {9, 3}, {PieceOf("a", {0, 3 * r}, {8, 3}, {0, 0}), FillOf(PieceKind::kZero, {1, 3}, {8, 0})}));
    m.destination.push_back(WholeBuffer(r, b));
    m.destination.push_back(BufferOf(r, "rotary", Dtype::kF32, {3}, {FillOf(PieceKind::kKeep, {3}, {0})}));
    m.topology.destination.push_back({r, "", "", "e0"});
  }
  for (int64_t r : {2, 3}) {
    m.destination.push_back(WholeBuffer(r, a));
    m.destination.push_back(WholeBuffer(r, b));
    m.topology.destination.push_back({r, "", "", "e" + std::to_string(r - 1)});
  }
  return m;
}

JobConfig ConfigOf(const MakeTransport& transport) {
  JobConfig config;
  config.transport = transport;
  config.standing_by = {0, 1, 2};
  config.staging_bytes = 64 * config.chunk_bytes;
  return config;
}

void TakeAll(Job* job, const std::vector<size_t>& workers, uint64_t generation) {
  ASSERT_EQ(FirstError(ForAll(workers.size(), [&](size_t i) { return job->TakeAt(workers[i], generation); })),
            absl::OkStatus());
  for (size_t w : workers) job->Expect(w, generation);
}

TEST(StandbyTest, WhatAWorkerOffers) {
  StandbyOptions options;
  options.engine = 3;
  options.worker = 1;
  const Manifest job = ThreeEngines();
  Manifest part;
  for (const Buffer& b : job.destination)
    if (b.rank == 1) part.destination.push_back(b);
  Buffer alias = part.destination[1];
  alias.name = "tied";
  alias.alias_of = "b";
  alias.pieces.clear();
  part.destination.push_back(alias);
  part.topology.destination = {{1, "h", "d", "e0"}};
  const Manifest source = SourcePartOf(options, part, job);
  EXPECT_TRUE(source.destination.empty());
  ASSERT_EQ(source.source.size(), 2u);  // neither what nobody sends nor a second name
  EXPECT_EQ(source.source[0].pieces.size(), 1u);
  EXPECT_EQ(source.tensors.size(), 2u);
  ASSERT_EQ(source.topology.source.size(), 1u);
  EXPECT_EQ(source.topology.source[0].host, "h");
  for (const Buffer& b : source.source) EXPECT_EQ(MemberKey::Publisher(b.rank), MemberKey::Standby(3, 1));
  EXPECT_EQ(MemberKey::Standby(3, 1).worker_of_standby(), MemberKey::Receiver(3, 1));
}

// The trainers leave; an engine that comes then gets the newest generation, and so does the next one.
TEST(StandbyTest, LateEnginesTakeTheNewestGenerationFromOthers) {
  for (const auto& [name, transport] : Ways()) {
    for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
      SCOPED_TRACE(name);
      JobConfig config = ConfigOf(transport);
      config.late_engines = {1, 2};
      config.shadow = {shadow, shadow, shadow};
      Job job(ThreeEngines(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      for (uint64_t generation : {1, 5}) {
        ASSERT_EQ(job.Publish(generation), absl::OkStatus());
        TakeAll(&job, {0, 1}, generation);
      }
      ASSERT_EQ(FirstError(ForAll(2, [&](size_t p) { return job.publisher(p).Close(Soon()); })), absl::OkStatus());
      ASSERT_EQ(job.JoinEngine(1), absl::OkStatus());
      TakeAll(&job, {2}, 5);
      EXPECT_EQ(job.Difference(), "");
      ASSERT_EQ(job.JoinEngine(2), absl::OkStatus());
      TakeAll(&job, {3}, 5);
      EXPECT_EQ(job.Difference(), "");
      for (size_t w : {0, 1, 2, 3}) EXPECT_EQ(job.receiver(w).serving(), 5u);
    }
  }
}

// The trainers crash and come back: everybody takes what they publish next.
TEST(StandbyTest, TrainersThatComeBackAreTheSourcesAgain) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    JobConfig config = ConfigOf(transport);
    config.late_engines = {1, 2};
    config.rejoin_ns = 600'000'000'000;
    Job job(ThreeEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    TakeAll(&job, {0, 1}, 1);
    for (size_t p : {0, 1}) job.KillPublisher(p);
    ASSERT_EQ(job.JoinEngine(1), absl::OkStatus());
    TakeAll(&job, {2}, 1);
    EXPECT_EQ(job.Difference(), "");
    ASSERT_EQ(FirstError(ForAll(2, [&](size_t p) { return job.JoinPublisher(p); })), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    TakeAll(&job, {0, 1, 2}, 2);
    EXPECT_EQ(job.Difference(), "");
    // And again, out of what the engines hold now.
    for (size_t p : {0, 1}) job.KillPublisher(p);
    ASSERT_EQ(job.JoinEngine(2), absl::OkStatus());
    TakeAll(&job, {3}, 2);
    EXPECT_EQ(job.Difference(), "");
  }
}

// A source dies while it is read: another engine that holds the generation goes on.
TEST(StandbyTest, ASourceThatDiesIsReplacedByAnother) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    JobConfig config = ConfigOf(transport);
    config.late_engines = {2};
    config.rejoin_ns = 600'000'000'000;
    Job job(ThreeEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    TakeAll(&job, {0, 1, 2}, 1);
    for (size_t p : {0, 1}) job.KillPublisher(p);
    ASSERT_EQ(job.JoinEngine(2), absl::OkStatus());
    ASSERT_EQ(FirstError(ForAll(2,
                                [&](size_t i) {
                                  if (i == 0) return job.TakeAt(3, 1);
                                  job.KillReceiver(0);
                                  return absl::OkStatus();
                                })),
              absl::OkStatus());
    job.Expect(3, 1);
    EXPECT_EQ(job.Difference(), "");
  }
}

// With a shadow, Stage writes the buffers that the engine does not compute with. Where it gives the generation up, the
// worker serves the old one and yet does not hold it any more.
TEST(StandbyTest, WhatStageWroteIsOfferedByNobody) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    JobConfig config = ConfigOf(transport);
    config.late_engines = {2};
    config.not_live = {{0, "a"}};
    config.rejoin_ns = 600'000'000'000;
    Job job(ThreeEngines(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    TakeAll(&job, {0, 1, 2}, 1);
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    for (size_t w : {0, 1}) ASSERT_EQ(job.AwaitAt(w, 2), absl::OkStatus());
    // Worker 0 has all of it, the other one nothing.
    ForAll(2, [&](size_t w) {
      auto memory = job.ReceiverMemory(w);
      if (w == 1) memory.erase("b");
      return job.receiver(w).Stage(2, memory);
    });
    EXPECT_EQ(job.receiver(0).serving(), 1u);
    for (size_t p : {0, 1}) job.KillPublisher(p);
    ASSERT_EQ(job.JoinEngine(2), absl::OkStatus());
    TakeAll(&job, {3}, 1);
    for (const Buffer& b : job.manifest().destination) {
      if (b.rank != 3) continue;
      EXPECT_EQ(std::memcmp(job.live().First(b), job.wanted().First(b), SpanBytes(b, b.dtype)), 0) << b.name;
    }
  }
}

}  // namespace
}  // namespace headrace
