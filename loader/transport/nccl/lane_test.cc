// One lane alone, over the checker of loader/testing/nccl_checker, with a CUDA runtime that can be made to fail. What
// lanes do with each other: nccl_test.cc and faults_test.cc.
#include "loader/transport/nccl/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

constexpr cuda::Error kErrorIllegalAddress = 700;

bool gpu_failed = false;
const CudaRuntime* real = nullptr;

cuda::Error QueryStream(cuda::Stream stream) {
  return gpu_failed ? kErrorIllegalAddress : real->cudaStreamQuery(stream);
}

// The kernel of a group that runs will never end, and no host function says so.
TEST(LaneTest, AGpuThatFailedIsSeenWhileAGroupRuns) {
  real = *LoadCudaRuntime(nccl_checker::kLibraryPath);
  CudaRuntime cuda = *real;
  cuda.cudaStreamQuery = QueryStream;
  const Library* const library = *LoadLibrary(nccl_checker::kLibraryPath);
  UniqueId id;
  ASSERT_EQ(library->ncclGetUniqueId(&id), kSuccess);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (const Lane::Side side : {Lane::Side::kSend, Lane::Side::kReceive}) {
    Gpu gpu;
    gpu.cuda = &cuda;
    gpu.nccl = library;
    gpu.device = static_cast<int>(side);
    gpu.ended = std::make_shared<Descriptor>(eventfd(0, EFD_NONBLOCK));
    gpu.staging = std::make_shared<StagingPool>(cuda, Lane::kStagingBytes);
    ASSERT_EQ(cuda.cudaSetDevice(gpu.device), cuda::kSuccess);
    auto lane = Lane::Open(gpu, side, id);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lanes.push_back(*std::move(lane));
  }
  Lane& receiving = *lanes[1];
  while (!receiving.ready() || !lanes[0]->ready()) {
    for (auto& lane : lanes) ASSERT_EQ(lane->Advance(), absl::OkStatus());
  }
  std::vector<std::byte> memory(1000);
  ASSERT_EQ(receiving.Launch({{1, memory.data(), memory.size()}}), absl::OkStatus());
  while (receiving.in_progress()) ASSERT_EQ(receiving.Advance(), absl::OkStatus());
  ASSERT_EQ(receiving.Advance(), absl::OkStatus());
  gpu_failed = true;
  const absl::Status failed = receiving.Advance();
  EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("the GPU failed"));
  // Where nothing runs, nothing is asked.
  EXPECT_EQ(lanes[0]->Advance(), absl::OkStatus());
  EXPECT_EQ(receiving.Break().size(), 1u);
}

}  // namespace
}  // namespace headrace::nccl

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
