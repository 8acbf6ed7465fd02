// On the checker of loader/testing/nccl_checker.
#include "loader/gpu/device_memory.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/checker_gpus.h"
#include "planner/status.h"

namespace headrace {
namespace {

using testing::Cuda;

constexpr int kGpu = 2;
constexpr int64_t kGpuBytes = 1 << 20;

int64_t FreeBytes(int gpu) {
  const CurrentDevice current(Cuda(), gpu);
  size_t free = 0, total = 0;
  EXPECT_EQ(Cuda().cudaMemGetInfo(&free, &total), cuda::kSuccess);
  return static_cast<int64_t>(free);
}

cuda::PointerAttributes AttributesOf(const std::byte* memory) {
  cuda::PointerAttributes attributes = {};
  EXPECT_EQ(Cuda().cudaPointerGetAttributes(&attributes, memory), cuda::kSuccess);
  return attributes;
}

TEST(DeviceMemoryTest, IsOnItsGpuUntilItIsDestroyed) {
  const int64_t free = FreeBytes(kGpu), elsewhere = FreeBytes(kGpu + 1);
  {
    const auto first = DeviceMemory::Allocate(Cuda(), kGpu, 1, "a test");
    const auto second = DeviceMemory::Allocate(Cuda(), kGpu, 1000, "a test");
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ((*first)->bytes(), 1);
    EXPECT_EQ((*second)->bytes(), 1000);
    for (const std::byte* end : {(*first)->data(), (*second)->data(), (*second)->data() + 999}) {
      EXPECT_EQ(AttributesOf(end).type, cuda::kDevice);
      EXPECT_EQ(AttributesOf(end).device, kGpu);
    }
    EXPECT_LE(FreeBytes(kGpu), free - 1001);
    EXPECT_EQ(FreeBytes(kGpu + 1), elsewhere);
  }
  EXPECT_EQ(FreeBytes(kGpu), free);
}

TEST(DeviceMemoryTest, PinnedMemoryIsTheHosts) {
  const int64_t free = FreeBytes(kGpu);
  const std::byte* data = nullptr;
  {
    const auto pinned = DeviceMemory::AllocatePinned(Cuda(), kGpu, 1000, "a test");
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_EQ((*pinned)->bytes(), 1000);
    data = (*pinned)->data();
    std::memset((*pinned)->data(), 7, 1000);
    for (int64_t at : {0, 999}) EXPECT_EQ(AttributesOf(data + at).type, cuda::kHost);
    EXPECT_EQ(FreeBytes(kGpu), free);
  }
  EXPECT_NE(AttributesOf(data).type, cuda::kHost);
}

TEST(DeviceMemoryTest, TheCallersDeviceStays) {
  const CurrentDevice current(Cuda(), kGpu + 1);
  const auto device = [] {
    int now = -1;
    EXPECT_EQ(Cuda().cudaGetDevice(&now), cuda::kSuccess);
    return now;
  };
  auto on_gpu = DeviceMemory::Allocate(Cuda(), kGpu, 8, "a test");
  EXPECT_EQ(device(), kGpu + 1);
  auto pinned = DeviceMemory::AllocatePinned(Cuda(), kGpu, 8, "a test");
  EXPECT_EQ(device(), kGpu + 1);
  EXPECT_FALSE(DeviceMemory::Allocate(Cuda(), kGpu, 2 * kGpuBytes, "a test").ok());
  EXPECT_EQ(device(), kGpu + 1);
  on_gpu->reset();
  pinned->reset();
  EXPECT_EQ(device(), kGpu + 1);
}

TEST(DeviceMemoryTest, AFullGpuIsNamedWithWhatIsFree) {
  const auto half = DeviceMemory::Allocate(Cuda(), kGpu, kGpuBytes / 2, "a test");
  ASSERT_TRUE(half.ok()) << half.status();
  const int64_t free = FreeBytes(kGpu);
  const absl::Status full = DeviceMemory::Allocate(Cuda(), kGpu, free + 1, "tables of tests").status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_EQ(full.message(), absl::StrCat("tables of tests: ", free + 1, " bytes are needed of the memory of GPU 2, of ",
                                         "which ", free, " of ", kGpuBytes, " are free"));
  EXPECT_EQ(FreeBytes(kGpu), free);
  // What failed is dealt with: later calls do not meet it.
  EXPECT_EQ(Cuda().cudaGetLastError(), cuda::kSuccess);
  EXPECT_EQ(DeviceMemory::Allocate(Cuda(), kGpu, free, "a test").status(), absl::OkStatus());
}

TEST(DeviceMemoryTest, PinnedMemoryThatIsNotThereIsTheHosts) {
  const absl::Status full = DeviceMemory::AllocatePinned(Cuda(), kGpu, int64_t{1} << 60, "a test").status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_EQ(full.message(), "a test: 1152921504606846976 bytes are needed of the pinned memory of the host");
}

// A runtime whose calls fail, but for lack of memory.
TEST(DeviceMemoryTest, AnotherErrorIsTheTransports) {
  CudaRuntime broken = Cuda();
  broken.cudaMalloc = [](void**, size_t) -> cuda::Error { return cuda::kErrorInvalidValue; };
  const absl::Status failed = DeviceMemory::Allocate(broken, kGpu, 8, "tables of tests").status();
  EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("tables of tests: "));
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  setenv(headrace::nccl_checker::kDeviceBytesVariable, std::to_string(headrace::kGpuBytes).c_str(), 1);
  return RUN_ALL_TESTS();
}
