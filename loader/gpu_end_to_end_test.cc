// Whole jobs with buffers in GPU memory that come and go by way of the host: what engines hold is compared with the
// naive oracle, gaps and guards included.
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

std::vector<Way> Ways() {
  return {{"mapped", OnMemory(true)}, {"messages", OnMemory(false)}, {"nccl", OnMembersGpu("nccl")}};
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
    config.transport = seed % 5 == 4 ? OnMembersGpu("nccl") : OnMemory(seed % 2 == 0);
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
  return headrace::testing::RunOnGpus();
}
