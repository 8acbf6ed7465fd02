// Whole jobs whose weights never leave the GPUs: what engines hold is compared with the naive oracle, gaps and guards
// included.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/gpu_options.h"
#include "loader/slot.h"
#include "loader/testing/gpu_job.h"
#include "loader/testing/two_engines.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::Cuda;
using testing::ExpectError;
using testing::FillGpu;
using testing::FirstError;
using testing::Gate;
using testing::GpuJob;
using testing::Gpus;
using testing::Job;
using testing::JobConfig;
using testing::OnMembersGpu;
using testing::OnMemory;
using testing::Soon;
using testing::TwoEngines;

struct Way {
  std::string name;
  testing::MakeTransport transport;
};

std::vector<Way> WaysOfMessages() { return {{"messages", OnMemory(false)}, {"nccl", OnMembersGpu("nccl")}}; }
std::vector<Way> Ways() {
  std::vector<Way> ways = WaysOfMessages();
  ways.push_back({"cuda", OnMembersGpu("cuda")});
  return ways;
}

// What is on a GPU stays there: packed out of the weights, unpacked into a second set of buffers or the live ones. One
// publisher converts, by way of the host.
TEST(GpuOnlyTest, HeldAndUnpackedOnGpus) {
  for (const Way& way : WaysOfMessages()) {
    for (const auto& [first, second] : {std::pair{Shadow::kDevice, Shadow::kOff}, {Shadow::kHost, Shadow::kDevice}}) {
      SCOPED_TRACE(way.name);
      JobConfig config;
      config.transport = way.transport;
      config.holding = {1, 2};
      config.shadow = {first, second};
      GpuJob gpu(TwoEngines(), config);
      ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
      for (uint64_t generation : {1, 2, 3, 7}) {
        ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
        ASSERT_EQ(gpu.Difference(), "");
      }
      EXPECT_LE(gpu.job.publisher(1).stats().snapshot_bytes, 64);
      EXPECT_LE(gpu.job.publisher(1).stats().peak_staging_bytes, config.staging_bytes);
      EXPECT_GT(gpu.job.receiver(0).stats().shadow_bytes, 0);
      EXPECT_LE(gpu.job.receiver(0).stats().peak_staging_bytes, config.staging_bytes);
      EXPECT_EQ(gpu.job.Close(), absl::OkStatus());
    }
  }
}

// Snapshots in the trainer's GPU, converted there, of which the engine's GPU copies what it needs.
TEST(GpuOnlyTest, MappedByGpus) {
  for (const auto& [first, second] : {std::pair{Shadow::kDevice, Shadow::kOff}, {Shadow::kOff, Shadow::kDevice}}) {
    JobConfig config;
    config.transport = OnMembersGpu("cuda");
    config.shadow = {first, second};
    GpuJob gpu(TwoEngines(), config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2, 3, 7}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    EXPECT_GT(gpu.job.publisher(0).stats().snapshot_bytes, 64);
    EXPECT_EQ(gpu.job.publisher(0).stats().pinned_bytes, 0);  // nothing is on the host
    EXPECT_EQ(gpu.job.receiver(0).stats().shadow_bytes > 0, first == Shadow::kDevice);
    EXPECT_EQ(gpu.job.receiver(0).stats().pinned_bytes, 0);
    EXPECT_EQ(gpu.job.Close(), absl::OkStatus());
  }
}

// Until it is staged the engine serves what it had; a shadow on the GPU changes nothing of that. Nor is a buffer
// written that the engine's loading code reads, whose work on the GPU may be under way.
TEST(GpuOnlyTest, AShadowOnTheGpuLeavesTheLiveBuffers) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    config.shadow = {Shadow::kDevice, Shadow::kDevice};
    config.not_live = {{0, "b"}};
    GpuJob gpu(WholeManifest({{"a", {64, 24}, Dtype::kBF16}, {"b", {300}, Dtype::kF32}}), config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    ASSERT_EQ(gpu.Round(1), absl::OkStatus());
    ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
    ASSERT_EQ(gpu.job.AwaitAt(0, 2), absl::OkStatus());
    ASSERT_EQ(gpu.job.receiver(0).Stage(2, gpu.job.ReceiverMemory(0)), absl::OkStatus());
    EXPECT_EQ(gpu.Difference(), "");  // of generation 1
    ASSERT_EQ(gpu.job.receiver(0).Commit(2), absl::OkStatus());
    gpu.job.Expect(0, 2);
    EXPECT_EQ(gpu.Difference(), "");
  }
}

