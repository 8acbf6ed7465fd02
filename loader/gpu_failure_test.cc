// Copies that fail while a job runs: device memory is taken away from under it. On the checker of
// loader/testing/nccl_checker, whose calls then fail instead of ending the process.
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/testing/checker_gpus.h"
#include "loader/testing/job.h"
#include "loader/testing/transports.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using testing::Cuda;
using testing::FirstError;
using ::testing::HasSubstr;
using testing::Job;
using testing::JobConfig;
using testing::Soon;

// One tensor, from GPU 0 to GPU 0, where one side's buffer is there.
struct FailingJob {
  explicit FailingJob(bool source, const JobConfig& config = {})
      : job(WholeManifest({{"a", {64}, Dtype::kF32}}), config) {
    EXPECT_EQ(Cuda().cudaMalloc(reinterpret_cast<void**>(&device), 256), cuda::kSuccess);
    const Buffer& b = source ? job.manifest().source[0] : job.manifest().destination[0];
    std::byte* const host = source ? job.source().First(b) : job.live().First(b);
    job.place = [this, host](std::byte* at) { return at == host ? device : at; };
    job.edit_publisher = [](size_t, PublisherOptions* options) { options->gpu = 0; };
    job.edit_receiver = [](size_t, ReceiverOptions* options) { options->gpu = 0; };
    EXPECT_EQ(FirstError(job.Join()), absl::OkStatus());
  }
  void TakeMemoryAway() { EXPECT_EQ(Cuda().cudaFree(device), cuda::kSuccess); }

  Job job;
  std::byte* device = nullptr;
};

TEST(GpuFailureTest, ASnapshotThatFailsPublishesNothing) {
  FailingJob failing(/*source=*/true);
  Job& job = failing.job;
  ASSERT_EQ(job.publisher(0).Publish(1, Soon()), absl::OkStatus());
  ASSERT_EQ(job.TakeAt(0, 1), absl::OkStatus());
  failing.TakeMemoryAway();
  for (int again : {0, 1, 2}) {  // more often than there are slots
    const absl::Status failed = job.publisher(0).Publish(2, Soon());
    EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << again << ": " << failed;
  }
  EXPECT_EQ(job.publisher(0).status(), absl::OkStatus());
  EXPECT_TRUE(HasCode(job.receiver(0).NextGeneration(absl::Now()).status(), ErrorCode::kDeadline));
  EXPECT_EQ(job.receiver(0).serving(), 1u);
}

TEST(GpuFailureTest, ACommitThatFailsPoisonsAndIsTold) {
  FailingJob failing(/*source=*/false);
  Job& job = failing.job;
  ASSERT_EQ(job.publisher(0).Publish(1, Soon()), absl::OkStatus());
  ASSERT_EQ(job.TakeAt(0, 1), absl::OkStatus());
  ASSERT_EQ(job.publisher(0).Publish(2, Soon()), absl::OkStatus());
  ASSERT_EQ(job.AwaitAt(0, 2), absl::OkStatus());
  ASSERT_EQ(job.receiver(0).Stage(2, job.ReceiverMemory(0)), absl::OkStatus());
  EXPECT_EQ(job.receiver(0).serving(), 1u);
  failing.TakeMemoryAway();
  const absl::Status failed = job.receiver(0).Apply(2);
  EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
  EXPECT_EQ(job.receiver(0).serving(), std::nullopt);
  EXPECT_TRUE(job.receiver(0).Carry().poisoned);
  EXPECT_FALSE(job.receiver(0).Commit(2).ok());
  const absl::Status told = job.publisher(0).AwaitCommit(2, Soon());
  EXPECT_FALSE(told.ok());
  EXPECT_THAT(std::string(told.message()), HasSubstr("GPU"));
}

JobConfig OfMessages() {
  JobConfig config;
  config.transport = testing::OnMemory(false);
  return config;
}

// Sums cannot be made: nothing is published, and nothing changes for anybody.
TEST(GpuFailureTest, HeldWeightsThatCannotBeSummedAreNotPublished) {
  JobConfig config = OfMessages();
  config.holding = {0};
  FailingJob failing(/*source=*/true, config);
  Job& job = failing.job;
  ASSERT_EQ(job.publisher(0).Publish(1, Soon()), absl::OkStatus());
  ASSERT_EQ(job.TakeAt(0, 1), absl::OkStatus());
  ASSERT_EQ(job.publisher(0).AwaitRelease(1, Soon()), absl::OkStatus());
  failing.TakeMemoryAway();
  const absl::Status failed = job.publisher(0).Publish(2, Soon());
  EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
  EXPECT_EQ(job.receiver(0).serving(), 1u);
}

// They were published, and cannot be packed: the engine keeps what it serves, and both are told.
TEST(GpuFailureTest, HeldWeightsThatCannotBePackedEndThePublisher) {
  JobConfig config = OfMessages();
  config.holding = {0};
  FailingJob failing(/*source=*/true, config);
  Job& job = failing.job;
  ASSERT_EQ(job.publisher(0).Publish(1, Soon()), absl::OkStatus());
  ASSERT_EQ(job.AwaitAt(0, 1), absl::OkStatus());
  failing.TakeMemoryAway();
  const absl::Status staged = job.receiver(0).Stage(1, job.ReceiverMemory(0));
  EXPECT_FALSE(staged.ok());
  EXPECT_EQ(job.receiver(0).serving(), 0u);
  const absl::Status failed = job.publisher(0).status();
  EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("GPU 0"));
}

// In place the live buffers may be half written: the worker serves nothing.
TEST(GpuFailureTest, AnUnpackingThatFailsPoisonsInPlaceAlone) {
  for (const Shadow shadow : {Shadow::kOff, Shadow::kDevice}) {
    JobConfig config = OfMessages();
    config.shadow = {shadow};
    FailingJob failing(/*source=*/false, config);
    Job& job = failing.job;
    ASSERT_EQ(job.publisher(0).Publish(1, Soon()), absl::OkStatus());
    ASSERT_EQ(job.TakeAt(0, 1), absl::OkStatus());
    ASSERT_EQ(job.publisher(0).Publish(2, Soon()), absl::OkStatus());
    ASSERT_EQ(job.AwaitAt(0, 2), absl::OkStatus());
    failing.TakeMemoryAway();
    absl::Status failed = job.receiver(0).Stage(2, job.ReceiverMemory(0));
    if (shadow == Shadow::kDevice) {
      ASSERT_EQ(failed, absl::OkStatus());
      EXPECT_EQ(job.receiver(0).serving(), 1u);
      failed = job.receiver(0).Commit(2);
    }
    EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
    EXPECT_EQ(job.receiver(0).serving(), std::nullopt);
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  setenv(headrace::nccl_checker::kOnViolationVariable, "return", 1);
  return RUN_ALL_TESTS();
}
