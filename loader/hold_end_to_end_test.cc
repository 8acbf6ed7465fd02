// Publishers that hold their weights instead of copying them, in whole jobs in one process.
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "loader/testing/two_engines.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::ForAll;
using ::testing::HasSubstr;
using testing::HasUcx;
using testing::Job;
using testing::JobConfig;
using testing::MakeTransport;
using testing::OnMemory;
using testing::OnNcclChecker;
using testing::OnTransport;
using testing::Soon;
using testing::TwoEngines;

MemoryOptions NotRead() {
  MemoryOptions options;
  options.read = false;
  return options;
}

std::vector<std::pair<std::string, MakeTransport>> Ways() {
  std::vector<std::pair<std::string, MakeTransport>> ways = {{"mapped", OnMemory(true)},
                                                             {"mapped, not read", OnMemory(NotRead())},
                                                             {"messages", OnMemory(false)},
                                                             {"host", OnTransport("host")},
                                                             {"nccl", OnNcclChecker()}};
  if (HasUcx()) ways.emplace_back("ucx", OnTransport("ucx"));
  return ways;
}

JobConfig ConfigOf(const MakeTransport& transport) {
  JobConfig config;
  config.transport = transport;
  config.holding = {1, 2};  // 0 converts
  config.staging_bytes = 3 * 4 * config.chunk_bytes;
  return config;
}

