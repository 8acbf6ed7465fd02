#include "loader/gpu/cuda_driver.h"

#include <cstdio>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

// In a process of its own: the first call decides.
TEST(CudaDriverDeathTest, SaysWhatToInstall) {
  const auto load = [] {
    const absl::Status status = LoadCudaDriver("/nonexistent/libcuda.so.1").status();
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::exit(HasCode(status, ErrorCode::kTransport) ? 0 : 1);
  };
  EXPECT_EXIT(load(), ::testing::ExitedWithCode(0),
              "cuda: cannot load libcuda: /nonexistent/libcuda.so.1: .*HEADRACE_CUDA_DRIVER");
}

TEST(CudaDriverTest, IsInitializedAndTellsErrorsApart) {
  const auto driver = LoadCudaDriver(nccl_checker::kLibraryPath);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_THAT((*driver)->path, HasSubstr("libheadrace_nccl_checker.so"));
  cuda::Device device = -1;
  EXPECT_EQ((*driver)->Check((*driver)->cuDeviceGet(&device, 1), "no device"), absl::OkStatus());
  EXPECT_EQ(device, 1);
  const absl::Status beyond = (*driver)->Check((*driver)->cuDeviceGet(&device, 1000), "no device");
  EXPECT_TRUE(HasCode(beyond, ErrorCode::kTransport)) << beyond;
  EXPECT_THAT(std::string(beyond.message()), HasSubstr("no device: CUDA_ERROR_INVALID_DEVICE: invalid device ordinal"));
  const absl::Status full = (*driver)->Check(cuda::kResultOutOfMemory, "no memory");
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  const absl::Status unknown = (*driver)->Check(12345, "no luck");
  EXPECT_TRUE(HasCode(unknown, ErrorCode::kTransport)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no luck: CUDA error 12345"));
}

}  // namespace
}  // namespace headrace
