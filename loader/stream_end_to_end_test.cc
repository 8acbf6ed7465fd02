// Whole jobs whose bytes enter a host once and are passed on there, over transports that send messages.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::FirstError;
using testing::HasUcx;
using testing::Job;
using testing::JobConfig;
using testing::MakeTransport;
using testing::OnMemory;
using testing::OnNcclChecker;
using testing::OnTransport;

// Messages: over memory, NCCL, and UCX where it is installed.
std::vector<MakeTransport> Ways() {
  std::vector<MakeTransport> ways = {OnMemory(/*map=*/false), OnNcclChecker()};
  if (HasUcx()) ways.push_back(OnTransport("ucx"));
  return ways;
}

// Two publishers on one host with halves of "w" and a tensor each; two engines of two workers on another host, and one
// of one worker on a third. Everyone wants everything.
Manifest Relayed() {
  const TensorSpec w{"w", {64, 24}, Dtype::kBF16}, a{"a", {500}, Dtype::kF32}, b{"b", {300}, Dtype::kU8};
  Manifest m;
  m.tensors = {w, a, b};
  m.source = {BufferOf(0, "w", w.dtype, {32, 24}, {PieceOf("w", {0, 0}, {32, 24}, {0, 0})}), WholeBuffer(0, a),
              BufferOf(1, "w", w.dtype, {32, 24}, {PieceOf("w", {32, 0}, {32, 24}, {0, 0})}), WholeBuffer(1, b)};
  m.topology.source = {{0, "s", "", ""}, {1, "s", "", ""}};
  for (int r = 0; r < 5; ++r) {
    for (const TensorSpec& t : m.tensors) m.destination.push_back(WholeBuffer(r, t));
    m.topology.destination.push_back({r, r < 4 ? "d" : "e", "", "e" + std::to_string(r / 2)});
  }
  return m;
}

TEST(StreamEndToEndTest, ManyGenerations) {
  const auto plan = BuildPlan(Relayed());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GE(plan->streams.size(), 2u);
  for (const MakeTransport& transport : Ways()) {
    for (int64_t staging : {256, 4096}) {
      JobConfig config;
      config.transport = transport;
      config.staging_bytes = staging;
      Job job(Relayed(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      for (uint64_t generation : {1, 2, 3, 7}) {
        ASSERT_EQ(job.Round(generation), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
      }
      for (size_t w = 0; w < job.workers().size(); ++w) {
        EXPECT_LE(job.receiver(w).stats().peak_staging_bytes, staging);
        EXPECT_EQ(job.receiver(w).stats().bytes, 64 * 24 * 2 + 2000 + 300);
      }
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

TEST(StreamEndToEndTest, RandomManifests) {
  for (int seed = 0; seed < testing::Share(30); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = static_cast<int>(Uniform(random, 2, 3));
    const Manifest m = RandomManifest(random, options);
    if (SourcesContradict(m)) continue;
    JobConfig config;
    config.transport = OnMemory(/*map=*/false);
    config.chunk_bytes = 64;
    config.staging_bytes = 64 * Uniform(random, 1, 4);
    Job job(m, config);
    ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2}) {
      ASSERT_EQ(job.Round(generation), absl::OkStatus());
      ASSERT_EQ(job.Difference(), "");
    }
    EXPECT_EQ(job.Close(), absl::OkStatus());
  }
}

// What spoils the bytes of one worker spoils those of all that get them from it; the next generation is whole.
TEST(StreamEndToEndTest, AGenerationThatIsGivenUpInTheMiddleOfChains) {
  for (const MakeTransport& transport : Ways()) {
    for (size_t unlucky : {size_t{0}, size_t{1}, size_t{3}}) {
      SCOPED_TRACE(::testing::Message() << "worker " << unlucky);
      JobConfig config;
      config.transport = transport;
      Job job(Relayed(), config);
      testing::TransportTap tap;
      job.receiver_transport = [&](size_t worker) -> std::unique_ptr<Transport> {
        if (worker != unlucky) return transport();
        return testing::NewTappedTransport(transport(), &tap);
      };
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      ASSERT_EQ(job.Round(1), absl::OkStatus());
      tap.corrupt = true;
      ASSERT_EQ(job.Publish(2), absl::OkStatus());
      const std::vector<absl::Status> taken = job.Take(2);
      EXPECT_FALSE(taken[unlucky].ok());
      tap.corrupt = false;
      EXPECT_EQ(job.Difference(), "");
      for (uint64_t generation : {3, 4}) {
        ASSERT_EQ(job.Round(generation), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
      }
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

// A worker that takes no part tells those who wait for it: nobody runs into the deadline.
TEST(StreamEndToEndTest, AWorkerWhoseBuffersMoved) {
  for (const MakeTransport& transport : Ways()) {
    for (size_t unlucky : {size_t{0}, size_t{3}}) {
      SCOPED_TRACE(::testing::Message() << "worker " << unlucky);
      JobConfig config;
      config.transport = transport;
      Job job(Relayed(), config);
      ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
      ASSERT_EQ(job.Round(1), absl::OkStatus());
      ASSERT_EQ(job.Publish(2), absl::OkStatus());
      // All know of it before one gives it up.
      ASSERT_EQ(FirstError(testing::ForAll(5, [&](size_t w) { return job.AwaitAt(w, 2); })), absl::OkStatus());
      const std::vector<absl::Status> taken = testing::ForAll(5, [&](size_t w) -> absl::Status {
        if (w != unlucky) return job.StageAndCommit(w, 2);
        std::map<std::string, BufferMemory> memory = job.ReceiverMemory(w);
        memory.begin()->second.data += 64;
        return job.receiver(w).Stage(2, memory);
      });
      EXPECT_TRUE(HasCode(taken[unlucky], ErrorCode::kDestinationMoved)) << taken[unlucky];
      EXPECT_EQ(taken[4], absl::OkStatus());
      for (size_t w = 0; w < taken.size(); ++w) {
        EXPECT_FALSE(HasCode(taken[w], ErrorCode::kDeadline)) << taken[w];
        if (taken[w].ok()) job.Expect(w, 2);
      }
      EXPECT_EQ(job.Difference(), "");
      for (uint64_t generation : {3, 4}) {
        ASSERT_EQ(job.Round(generation), absl::OkStatus());
        ASSERT_EQ(job.Difference(), "");
      }
      EXPECT_EQ(job.Close(), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace headrace