TEST(HoldEndToEndTest, ManyGenerationsBesideOneThatCopies) {
  for (const auto& [name, transport] : Ways()) {
    for (Shadow shadow : {Shadow::kHost, Shadow::kOff}) {
      SCOPED_TRACE(name);
      JobConfig config = ConfigOf(transport);
      config.shadow = {shadow, shadow};
      Job job(TwoEngines(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      for (uint64_t generation : {1, 2, 3, 7, 8}) {
        ASSERT_EQ(job.Round(generation), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
      }
      EXPECT_LE(job.publisher(1).stats().snapshot_bytes, 64);
      EXPECT_LE(job.publisher(1).stats().peak_staging_bytes, config.staging_bytes);
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

TEST(HoldEndToEndTest, RandomManifests) {
  for (int seed = 0; seed < testing::Share(40); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = seed % 2 == 0 ? 1 : 3;
    Manifest m = RandomManifest(random, options);
    if (SourcesContradict(m)) continue;
    JobConfig config;
    config.transport = OnMemory(seed % 3 != 0);
    config.chunk_bytes = 64;
    config.staging_bytes = 64 << 10;
    config.seed = seed;
    std::map<int64_t, bool> converts;
    for (const Buffer& b : m.source) converts[b.rank] |= b.convert_rne;
    size_t publisher = 0;
    for (const auto& [rank, convert] : converts) {
      if (!convert) config.holding.insert(publisher);
      ++publisher;
    }
    Job job(m, config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2}) {
      ASSERT_EQ(job.Round(generation), absl::OkStatus());
      ASSERT_EQ(job.Difference(), "");
    }
    ASSERT_EQ(job.Close(), absl::OkStatus());
  }
}

// The trainer waits no longer for engine 1: it is told, keeps what it serves, and takes the next generation.
TEST(HoldEndToEndTest, WhatIsNotReadInTimeIsVoid) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    Job job(TwoEngines(), ConfigOf(transport));
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    ASSERT_EQ(FirstError(ForAll(2, [&](size_t w) { return job.TakeAt(w, 2); })), absl::OkStatus());
    for (size_t w : {0, 1}) job.Expect(w, 2);
    ASSERT_EQ(job.AwaitAt(2, 2), absl::OkStatus());
    EXPECT_EQ(job.publisher(0).AwaitRelease(2, absl::Now()), absl::OkStatus());  // its snapshot may be read for long
    for (size_t p : {1, 2}) {
      const absl::Status released = job.publisher(p).AwaitRelease(2, absl::Now());
      if (p == 2 && released.ok()) continue;  // engine 1 has heard of the other one's, and released both
      EXPECT_TRUE(HasCode(released, ErrorCode::kDeadline)) << released;
      EXPECT_THAT(std::string(released.message()), HasSubstr("engine 1 worker 0"));
    }
    const absl::Status late = job.StageAndCommit(2, 2);
    EXPECT_TRUE(HasCode(late, ErrorCode::kDeadline) || HasCode(late, ErrorCode::kGenerationChanged)) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr("publisher rank"));
    EXPECT_EQ(job.receiver(2).serving(), 1u);
    EXPECT_EQ(job.Difference(), "");
    ASSERT_EQ(job.Round(3), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

// A trainer that goes on while its weights are read.
TEST(HoldEndToEndTest, WeightsThatChangeTooEarlyAreNoticed) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    Job job(TwoEngines(), ConfigOf(transport));
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    std::byte* const changed = job.source().First(job.manifest().source[2]);  // "q.upper", of publisher 1
    *changed ^= std::byte{1};
    size_t noticed = 0;
    for (const absl::Status& status : job.Take(2)) {
      noticed += HasCode(status, ErrorCode::kVerificationFailed) ? 1 : 0;
      EXPECT_FALSE(status.ok());
    }
    EXPECT_GE(noticed, 2u);  // in each engine
    EXPECT_EQ(job.Difference(), "");
    for (size_t p : {1, 2}) EXPECT_EQ(job.publisher(p).AwaitRelease(2, Soon()), absl::OkStatus());
    ASSERT_EQ(job.Round(3), absl::OkStatus());
    ASSERT_EQ(job.Difference(), "");
  }
}

Manifest Replicas() {
  const TensorSpec a{"a", {64, 24}, Dtype::kBF16}, b{"b", {300}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  for (int64_t r : {0, 1}) m.source.insert(m.source.end(), {WholeBuffer(r, a), WholeBuffer(r, b)});
  for (int64_t r : {0, 1}) {
    m.destination.insert(m.destination.end(), {WholeBuffer(r, a), WholeBuffer(r, b)});
    m.topology.destination.push_back({r, "", "", "e" + std::to_string(r)});
  }
  return m;
}

TEST(HoldEndToEndTest, AReplicaTakesTheLoadOfOneThatDies) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    JobConfig config;
    config.transport = transport;
    config.holding = {0, 1};
    config.rejoin_ns = 60'000'000'000;
    Job job(Replicas(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Round(1), absl::OkStatus());
    ASSERT_EQ(job.Publish(2), absl::OkStatus());
    ASSERT_EQ(FirstError(ForAll(3,
                                [&](size_t i) {
                                  if (i < 2) return job.TakeAt(i, 2);
                                  job.KillPublisher(0);
                                  return absl::OkStatus();
                                })),
              absl::OkStatus());
    for (size_t w : {0, 1}) job.Expect(w, 2);
    EXPECT_EQ(job.Difference(), "");
    ASSERT_EQ(job.publisher(1).AwaitRelease(2, Soon()), absl::OkStatus());
    ASSERT_EQ(job.JoinPublisher(0), absl::OkStatus());
    ASSERT_EQ(job.Round(3), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
  }
}

// An engine that comes late reads what is held; what was released is not there any more.
TEST(HoldEndToEndTest, AnEngineThatComesLate) {
  for (const auto& [name, transport] : Ways()) {
    for (bool released : {false, true}) {
      SCOPED_TRACE(name);
      JobConfig config;
      config.transport = transport;
      config.holding = {0, 1};
      config.late_engines = {1};
      Job job(Replicas(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      ASSERT_EQ(job.Publish(1), absl::OkStatus());
      ASSERT_EQ(job.TakeAt(0, 1), absl::OkStatus());
      job.Expect(0, 1);
      if (released) {
        for (size_t p : {0, 1}) ASSERT_EQ(job.publisher(p).AwaitRelease(1, Soon()), absl::OkStatus());
      }
      ASSERT_EQ(job.JoinEngine(1), absl::OkStatus());
      if (released) {
        const absl::Status none = job.receiver(1).NextGeneration(absl::Now()).status();
        EXPECT_TRUE(HasCode(none, ErrorCode::kDeadline)) << none;
      } else {
        ASSERT_EQ(job.TakeAt(1, 1), absl::OkStatus());
        job.Expect(1, 1);
        for (size_t p : {0, 1}) ASSERT_EQ(job.publisher(p).AwaitRelease(1, Soon()), absl::OkStatus());
      }
      EXPECT_EQ(job.Difference(), "");
      ASSERT_EQ(job.Round(2), absl::OkStatus());
      EXPECT_EQ(job.Difference(), "");
    }
  }
}

// The rings are an epoch's; who went away with it leaves nothing behind at the publishers.
TEST(HoldEndToEndTest, DescriptorsStayWhenAReceiverComesBack) {
  // But for the checker's device memory: the more groups of messages ever ran at once, the more of it is kept.
  const auto descriptors = [] {
    std::ptrdiff_t count = 0;
    for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;  // closed since it was listed
      const std::string what = std::filesystem::read_symlink(one.path(), gone).string();
      count += what.find("headrace_nccl_checker_device") == std::string::npos;
    }
    return count;
  };
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    JobConfig config;
    config.transport = transport;
    config.holding = {0, 1};
    config.rejoin_ns = 60'000'000'000;
    Job job(Replicas(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    std::ptrdiff_t first = 0;
    for (uint64_t generation = 1; generation <= 6; ++generation) {
      ASSERT_EQ(job.Round(generation), absl::OkStatus());
      if (generation == 2) first = descriptors();
      if (generation == 6) break;
      job.KillReceiver(1);
      ASSERT_EQ(job.JoinReceiver(1), absl::OkStatus());
    }
    // What the dead one's end of a connection was is closed by a thread of its own. A leak would be of one for each of
    // the four that came back, at least.
    const std::ptrdiff_t most = first + 2;
    for (const absl::Time end = Soon(); descriptors() > most && absl::Now() < end;) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_LE(descriptors(), most);
  }
}

TEST(HoldEndToEndTest, WhatCannotBe) {
  JobConfig converts = ConfigOf(OnMemory(true));
  converts.holding = {0};
  Job job(TwoEngines(), converts);
  const auto joined =
      Publisher::Join(job.OptionsOfPublisher(0), job.PublisherPart(0), job.PublisherMemory(0), converts.transport());
  EXPECT_TRUE(HasCode(joined.status(), ErrorCode::kInvalidOption)) << joined.status();
  EXPECT_THAT(std::string(joined.status().message()), HasSubstr("\"q.lower\""));

  JobConfig tight = ConfigOf(OnMemory(true));
  tight.staging_bytes = 3 * 4 * tight.chunk_bytes - 1;
  Job small(TwoEngines(), tight);
  const absl::Status status = FirstError(small.Join());
  EXPECT_TRUE(HasCode(status, ErrorCode::kStagingTooSmall)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes 3072 bytes; staging_bytes is 3071"));

  Job early(TwoEngines(), ConfigOf(OnMemory(true)));
  ASSERT_EQ(FirstError(early.Join()), absl::OkStatus());
  ASSERT_EQ(early.Publish(1), absl::OkStatus());
  EXPECT_TRUE(HasCode(early.publisher(1).Publish(2, Soon()), ErrorCode::kInvalidOption));
  // Its weights may not change because of another generation's release.
  const absl::Status other = early.publisher(1).AwaitRelease(2, Soon());
  EXPECT_TRUE(HasCode(other, ErrorCode::kInvalidOption)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("holds generation 1"));
}

// A replica that came back without the generation cannot have it announced again: who has it reads it no more.
TEST(HoldEndToEndTest, WhatAReplicaThatCameBackLacksIsReleasedByThoseWhoHaveIt) {
  for (const auto& [name, transport] : Ways()) {
    SCOPED_TRACE(name);
    JobConfig config;
    config.transport = transport;
    config.holding = {0, 1};
    config.rejoin_ns = 60'000'000'000;
    Job job(Replicas(), config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    ASSERT_EQ(job.Publish(1), absl::OkStatus());
    ASSERT_EQ(FirstError(job.Take(1)), absl::OkStatus());
    job.KillPublisher(0);
    ASSERT_EQ(job.JoinPublisher(0), absl::OkStatus());
    ASSERT_EQ(job.publisher(1).AwaitRelease(1, Soon()), absl::OkStatus());
    for (uint64_t generation : {2, 3}) {
      ASSERT_EQ(job.Round(generation), absl::OkStatus());
      ASSERT_EQ(job.Difference(), "");
    }
  }
}

}  // namespace
}  // namespace headrace
