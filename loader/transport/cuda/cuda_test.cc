// The transport on the checker of loader/testing/nccl_checker, unless the environment names the real libraries
// (tools/gpu_check.sh). First on one host, by file descriptors; then, as another program of the same source, between
// endpoints that take each other for ones of other hosts, by fabric handles.
#include "loader/transport/cuda/cuda.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/cuda_driver.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/conformance.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

#ifdef HEADRACE_TEST_OTHER_HOSTS
constexpr bool kOtherHosts = true;
#else
constexpr bool kOtherHosts = false;
#endif

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

std::unique_ptr<Transport> NewEndpointOf(const std::optional<std::string>& host) {
  static std::atomic<int> next{0};
  CudaOptions options;
  options.gpu = next++;
  options.host = host;
  auto transport = NewCudaTransport(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

// Each on the next GPU.
std::unique_ptr<Transport> NewEndpointHere() {
  static std::atomic<int> hosts{0};
  return NewEndpointOf(kOtherHosts ? std::optional(absl::StrCat("host", getpid(), "-", hosts++)) : std::nullopt);
}

const CudaRuntime& Cuda() { return **LoadCudaRuntime(GpuOptionsFromEnvironment().cuda_runtime); }

// A GPU that may read memory of one.
int GpuThatReaches(const std::byte* memory) {
  const CudaDriver& driver = **LoadCudaDriver(GpuOptionsFromEnvironment().cuda_driver);
  int gpus = 0;
  EXPECT_EQ(Cuda().cudaGetDeviceCount(&gpus), cuda::kSuccess);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    const cuda::MemLocation location = {cuda::kMemLocationDevice, gpu};
    unsigned long long access = 0;
    EXPECT_EQ(driver.cuMemGetAccess(&access, &location, reinterpret_cast<cuda::DevicePointer>(memory)),
              cuda::kResultSuccess);
    if (access != cuda::kAccessNone) return gpu;
  }
  ADD_FAILURE() << "no GPU reaches it";
  return 0;
}

bool IsOnGpu(const std::byte* memory) {
  cuda::PointerAttributes attributes = {};
  EXPECT_EQ(Cuda().cudaPointerGetAttributes(&attributes, memory), cuda::kSuccess);
  return attributes.type == cuda::kDevice;
}

void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  const CurrentDevice current(Cuda(), GpuThatReaches(IsOnGpu(to) ? to : from));
  cuda::Stream stream = nullptr;
  ASSERT_EQ(Cuda().cudaStreamCreateWithFlags(&stream, cuda::kStreamNonBlocking), cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaMemcpyAsync(to, from, bytes, cuda::kMemcpyDefault, stream), cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaStreamSynchronize(stream), cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaStreamDestroy(stream), cuda::kSuccess);
}

void ExpectError(const absl::Status& status, const std::string& text) {
  EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(CudaTest, RegionsAreOnTheEndpointsGpu) {
  CudaOptions options;
  options.gpu = 1;
  auto transport = NewCudaTransport(options);
  ASSERT_TRUE(transport.ok()) << transport.status();
  int gpus = 0;
  ASSERT_EQ(Cuda().cudaGetDeviceCount(&gpus), cuda::kSuccess);
  const int gpu = 1 % gpus;
  EXPECT_EQ((*transport)->capabilities().region_gpu, gpu);
  EXPECT_EQ((*transport)->capabilities().gpu, std::nullopt);
  auto region = (*transport)->AllocateRegion(100);
  ASSERT_TRUE(region.ok()) << region.status();
  cuda::PointerAttributes attributes = {};
  ASSERT_EQ(Cuda().cudaPointerGetAttributes(&attributes, (*region)->bytes().data()), cuda::kSuccess);
  EXPECT_EQ(attributes.type, cuda::kDevice);
  EXPECT_EQ(attributes.device, gpu);
}

TEST(CudaTest, MoreThanTheGpuHas) {
  const auto transport = NewEndpointHere();
  const absl::Status full = transport->AllocateRegion(int64_t{1} << 44).status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("a region of 17592186044416 bytes is needed of the memory of GPU"));
}

TEST(CudaTest, AKeyOfSomethingElse) {
  const auto a = NewEndpointHere(), b = NewEndpointHere();
  const PeerId peer = a->Connect(b->address(), Soon()).value();
  auto region = b->AllocateRegion(5);
  ASSERT_TRUE(region.ok()) << region.status();
  for (const size_t bytes : {0, 15, 17, 87, 89}) {
    ExpectError(a->Map(peer, std::string(bytes, 'k'), Soon()).status(), "not a key of a region");
  }
  std::string key = (*region)->key();
  if (kOtherHosts) {
    ASSERT_EQ(key.size(), 64u + 8 + 16);
    for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
      std::string of_size = key;
      of_size.replace(64, sizeof size, reinterpret_cast<const char*>(&size), sizeof size);
      ExpectError(a->Map(peer, of_size, Soon()).status(), "map: ");
    }
    key[0] ^= 1;
    const absl::Status lost = a->Map(peer, key, Soon()).status();
    EXPECT_TRUE(HasCode(lost, ErrorCode::kPeerLost)) << lost;
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using headrace::nccl_checker::kLibraryPath;
  setenv("HEADRACE_CUDA_RUNTIME", kLibraryPath, 0);
  setenv("HEADRACE_CUDA_DRIVER", kLibraryPath, 0);
  headrace::ConformanceBackend backend;
  backend.name = "cuda";
  backend.new_world = [] { return headrace::NewEndpointHere; };
  backend.across_processes = true;
  backend.copy = headrace::CopyBytes;
  if (headrace::kOtherHosts) {
    // A peer of another host is asked nothing.
    backend.opt_out = {"WrongKeysAreRefused", "KeysOfOtherEndpointsAreRefused", "KeysEndWithTheirRegion",
                       "DeadOwnersAreLost",   "MappingsSurviveAKilledOwner",    "ConnectToAKilledProcess"};
  }
  return headrace::RunConformance(argc, argv, backend);
}