// Steps that do not end are no matter of what streams into a shadow, small messages of a sender on the host included.
TEST(GpuOnlyTest, IntoAShadowOnTheGpuNothingWaitsForTheEnginesSteps) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    config.shadow = {Shadow::kDevice};
    config.chunk_bytes = 256;
    GpuJob gpu(WholeManifest({{"a", {66}, Dtype::kF32}}), config);  // the last message has 8 bytes
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    ASSERT_EQ(gpu.Round(1), absl::OkStatus());
    ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
    ASSERT_EQ(gpu.job.AwaitAt(0, 2), absl::OkStatus());
    const CurrentDevice current(Cuda(), gpu.GpuOfWorker(0));
    Gate step(nullptr);
    ASSERT_EQ(gpu.job.receiver(0).Stage(2, gpu.job.ReceiverMemory(0)), absl::OkStatus());
    EXPECT_EQ(gpu.job.receiver(0).serving(), 1u);
    step.Open();
    ASSERT_EQ(gpu.job.receiver(0).Commit(2), absl::OkStatus());
    gpu.job.Expect(0, 2);
    EXPECT_EQ(gpu.Difference(), "");
  }
}

// A worker that comes back maps the snapshot that is there.
TEST(GpuOnlyTest, AnEngineThatComesAgain) {
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  config.shadow = {Shadow::kDevice, Shadow::kDevice};
  config.rejoin_ns = 60'000'000'000;
  GpuJob gpu(TwoEngines(), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  gpu.job.KillReceiver(2);
  ASSERT_EQ(gpu.job.JoinReceiver(2), absl::OkStatus());
  ASSERT_EQ(gpu.job.TakeAt(2, 1), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
  ASSERT_EQ(gpu.Round(2), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// A change of the membership takes no more of the GPU's memory than there was when the member joined.
TEST(GpuOnlyTest, AnEngineThatComesWhenTheGpuIsFull) {
  if (Gpus() < 8) GTEST_SKIP() << "the members that come are on the GPU that is full";
  for (const Way& way : {Way{"messages", OnMemory(false)}, Way{"cuda", OnMembersGpu("cuda")}}) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    config.shadow = {Shadow::kDevice};
    if (way.name == "cuda") config.shadow.push_back(Shadow::kDevice);
    config.late_engines = {1};
    GpuJob gpu(TwoEngines(), config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    ASSERT_EQ(gpu.Publish(1), absl::OkStatus());
    ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return gpu.job.TakeAt(w, 1); })), absl::OkStatus());
    const auto of_trainer = FillGpu(GpuJob::SourceGpu(0)), of_worker = FillGpu(gpu.GpuOfWorker(0));
    ASSERT_EQ(gpu.job.JoinEngine(1), absl::OkStatus());
    ASSERT_EQ(gpu.job.TakeAt(2, 1), absl::OkStatus());
    ASSERT_EQ(gpu.Round(2), absl::OkStatus());
    EXPECT_EQ(gpu.Difference(), "");
  }
}

