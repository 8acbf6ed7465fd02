#ifndef HEADRACE_LOADER_TESTING_GPU_JOB_H_
#define HEADRACE_LOADER_TESTING_GPU_JOB_H_

// Test only. Whole jobs with buffers in GPU memory: on the checker's GPUs, which end the process where a rule of CUDA
// is broken, unless the environment names the real libraries (tools/gpu_check.sh): then on as many GPUs as there are.

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/device_memory.h"
#include "loader/testing/checker_gpus.h"
#include "loader/testing/gpu_side.h"
#include "loader/testing/job.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/transports.h"
#include "loader/transport/factory.h"
#include "planner/status.h"

namespace headrace::testing {

inline int Gpus() {
  int gpus = 0;
  EXPECT_EQ(Cuda().cudaGetDeviceCount(&gpus), cuda::kSuccess);
  return std::clamp(gpus, 1, 8);
}

inline void ExpectError(const absl::Status& status, ErrorCode code, const std::string& a = "",
                        const std::string& b = "") {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::AllOf(::testing::HasSubstr(a), ::testing::HasSubstr(b)));
}

// Of the member that joins in this thread.
inline thread_local int member_gpu = 0;

// Endpoints of "nccl" or "cuda" on the GPU of the member that joins.
inline MakeTransport OnMembersGpu(const std::string& name) {
  return [name] {
    TransportOptions options;
    options.gpu = member_gpu;
    auto transport = NewTransport(name, options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  };
}

// All that is free of a GPU.
inline std::vector<std::unique_ptr<DeviceMemory>> FillGpu(int gpu) {
  std::vector<std::unique_ptr<DeviceMemory>> taken;
  for (int64_t bytes = int64_t{1} << 40; bytes > 0; bytes /= 2) {
    auto memory = DeviceMemory::Allocate(Cuda(), gpu, bytes, "a test");
    if (memory.ok()) taken.push_back(*std::move(memory));
  }
  return taken;
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
    PaintSource(job.manifest(), generation, &job.source());
    for (size_t i = 0; i < job.publishers(); ++i) TrainerStream(i);
    source.Upload();
    return FirstError(ForAll(job.publishers(),
                             [&](size_t i) { return job.publisher(i).Publish(generation, Soon(), TrainerStream(i)); }));
  }
  absl::Status Round(uint64_t generation) {
    HR_RETURN_IF_ERROR(Publish(generation));
    HR_RETURN_IF_ERROR(FirstError(job.Take(generation)));
    return FirstError(ForAll(job.publishers(), [&](size_t i) {
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

// Of a test's main, after InitGoogleMock.
inline int RunOnGpus() {
  UseCheckerGpus();
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  // Small GPUs: one test fills one.
  setenv(nccl_checker::kDeviceBytesVariable, "268435456", 1);
  return RUN_ALL_TESTS();
}

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_GPU_JOB_H_
