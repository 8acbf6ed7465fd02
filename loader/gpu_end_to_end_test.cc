// Whole jobs with buffers in GPU memory, on the checker of loader/testing/nccl_checker: what engines hold is compared
// with the naive oracle, gaps and guards included, and the checker ends the process where a rule of CUDA is broken.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/slot.h"
#include "loader/testing/gpu_side.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "loader/testing/two_engines.h"
#include "loader/transport/nccl/nccl.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
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

constexpr int kGpus = 8;

const CudaRuntime& Cuda() { return **LoadCudaRuntime(nccl_checker::kLibraryPath); }

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a = "", const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(a), HasSubstr(b)));
}

std::unique_ptr<Transport> OnNextGpu() {
  static std::atomic<int> next{0};
  NcclOptions options;
  options.gpu = next++;
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

// A job of which some buffers are on GPUs: the source's rank r on GPU r, the destination's on GPU 4 + r (modulo 8).
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
    job.edit_publisher = [this](size_t i, PublisherOptions* options) { options->gpu = SourceGpu(source_ranks_[i]); };
    job.edit_receiver = [this](size_t w, ReceiverOptions* options) { options->gpu = GpuOfWorker(w); };
  }

  static int SourceGpu(int64_t rank) { return static_cast<int>(rank % kGpus); }
  static int LiveGpu(int64_t rank) { return static_cast<int>((4 + rank) % kGpus); }
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
    return FirstError(
        testing::ForAll(job.publishers(), [&](size_t i) { return job.publisher(i).AwaitCommit(generation, Soon()); }));
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

std::vector<Way> Ways() {
  return {{"mapped", OnMemory(true)}, {"messages", OnMemory(false)}, {"nccl", [] { return OnNextGpu(); }}};
}

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
    config.transport = seed % 5 == 4 ? OnNextGpu : OnMemory(seed % 2 == 0);
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
  ExpectError(held, ErrorCode::kInvalidOption, "\"b\"", "Publish by snapshot");
  EXPECT_EQ(SubjectOf(held).buffer, "b");
  ExpectError(publish([](auto& options) { options.gpu = 1; }), ErrorCode::kInvalidOption, "\"b\"", "GPU 1");
  ExpectError(publish([](auto& options) { options.gpu = 99; }), ErrorCode::kInvalidOption, "GPU 99");
  const absl::Status off = receive(false, [](auto& options) { options.shadow = Shadow::kOff; });
  ExpectError(off, ErrorCode::kInvalidOption, "\"b\"", "take a shadow");
  EXPECT_EQ(SubjectOf(off).buffer, "b");
  ExpectError(receive(true, [](auto&) {}), ErrorCode::kInvalidOption, "\"b\"", "standby");
  ExpectError(receive(false, [](auto& options) { options.gpu = 0; }), ErrorCode::kInvalidOption, "\"b\"", "GPU 0");
  // Restated memory is compared as ever.
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  ASSERT_EQ(gpu.Publish(1), absl::OkStatus());
  ASSERT_EQ(job.AwaitAt(0, 1), absl::OkStatus());
  auto moved = job.ReceiverMemory(0);
  moved["b"].data += 64;
  ExpectError(job.receiver(0).Stage(1, moved), ErrorCode::kDestinationMoved, "\"b\"");
  EXPECT_EQ(gpu.Difference(), "");
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
  setenv("HEADRACE_CUDA_RUNTIME", headrace::nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_NCCL", headrace::nccl_checker::kLibraryPath, 0);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  return RUN_ALL_TESTS();
}
