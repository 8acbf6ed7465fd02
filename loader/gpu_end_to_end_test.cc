// Whole jobs with buffers in GPU memory: what engines hold is compared with the naive oracle, gaps and guards included.
// On the checker of loader/testing/nccl_checker, which ends the process where a rule of CUDA is broken, unless the
// environment names the real libraries (tools/gpu_check.sh): then on as many GPUs as there are.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/device_memory.h"
#include "loader/gpu/gpu_options.h"
#include "loader/slot.h"
#include "loader/testing/checker_gpus.h"
#include "loader/testing/gpu_side.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "loader/testing/two_engines.h"
#include "loader/transport/nccl/nccl.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::FirstError;
using testing::GpuSide;
using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;
using testing::OnMemory;
using testing::Soon;
using testing::TwoEngines;

const CudaRuntime& Cuda() { return **LoadCudaRuntime(GpuOptionsFromEnvironment().cuda_runtime); }

int Gpus() {
  int gpus = 0;
  EXPECT_EQ(Cuda().cudaGetDeviceCount(&gpus), cuda::kSuccess);
  return std::clamp(gpus, 1, 8);
}

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a = "", const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

// Of the member that joins in this thread.
thread_local int member_gpu = 0;

std::unique_ptr<Transport> OnMembersGpu() {
  NcclOptions options;
  options.gpu = member_gpu;
  auto transport = NewNcclTransport(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

// Work of a stream that ends when it is told.
class Gate {
 public:
  explicit Gate(cuda::Stream stream) {
    const auto wait = [](void* argument) {
      Gate* const gate = static_cast<Gate*>(argument);
      std::unique_lock lock(gate->mutex_);
      gate->changed_.wait(lock, [&] { return gate->open_; });
    };
    EXPECT_EQ(Cuda().cudaLaunchHostFunc(stream, wait, this), cuda::kSuccess);
  }
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// A job of which some buffers are on GPUs: the source's rank r on GPU r, the destination's on GPU 4 + r (modulo all).
class GpuJob {
 public:
  using Chosen = std::function<bool(const Buffer&)>;

  GpuJob(
      const Manifest& manifest, const JobConfig& config, const Chosen& chosen = [](const Buffer&) { return true; })
      : job(manifest, config),
        source(Cuda(), manifest.source, &job.source(), SourceGpu, chosen),
        live(Cuda(), manifest.destination, &job.live(), LiveGpu, chosen) {
    std::set<int64_t> ranks;
    for (const Buffer& b : manifest.source) ranks.insert(b.rank);
    source_ranks_.assign(ranks.begin(), ranks.end());
    job.place = [this](std::byte* host) { return source.Mirrors(host) ? source.Place(host) : live.Place(host); };
    job.edit_publisher = [this](size_t i, PublisherOptions* options) {
      options->gpu = member_gpu = SourceGpu(source_ranks_[i]);
    };
    job.edit_receiver = [this](size_t w, ReceiverOptions* options) { options->gpu = member_gpu = GpuOfWorker(w); };
  }

  static int SourceGpu(int64_t rank) { return static_cast<int>(rank % Gpus()); }
  static int LiveGpu(int64_t rank) { return static_cast<int>((4 + rank) % Gpus()); }
  int GpuOfWorker(size_t worker) const { return LiveGpu(job.workers()[worker].rank); }
  cuda::Stream TrainerStream(size_t publisher) { return source.StreamOf(SourceGpu(source_ranks_[publisher])); }

  // The trainer writes its weights by work that is under way when Publish is called.
  absl::Status Publish(uint64_t generation) {
    testing::PaintSource(job.manifest(), generation, &job.source());
    for (size_t i = 0; i < job.publishers(); ++i) TrainerStream(i);
    source.Upload();
    return FirstError(testing::ForAll(
        job.publishers(), [&](size_t i) { return job.publisher(i).Publish(generation, Soon(), TrainerStream(i)); }));
  }
  absl::Status Round(uint64_t generation) {
    HR_RETURN_IF_ERROR(Publish(generation));
    HR_RETURN_IF_ERROR(FirstError(job.Take(generation)));
    return FirstError(testing::ForAll(job.publishers(), [&](size_t i) {
      HR_RETURN_IF_ERROR(job.publisher(i).AwaitCommit(generation, Soon()));
      return job.publisher(i).AwaitRelease(generation, Soon());
    }));
  }
  std::string Difference() {
    live.Download();
    return job.Difference();
  }

  Job job;
  GpuSide source, live;

 private:
  std::vector<int64_t> source_ranks_;
};

struct Way {
  std::string name;
  std::function<std::unique_ptr<Transport>()> transport;
};

std::vector<Way> Ways() { return {{"mapped", OnMemory(true)}, {"messages", OnMemory(false)}, {"nccl", OnMembersGpu}}; }
std::vector<Way> WaysOfMessages() { return {{"messages", OnMemory(false)}, {"nccl", OnMembersGpu}}; }

// FP32 masters, fused, pitched, padded, transposed and tied buffers, and one that is kept.
TEST(GpuEndToEndTest, TwoEnginesOverEveryTransport) {
  for (const Way& way : Ways()) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    GpuJob gpu(TwoEngines(), config);
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2, 3, 7}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    const PublisherStats publisher = gpu.job.publisher(0).stats();
    EXPECT_EQ(publisher.pinned_bytes, kSnapshotSlots * publisher.snapshot_bytes);
    const ReceiverStats receiver = gpu.job.receiver(0).stats();
    EXPECT_GT(receiver.shadow_bytes, 0);
    EXPECT_EQ(receiver.pinned_bytes, receiver.shadow_bytes);
    EXPECT_EQ(gpu.job.Close(), absl::OkStatus());
  }
}

// What is on a GPU stays there: packed out of the weights, unpacked into a second set of buffers or the live ones. One
// publisher converts, by way of the host.
TEST(GpuEndToEndTest, HeldAndUnpackedOnGpus) {
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

// Until it is staged the engine serves what it had; a shadow on the GPU changes nothing of that. Nor is a buffer
// written that the engine's loading code reads, whose work on the GPU may be under way.
TEST(GpuEndToEndTest, AShadowOnTheGpuLeavesTheLiveBuffers) {
  JobConfig config;
  config.transport = OnMemory(false);
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

// Steps that do not end are no matter of what streams into a shadow, small messages of a sender on the host included.
TEST(GpuEndToEndTest, IntoAShadowOnTheGpuNothingWaitsForTheEnginesSteps) {
  for (const Way& way : WaysOfMessages()) {
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

// A change of the membership takes no more of the GPU's memory than there was when the worker joined.
TEST(GpuEndToEndTest, AnEngineThatComesWhenTheGpuIsFull) {
  if (Gpus() < 8) GTEST_SKIP() << "the members that come are on the GPU that is full";
  JobConfig config;
  config.transport = OnMemory(false);
  config.shadow = {Shadow::kDevice};
  config.late_engines = {1};
  GpuJob gpu(TwoEngines(), config);
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Publish(1), absl::OkStatus());
  ASSERT_EQ(FirstError(testing::ForAll(2, [&](size_t w) { return gpu.job.TakeAt(w, 1); })), absl::OkStatus());
  std::vector<std::unique_ptr<DeviceMemory>> taken;
  const int full = gpu.GpuOfWorker(0);
  for (int64_t bytes = int64_t{1} << 40; bytes > 0; bytes /= 2) {
    auto memory = DeviceMemory::Allocate(Cuda(), full, bytes, "a test");
    if (memory.ok()) taken.push_back(*std::move(memory));
  }
  ASSERT_EQ(gpu.job.JoinEngine(1), absl::OkStatus());
  ASSERT_EQ(gpu.job.TakeAt(2, 1), absl::OkStatus());
  ASSERT_EQ(gpu.Round(2), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// In place the first live write is Stage's.
TEST(GpuEndToEndTest, InPlaceTheFirstWriteWaitsForTheEnginesSteps) {
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

// Replicas, strides with gaps, fills and aliases, all on GPUs, held where nothing is converted, into shadows on the GPU
// and in place; passed on within hosts. Chunks end inside elements and runs, and there may be a single one.
TEST(GpuEndToEndTest, RandomManifestsHeldOnGpus) {
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
    config.transport = seed % 3 == 0 ? OnMembersGpu : OnMemory(false);
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

// Strides with gaps, holes, fills, aliases, shared storages, replicas, converted sources; some buffers on the host.
TEST(GpuEndToEndTest, RandomManifests) {
  const char* given = std::getenv("HEADRACE_TEST_SEED");
  const uint64_t first = given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
  int on_gpus = 0, converted = 0;
  for (uint64_t seed = first; seed < first + std::max(12, testing::Share(60)); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << seed);
    Random random(seed);
    Manifest m = RandomManifest(random);
    if (SourcesContradict(m)) continue;
    if (seed % 2 == 0) testing::WidenSources(seed, &m);
    for (const Buffer& b : m.source) converted += b.convert_rne;
    JobConfig config;
    config.transport = seed % 5 == 4 ? OnMembersGpu : OnMemory(seed % 2 == 0);
    config.chunk_bytes = 64;
    config.seed = seed;
    GpuJob gpu(m, config, [&](const Buffer&) { return seed % 3 != 0 || random() % 2 == 0; });
    on_gpus += gpu.source.blocks_on_gpus() + gpu.live.blocks_on_gpus();
    ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
    for (uint64_t generation : {1, 2}) {
      ASSERT_EQ(gpu.Round(generation), absl::OkStatus());
      ASSERT_EQ(gpu.Difference(), "");
    }
    ASSERT_EQ(gpu.job.Close(), absl::OkStatus());
  }
  EXPECT_GT(on_gpus, 0);
  EXPECT_GT(converted, 0);
}

// The trainer's step is still in flight: nothing is published. When it has ended, its weights are, not those before.
TEST(GpuEndToEndTest, NothingIsReadBeforeTheTrainersEarlierWork) {
  GpuJob gpu(TwoEngines(), {});
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  testing::PaintSource(gpu.job.manifest(), 2, &gpu.job.source());
  const size_t publishers = gpu.job.publishers();
  std::vector<std::unique_ptr<Gate>> gates;
  for (size_t i = 0; i < publishers; ++i) gates.push_back(std::make_unique<Gate>(gpu.TrainerStream(i)));
  gpu.source.Upload();  // behind the gates
  for (size_t i = 0; i < publishers; ++i) {
    ExpectError(gpu.job.publisher(i).Publish(2, absl::Now() + absl::Milliseconds(30), gpu.TrainerStream(i)),
                ErrorCode::kDeadline, "GPU");
  }
  ExpectError(gpu.job.receiver(0).NextGeneration(absl::Now()).status(), ErrorCode::kDeadline);
  for (auto& gate : gates) gate->Open();
  ASSERT_EQ(FirstError(testing::ForAll(
                publishers, [&](size_t i) { return gpu.job.publisher(i).Publish(2, Soon(), gpu.TrainerStream(i)); })),
            absl::OkStatus());
  ASSERT_EQ(FirstError(gpu.job.Take(2)), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// Staged, and the engine's steps are in flight: its weights are what they were until these have ended.
TEST(GpuEndToEndTest, TheFirstLiveWriteWaitsForTheEnginesSteps) {
  GpuJob gpu(TwoEngines(), {});
  gpu.job.edit_receiver = [&](size_t w, ReceiverOptions* options) {
    options->gpu = gpu.GpuOfWorker(w);
    if (w == 2) options->transfer_timeout = absl::Seconds(4);  // of a transfer that takes milliseconds
  };
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  ASSERT_EQ(gpu.Publish(2), absl::OkStatus());
  ASSERT_EQ(FirstError(testing::ForAll(3, [&](size_t w) { return gpu.job.AwaitAt(w, 2); })), absl::OkStatus());
  ASSERT_EQ(gpu.job.receiver(2).Stage(2, gpu.job.ReceiverMemory(2)), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");  // of generation 1
  cuda::Stream steps = nullptr;
  {
    const CurrentDevice current(Cuda(), gpu.GpuOfWorker(2));
    ASSERT_EQ(Cuda().cudaStreamCreateWithFlags(&steps, cuda::kStreamNonBlocking), cuda::kSuccess);
  }
  Gate step(steps);
  ExpectError(gpu.job.receiver(2).Apply(2, steps), ErrorCode::kDeadline, "GPU");
  EXPECT_EQ(gpu.Difference(), "");
  EXPECT_EQ(gpu.job.receiver(2).serving(), 1u);
  step.Open();
  ASSERT_EQ(gpu.job.receiver(2).Apply(2, steps), absl::OkStatus());
  ASSERT_EQ(gpu.job.receiver(2).Commit(2, steps), absl::OkStatus());
  gpu.job.Expect(2, 2);
  EXPECT_EQ(gpu.Difference(), "");
  EXPECT_EQ(gpu.job.receiver(2).serving(), 2u);
  ASSERT_EQ(Cuda().cudaStreamSynchronize(steps), cuda::kSuccess);
  ASSERT_EQ(Cuda().cudaStreamDestroy(steps), cuda::kSuccess);
}

// Buffers that the engine does not compute with have no shadow on the host; on a GPU they are written with the others.
TEST(GpuEndToEndTest, BuffersThatAreNotLive) {
  JobConfig config;
  config.not_live = {{0, "qk"}, {1, "q"}, {1, "norm"}};
  GpuJob gpu(TwoEngines(), config, [](const Buffer& b) { return b.name != "norm"; });
  ASSERT_EQ(FirstError(gpu.job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Round(1), absl::OkStatus());
  EXPECT_EQ(gpu.Difference(), "");
}

// A member that comes back finds the snapshots of the device's bytes where the host's would be.
TEST(GpuEndToEndTest, AnEngineThatComesAgain) {
  for (bool map : {true, false}) {
    JobConfig config;
    config.transport = OnMemory(map);
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
}

// One of two data-parallel ranks dies while both hold: the other one's GPU sends all.
TEST(GpuEndToEndTest, AReplicaTakesTheLoadOfOneThatDies) {
  const TensorSpec a{"a", {64, 24}, Dtype::kBF16}, b{"b", {300}, Dtype::kF32};
  Manifest m;
  m.tensors = {a, b};
  for (int64_t rank : {0, 1}) m.source.insert(m.source.end(), {WholeBuffer(rank, a), WholeBuffer(rank, b)});
  for (int64_t rank : {0, 1}) {
    m.destination.insert(m.destination.end(), {WholeBuffer(rank, a), WholeBuffer(rank, b)});
    m.topology.destination.push_back({rank, "", "", "e" + std::to_string(rank)});
  }
  for (const Way& way : WaysOfMessages()) {
    SCOPED_TRACE(way.name);
    JobConfig config;
    config.transport = way.transport;
    config.holding = {0, 1};
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

TEST(GpuEndToEndTest, WhatCannotBeOnAGpu) {
  JobConfig config;
  config.transport = OnMemory(true);
  GpuJob gpu(WholeManifest({{"a", {4}, Dtype::kF32}, {"b", {4}, Dtype::kF32}}), config,
             [](const Buffer& b) { return b.name == "b"; });
  Job& job = gpu.job;
  const auto publish = [&](auto&& edit) {
    PublisherOptions options = job.OptionsOfPublisher(0);
    options.gpu = 0;
    edit(options);
    return Publisher::Join(options, job.PublisherPart(0), job.PublisherMemory(0), config.transport()).status();
  };
  const auto receive = [&](bool standby, auto&& edit) {
    ReceiverOptions options = job.OptionsOfReceiver(0);
    options.gpu = gpu.GpuOfWorker(0);
    edit(options);
    return Receiver::Join(options, job.ReceiverPart(0), job.ReceiverMemory(0), config.transport(),
                          standby ? config.transport() : nullptr)
        .status();
  };
  const absl::Status held = publish([](auto& options) { options.publishing = Publishing::kHold; });
  ExpectError(held, ErrorCode::kInvalidOption, "\"a\" is in host memory", "Publish by snapshot");
  EXPECT_EQ(SubjectOf(held).buffer, "a");
  if (Gpus() > 1) {
    ExpectError(publish([](auto& options) { options.gpu = 1; }), ErrorCode::kInvalidOption, "\"b\"", "GPU 1");
    ExpectError(receive(false, [](auto& options) { options.gpu = 0; }), ErrorCode::kInvalidOption, "\"b\"", "GPU 0");
  }
  ExpectError(publish([](auto& options) { options.gpu = 99; }), ErrorCode::kInvalidOption, "GPU 99");
  const absl::Status off = receive(false, [](auto& options) { options.shadow = Shadow::kOff; });
  ExpectError(off, ErrorCode::kInvalidOption, "\"a\" is in host memory", "Take a shadow");
  EXPECT_EQ(SubjectOf(off).buffer, "a");
  ExpectError(receive(false, [](auto& options) { options.shadow = Shadow::kDevice; }), ErrorCode::kInvalidOption,
              "\"a\" is in host memory", "Take a shadow");
  ExpectError(receive(false,
                      [](auto& options) {
                        options.shadow = Shadow::kDevice;
                        options.gpu.reset();
                      }),
              ErrorCode::kInvalidOption, "no GPU was named");
  ExpectError(receive(true, [](auto&) {}), ErrorCode::kInvalidOption, "\"b\"", "standby");
  // Restated memory is compared as ever.
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Publish(1), absl::OkStatus());
  ASSERT_EQ(job.AwaitAt(0, 1), absl::OkStatus());
  auto moved = job.ReceiverMemory(0);
  moved["b"].data += 64;
  ExpectError(job.receiver(0).Stage(1, moved), ErrorCode::kDestinationMoved, "\"b\"");
  EXPECT_EQ(gpu.Difference(), "");
}

// What offers nothing may lie anywhere.
TEST(GpuEndToEndTest, HeldBesideABufferThatOffersNothing) {
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
TEST(GpuEndToEndTest, WhatCannotBeOverATransportThatMaps) {
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
                ErrorCode::kInvalidOption, "\"a\"", "a transport of messages");
  }
}

TEST(GpuEndToEndTest, WithoutKernels) {
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

TEST(GpuEndToEndTest, AStreamWithoutAGpu) {
  Job job(WholeManifest({{"a", {4}, Dtype::kF32}}), {});
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  const auto stream = reinterpret_cast<cuda::Stream>(uintptr_t{64});
  ExpectError(job.publisher(0).Publish(1, Soon(), stream), ErrorCode::kInvalidOption, "no GPU");
  ASSERT_EQ(job.Publish(1), absl::OkStatus());
  ASSERT_EQ(job.AwaitAt(0, 1), absl::OkStatus());
  ASSERT_EQ(job.receiver(0).Stage(1, job.ReceiverMemory(0)), absl::OkStatus());
  ExpectError(job.receiver(0).Apply(1, stream), ErrorCode::kInvalidOption, "no GPU");
  ASSERT_EQ(job.receiver(0).Commit(1), absl::OkStatus());
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  // Small GPUs: one test fills one.
  setenv(headrace::nccl_checker::kDeviceBytesVariable, "268435456", 1);
  return RUN_ALL_TESTS();
}
