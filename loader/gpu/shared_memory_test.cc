// On the checker's GPUs, a program for each kind of machine: HEADRACE_NCCL_CHECKER_HANDLE_TYPES (nccl_checker.h) says
// what their driver shares memory by.
#include "loader/gpu/shared_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/testing/checker_gpus.h"
#include "planner/status.h"

namespace headrace {
namespace {

using testing::Cuda;
using ::testing::HasSubstr;

constexpr int kOwner = 2, kPeer = 5;
constexpr int64_t kBytes = 100001;

std::string Machine() {
  const char* const types = std::getenv(nccl_checker::kHandleTypesVariable);
  return types == nullptr ? "fd,fabric" : types;
}
bool HasFds() { return absl::StrContains(Machine(), "fd"); }
bool HasFabric() { return absl::StrContains(Machine(), "fabric") && !absl::StrContains(Machine(), "denied"); }

absl::StatusOr<SharedMemoryOf> Gpu(int gpu) {
  return SharedMemoryOf::Gpu(Cuda(), **LoadCudaDriver(nccl_checker::kLibraryPath), gpu);
}

void ExpectError(const absl::Status& status, ErrorCode code, const std::string& text) {
  EXPECT_TRUE(HasCode(status, code)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

std::vector<std::byte> Contents(int gpu, const SharedMemory& memory) {
  const CurrentDevice current(Cuda(), gpu);
  std::vector<std::byte> bytes(kBytes);
  EXPECT_EQ(Cuda().cudaMemcpyAsync(bytes.data(), memory.data(), kBytes, cuda::kMemcpyDeviceToHost, nullptr),
            cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaStreamSynchronize(nullptr), cuda::kSuccess);
  return bytes;
}

void Fill(int gpu, const SharedMemory& memory, int value) {
  const CurrentDevice current(Cuda(), gpu);
  EXPECT_EQ(Cuda().cudaMemsetAsync(memory.data(), value, kBytes, nullptr), cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaStreamSynchronize(nullptr), cuda::kSuccess);
}

TEST(SharedMemoryTest, EveryMapperSeesWhatTheOwnerWrites) {
  const auto owner = Gpu(kOwner), peer = Gpu(kPeer);
  if (!HasFds() && !HasFabric()) GTEST_SKIP() << Machine();
  ASSERT_TRUE(owner.ok() && peer.ok()) << owner.status() << peer.status();
  auto made = owner->Allocate(kBytes);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->second.fd.get() >= 0, HasFds());
  EXPECT_EQ(made->second.fabric.has_value(), HasFabric());
  EXPECT_EQ(Contents(kOwner, *made->first), std::vector<std::byte>(kBytes));
  std::vector<std::unique_ptr<SharedMemory>> mapped;
  if (HasFds()) {
    mapped.push_back(*peer->Map(made->second.fd, kBytes));
    EXPECT_NE(fcntl(made->second.fd.get(), F_GETFD), -1);  // still the owner's
  }
  if (HasFabric()) mapped.push_back(*peer->Map(*made->second.fabric, kBytes));
  Fill(kOwner, *made->first, 3);
  for (const auto& memory : mapped) {
    EXPECT_NE(memory->data(), made->first->data());
    EXPECT_EQ(Contents(kPeer, *memory), std::vector<std::byte>(kBytes, std::byte{3}));
  }
  made->second.fd.Reset();
  made->first.reset();
  for (const auto& memory : mapped) {
    EXPECT_EQ(Contents(kPeer, *memory), std::vector<std::byte>(kBytes, std::byte{3}));
  }
}

// What is given back can be had again.
TEST(SharedMemoryTest, NothingIsKept) {
  const auto owner = Gpu(kOwner);
  if (!HasFds() && !HasFabric()) GTEST_SKIP() << Machine();
  ASSERT_TRUE(owner.ok()) << owner.status();
  size_t before = 0, after = 0, total = 0;
  const CurrentDevice current(Cuda(), kOwner);
  ASSERT_EQ(Cuda().cudaMemGetInfo(&before, &total), cuda::kSuccess);
  for (int i = 0; i < 20; ++i) {
    auto made = owner->Allocate(kBytes);
    ASSERT_TRUE(made.ok()) << made.status();
    if (HasFds()) {
      ASSERT_TRUE(owner->Map(made->second.fd, kBytes).ok());
    }
  }
  ASSERT_EQ(Cuda().cudaMemGetInfo(&after, &total), cuda::kSuccess);
  EXPECT_EQ(after, before);
}

TEST(SharedMemoryTest, WhatThereIsNot) {
  ExpectError(Gpu(99).status(), ErrorCode::kInvalidOption, "99");
  const auto owner = Gpu(kOwner);
  if (Machine().empty()) {
    ExpectError(owner.status(), ErrorCode::kTransport, "the driver of GPU 2 shares no memory between processes");
    return;
  }
  ASSERT_TRUE(owner.ok()) << owner.status();
  ExpectError(owner->Allocate(int64_t{1} << 40).status(), ErrorCode::kOutOfMemory,
              "a region of 1099511627776 bytes is needed of the memory of GPU 2");
  if (!HasFds() && !HasFabric()) {
    ExpectError(owner->Allocate(kBytes).status(), ErrorCode::kTransport, "IMEX");
    return;
  }
  const Descriptor other(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ExpectError(owner->Map(other, kBytes).status(), ErrorCode::kTransport, "what the owner sent is no memory for GPU 2");
  ExpectError(owner->Map(cuda::FabricHandle{}, kBytes).status(),
              HasFabric() ? ErrorCode::kPeerLost : ErrorCode::kTransport, "NVLink domain");
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  return RUN_ALL_TESTS();
}
