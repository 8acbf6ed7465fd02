// One lane alone, over the checker of loader/testing/nccl_checker, with a CUDA runtime that can be made to fail. What
// lanes do with each other: nccl_test.cc, faults_test.cc and limits_test.cc.
#include "loader/transport/nccl/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
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

// The checker's runtime, some calls of which a test may have its own way with.
CudaRuntime Runtime() {
  real = *LoadCudaRuntime(nccl_checker::kLibraryPath);
  return *real;
}

Gpu GpuOf(int device, const CudaRuntime& cuda) {
  Gpu gpu;
  gpu.cuda = &cuda;
  gpu.nccl = *LoadLibrary(nccl_checker::kLibraryPath);
  gpu.device = device;
  gpu.ended = std::make_shared<Descriptor>(eventfd(0, EFD_NONBLOCK));
  for (auto& pool : gpu.staging) {
    pool = std::make_shared<StagingPool>(cuda, Lane::kStagingBuffers, Lane::kStagingBytes);
  }
  return gpu;
}

// A lane, with its two ends on the devices of `gpus`.
class Ends {
 public:
  explicit Ends(const std::array<Gpu, 2>& gpus) {
    UniqueId id;
    EXPECT_EQ(gpus[0].nccl->ncclGetUniqueId(&id), kSuccess);
    for (const Lane::Side side : {Lane::Side::kSend, Lane::Side::kReceive}) {
      const size_t end = static_cast<size_t>(side);
      const CurrentDevice current(*gpus[end].cuda, gpus[end].device);
      auto lane = Lane::Open(gpus[end], side, id);
      EXPECT_TRUE(lane.ok()) << lane.status();
      lanes_[end] = *std::move(lane);
    }
  }
  Lane& sending() { return *lanes_[0]; }
  Lane& receiving() { return *lanes_[1]; }
  void AwaitJoined() {
    while (sending().in_progress() || receiving().in_progress()) {
      for (auto& lane : lanes_) ASSERT_EQ(lane->Advance(), absl::OkStatus());
    }
  }

 private:
  std::array<std::unique_ptr<Lane>, 2> lanes_;
};

// The kernel of a group that runs will never end, and no host function says so.
TEST(LaneTest, AGpuThatFailedIsSeenWhileAGroupRuns) {
  CudaRuntime cuda = Runtime();
  cuda.cudaStreamQuery = QueryStream;
  Ends ends({GpuOf(0, cuda), GpuOf(1, cuda)});
  ends.AwaitJoined();
  Lane& receiving = ends.receiving();
  std::vector<std::byte> memory(1000);
  ASSERT_EQ(receiving.Launch({{1, memory.data(), memory.size()}}), absl::OkStatus());
  while (receiving.in_progress()) ASSERT_EQ(receiving.Advance(), absl::OkStatus());
  ASSERT_EQ(receiving.Advance(), absl::OkStatus());
  gpu_failed = true;
  const absl::Status failed = receiving.Advance();
  EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("the GPU failed"));
  // Where nothing runs, nothing is asked.
  EXPECT_EQ(ends.sending().Advance(), absl::OkStatus());
  EXPECT_EQ(receiving.Break().size(), 1u);
}

int allocations = 0;
cuda::Error Allocate(void** memory, size_t bytes) {
  ++allocations;
  return real->cudaMalloc(memory, bytes);
}
cuda::Error Pin(void** memory, size_t bytes, unsigned flags) {
  ++allocations;
  return real->cudaHostAlloc(memory, bytes, flags);
}

// Both would wait for what runs, which may wait for this thread.
TEST(LaneTest, NothingIsAllocatedAfterTheFirstLane) {
  CudaRuntime cuda = Runtime();
  cuda.cudaMalloc = Allocate;
  cuda.cudaHostAlloc = Pin;
  const std::array<Gpu, 2> gpus = {GpuOf(0, cuda), GpuOf(1, cuda)};
  allocations = 0;
  std::vector<Ends> lanes;
  lanes.emplace_back(gpus).AwaitJoined();
  EXPECT_EQ(allocations, 2 * 2 * 2);  // of each end, side and kind of memory
  // There and back, until a side has no buffer left.
  const std::array<Gpu, 2> back = {gpus[1], gpus[0]};
  for (const auto& way : {gpus, back, gpus}) lanes.emplace_back(way).AwaitJoined();
  std::vector<std::byte> memory(1000);
  size_t receives = 0;
  for (Ends& ends : lanes) {
    for (; ends.receiving().ready(); ends.AwaitJoined()) {
      ASSERT_EQ(ends.receiving().Launch({{1, memory.data(), memory.size()}}), absl::OkStatus());
      ++receives;
    }
  }
  EXPECT_EQ(receives, 2 + Lane::kStagingBuffers);  // back there was only one lane, of two groups at most
  EXPECT_EQ(allocations, 2 * 2 * 2);
  // A buffer that comes back is another lane's.
  EXPECT_FALSE(lanes[3].receiving().ready());
  EXPECT_EQ(lanes[0].receiving().Break().size(), 2u);
  EXPECT_TRUE(lanes[3].receiving().ready());
}

}  // namespace
}  // namespace headrace::nccl

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