// In place the first live write is Stage's.
TEST(GpuOnlyTest, InPlaceTheFirstWriteWaitsForTheEnginesSteps) {
  JobConfig config;
  config.transport = OnMemory(false);
  config.shadow = {Shadow::kOff};
  config.transfer_timeout = absl::Seconds(4);  // of a transfer that takes milliseconds
  GpuJob gpu(WholeManifest({{"a", {64, 24}, Dtype::kBF16}}), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
  ASSERT_EQ(gpu.job.AwaitAt(0, 2), absl::OkStatus());
  const cuda::Stream steps = gpu.live.StreamOf(gpu.GpuOfWorker(0));
  Gate step(steps);
  ExpectError(gpu.job.receiver(0).Stage(2, gpu.job.ReceiverMemory(0), steps), ErrorCode::kDeadline, "GPU");
  EXPECT_EQ(gpu.job.receiver(0).serving(), 1u);
  step.Open();
  EXPECT_EQ(gpu.Difference(), "");  // of generation 1
  // That worker gave it up, which is over for the whole engine.
  ASSERT_EQ(gpu.Round(3), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
  // An engine's step that ends in time.
  ASSERT_EQ(gpu.Publish(4), absl::OkStatus());
  ASSERT_EQ(gpu.job.AwaitAt(0, 4), absl::OkStatus());
  std::atomic<bool> ended = false;
  const auto end = [](void* ended) {
    absl::SleepFor(absl::Milliseconds(50));
    static_cast<std::atomic<bool>*>(ended)->store(true);
  };
  ASSERT_EQ(Cuda().cudaLaunchHostFunc(steps, end, &ended), cuda::kSuccess);
  ASSERT_EQ(gpu.job.receiver(0).Stage(4, gpu.job.ReceiverMemory(0), steps), absl::OkStatus());
  EXPECT_TRUE(ended);
  ASSERT_EQ(gpu.job.receiver(0).Commit(4, steps), absl::OkStatus());
  gpu.job.Expect(0, 4);
  EXPECT_EQ(gpu.Difference(), "");
}

// The same by snapshots that GPUs map, with whatever is converted.
TEST(GpuOnlyTest, RandomManifestsMappedByGpus) {
  const char* given = std::getenv("HEADRACE_TEST_SEED");
  const uint64_t first = given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
  int converted = 0;
  for (uint64_t seed = first; seed < first + std::max(12, testing::Share(60)); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << seed);
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = static_cast<int>(Uniform(random, 1, 3));
    options.broadcast_percent = seed % 5 == 0 ? 50 : 0;
    Manifest m = RandomManifest(random, options);
    if (SourcesContradict(m)) continue;
    if (seed % 2 == 0) testing::WidenSources(seed, &m);
    for (const Buffer& b : m.source) converted += b.convert_rne;
    JobConfig config;
    config.transport = OnMembersGpu("cuda");
    config.policy = seed % 5 == 0 ? "hybrid" : "auto";
    config.seed = seed;
    config.shadow.assign(8, seed % 3 == 0 ? Shadow::kDevice : Shadow::kOff);
    GpuJob gpu(m, config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2, 3}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    ASSERT_EQ(gpu.job.Close(), absl::OkStatus());
  }
  EXPECT_GT(converted, 0);
}

// Replicas, strides with gaps, fills and aliases, all on GPUs, held where nothing is converted, into shadows on the GPU
// and in place; passed on within hosts. Chunks end inside elements and runs, and there may be a single one.
TEST(GpuOnlyTest, RandomManifestsHeldOnGpus) {
  const char* given = std::getenv("HEADRACE_TEST_SEED");
  const uint64_t first = given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
  int held = 0;
  for (uint64_t seed = first; seed < first + std::max(12, testing::Share(60)); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << seed);
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = static_cast<int>(Uniform(random, 1, 3));
    options.broadcast_percent = seed % 5 == 0 ? 50 : 0;
    Manifest m = RandomManifest(random, options);
    if (SourcesContradict(m)) continue;
    if (seed % 2 == 0) testing::WidenSources(seed, &m);
    std::map<int64_t, bool> converts;
    for (const Buffer& b : m.source) converts[b.rank] |= b.convert_rne;
    JobConfig config;
    size_t publisher = 0;
    for (const auto& [rank, convert] : converts) {
      if (!convert) config.holding.insert(publisher);
      ++publisher;
    }
    held += static_cast<int>(config.holding.size());
    config.transport = seed % 3 == 0 ? OnMembersGpu("nccl") : OnMemory(false);
    config.policy = seed % 5 == 0 ? "hybrid" : "auto";
    config.chunk_bytes = Uniform(random, 64, 130);
    config.staging_bytes = config.chunk_bytes * Uniform(random, 1, 5);
    config.seed = seed;
    config.shadow.assign(8, seed % 2 == 0 ? Shadow::kDevice : Shadow::kOff);
    GpuJob gpu(m, config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    ASSERT_EQ(gpu.job.Close(), absl::OkStatus());
  }
  EXPECT_GT(held, 0);
}

// One of two data-parallel ranks dies while both hold: the other one's GPU sends all.
TEST(GpuOnlyTest, AReplicaTakesTheLoadOfOneThatDies) {
  const TensorSpec a{"a", {64, 24}, Dtype::kBF16}, b{"b", {300}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  for (int64_t rank : {0, 1}) m.source.insert(m.source.end(), {WholeBuffer(rank, a), WholeBuffer(rank, b)});
  for (int64_t rank : {0, 1}) {
    m.destination.insert(m.destination.end(), {WholeBuffer(rank, a), WholeBuffer(rank, b)});
    m.topology.destination.push_back({rank, "", "", "e" + std::to_string(rank)});
  }
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    if (way.name != "cuda") config.holding = {0, 1};
    config.shadow = {Shadow::kDevice, Shadow::kOff};
    config.rejoin_ns = 60'000'000'000;
    GpuJob gpu(m, config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    ASSERT_EQ(gpu.Round(1), absl::OkStatus());
    ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
    ASSERT_EQ(FirstError(testing::ForAll(3,
                                         [&](size_t i) {
                                           if (i < 2) return gpu.job.TakeAt(i, 2);
                                           gpu.job.KillPublisher(0);
                                           return absl::OkStatus();
                                         })),
              absl::OkStatus());
    for (size_t worker : {0, 1}) gpu.job.Expect(worker, 2);
    EXPECT_EQ(gpu.Difference(), "");
    ASSERT_EQ(gpu.job.publisher(1).AwaitRelease(2, Soon()), absl::OkStatus());
    ASSERT_EQ(gpu.job.JoinPublisher(0), absl::OkStatus());
    ASSERT_EQ(gpu.Round(3), absl::OkStatus());
    EXPECT_EQ(gpu.Difference(), "");
  }
}

// What offers nothing may lie anywhere.
TEST(GpuOnlyTest, HeldBesideABufferThatOffersNothing) {
  JobConfig config;
  config.transport = OnMemory(false);
  config.holding = {0};
  Manifest m = WholeManifest({{"a", {4}, Dtype::kF32}});
  m.source.push_back(BufferOf(0, "spare", Dtype::kF32, {4}, {}));
  GpuJob gpu(m, config, [](const Buffer& b) { return b.name != "spare"; });
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// Receivers map the host's memory alone.
TEST(GpuOnlyTest, WhatCannotBeOverATransportThatMaps) {
  JobConfig config;
  config.transport = OnMemory(true);
  GpuJob gpu(WholeManifest({{"a", {4}, Dtype::kF32}}), config);
  Job& job = gpu.job;
  PublisherOptions publisher = job.OptionsOfPublisher(0);
  publisher.gpu = 0;
  publisher.publishing = Publishing::kHold;
  ExpectError(Publisher::Join(publisher, job.PublisherPart(0), job.PublisherMemory(0), config.transport()).status(),
              ErrorCode::kInvalidOption, "\"a\"", "over a transport of messages");
  for (Shadow shadow : {Shadow::kDevice, Shadow::kOff}) {
    ReceiverOptions receiver = job.OptionsOfReceiver(0);
    receiver.gpu = gpu.GpuOfWorker(0);
    receiver.shadow = shadow;
    ExpectError(Receiver::Join(receiver, job.ReceiverPart(0), job.ReceiverMemory(0), config.transport()).status(),
                ErrorCode::kInvalidOption, "\"a\"", "the transport cuda, or one of messages");
  }
}

// Bytes that GPUs map do not come to the host.
TEST(GpuOnlyTest, WhatCannotBeOverCuda) {
  JobConfig config;
  config.transport = OnMembersGpu("cuda");
  GpuJob gpu(WholeManifest({{"a", {4}, Dtype::kF32}, {"b", {4}, Dtype::kF32}}), config,
             [](const Buffer& b) { return b.name == "b"; });
  Job& job = gpu.job;
  const auto publish = [&](auto&& edit) {
    PublisherOptions options = job.OptionsOfPublisher(0);
    options.gpu = testing::member_gpu = 0;
    edit(options);
    return Publisher::Join(options, job.PublisherPart(0), job.PublisherMemory(0), config.transport()).status();
  };
  const absl::Status on_host = publish([](auto&) {});
  ExpectError(on_host, ErrorCode::kInvalidOption, "\"a\" is in host memory", "another transport");
  EXPECT_EQ(SubjectOf(on_host).buffer, "a");
  ExpectError(publish([](auto& options) { options.publishing = Publishing::kHold; }), ErrorCode::kInvalidOption,
              "Publish by snapshot");
  ExpectError(publish([](auto& options) { options.gpu.reset(); }), ErrorCode::kInvalidOption, "names no GPU");
  for (const Shadow shadow : {Shadow::kHost, Shadow::kDevice, Shadow::kOff}) {
    ReceiverOptions options = job.OptionsOfReceiver(0);
    options.gpu = testing::member_gpu = gpu.GpuOfWorker(0);
    options.shadow = shadow;
    const absl::Status refused =
        Receiver::Join(options, job.ReceiverPart(0), job.ReceiverMemory(0), config.transport()).status();
    ExpectError(refused, ErrorCode::kInvalidOption, "\"a\" is in host memory", "all bytes stay on GPU");
  }
}

TEST(GpuOnlyTest, WithoutKernels) {
  JobConfig config;
  config.transport = OnMemory(false);
  config.shadow = {Shadow::kDevice};
  config.holding = {0};
  const std::string kernels = GpuOptionsFromEnvironment().kernels;
  setenv("HEADRACE_CUDA_KERNELS", "/nonexistent/libheadrace_cuda.so", 1);
  GpuJob gpu(WholeManifest({{"a", {4}, Dtype::kF32}}), config);
  for (const absl::Status& joined : gpu.job.Join()) {
    ExpectError(joined, ErrorCode::kTransport, "/nonexistent/libheadrace_cuda.so", "HEADRACE_CUDA_KERNELS");
  }
  setenv("HEADRACE_CUDA_KERNELS", kernels.c_str(), 1);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return headrace::testing::RunOnGpus();
}
