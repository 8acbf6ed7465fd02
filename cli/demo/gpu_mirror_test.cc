// On the checker of loader/testing/nccl_checker.
#include "cli/demo/gpu_mirror.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/checker_gpus.h"
#include "planner/status.h"

namespace headrace {
namespace {

using testing::Cuda;

constexpr int kGpus = 3;

TEST(GpuMirror, BringsEveryByteThereAndBack) {
  std::vector<std::byte> host(100'003, std::byte{1});
  const auto mirror = GpuMirror::Create(0, absl::MakeSpan(host));
  ASSERT_TRUE(mirror.ok()) << mirror.status();
  host[0] = std::byte{2};
  host.back() = std::byte{3};
  const std::vector<std::byte> wanted = host;
  ASSERT_TRUE((*mirror)->Upload().ok());
  ASSERT_TRUE((*mirror)->Wait().ok());
  host.assign(host.size(), std::byte{9});
  ASSERT_TRUE((*mirror)->Download().ok());
  ASSERT_TRUE((*mirror)->Wait().ok());
  EXPECT_EQ(host, wanted);
}

TEST(GpuMirror, MembersTakeTheGpusInTurn) {
  for (int number = 0; number < 2 * kGpus; ++number) {
    std::vector<std::byte> host(1000);
    const auto mirror = GpuMirror::Create(number, absl::MakeSpan(host));
    ASSERT_TRUE(mirror.ok()) << mirror.status();
    EXPECT_EQ((*mirror)->gpu(), number % kGpus);
    cuda::PointerAttributes attributes = {};
    ASSERT_EQ(Cuda().cudaPointerGetAttributes(&attributes, (*mirror)->data() + 999), cuda::kSuccess);
    EXPECT_EQ(attributes.type, cuda::kDevice);
    EXPECT_EQ(attributes.device, number % kGpus);
    ASSERT_EQ(Cuda().cudaPointerGetAttributes(&attributes, host.data()), cuda::kSuccess);
    EXPECT_EQ(attributes.type, cuda::kHost) << "not pinned";
  }
}

TEST(GpuMirror, SaysWhatIsMissing) {
  EXPECT_TRUE(CheckForGpus().ok());
  std::vector<std::byte> host(2 << 20);
  const absl::Status full = GpuMirror::Create(0, absl::MakeSpan(host)).status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_THAT(std::string(full.message()), ::testing::HasSubstr("2097152 bytes"));
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  setenv(headrace::nccl_checker::kDevicesVariable, "3", 1);
  setenv(headrace::nccl_checker::kDeviceBytesVariable, "1048576", 1);
  return RUN_ALL_TESTS();
}
