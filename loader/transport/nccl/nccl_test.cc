// The transport on the checker of loader/testing/nccl_checker, which is no NCCL: it moves the bytes and checks the
// calls.
#include "loader/transport/nccl/nccl.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"
#include "loader/transport/conformance.h"
#include "loader/transport/nccl/address.h"
#include "loader/transport/nccl/connection.h"
#include "loader/transport/nccl/link.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

absl::Time Soon() { return absl::Now() + absl::Minutes(3); }

std::unique_ptr<Transport> OnGpu(int gpu) {
  NcclOptions options;
  options.gpu = gpu;
  auto transport = NewNcclTransport(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

// On the checker's GPUs in turn.
std::unique_ptr<Transport> OnNextGpu() {
  static std::atomic<int> next{0};
  return OnGpu(next++);
}

struct Pair {
  Pair() : a(OnGpu(0)), b(OnGpu(1)) {
    to_b = a->Connect(b->address(), Soon()).value();
    to_a = b->Connect(a->address(), Soon()).value();
  }
  // Polls both until so many operations completed; the errors among them.
  std::vector<absl::Status> Poll(size_t operations) {
    std::vector<absl::Status> errors;
    const absl::Time deadline = Soon();
    size_t done = 0;
    while (done < operations && absl::Now() < deadline) {
      for (Transport* endpoint : {a.get(), b.get()}) {
        std::vector<Completion> completions;
        endpoint->Poll(absl::Milliseconds(1), &completions);
        done += completions.size();
        for (const Completion& c : completions) {
          if (!c.status.ok()) errors.push_back(c.status);
        }
      }
    }
    EXPECT_EQ(done, operations);
    return errors;
  }
  std::unique_ptr<Transport> a, b;
  PeerId to_a = 0, to_b = 0;
};

// Megatron-LM#7189: the checker refuses groups above its cap of 1,000 operations, and groups that differ.
TEST(NcclTest, ThousandsOfUnevenMessagesGoInGroupsBelowTheCap) {
  SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << nccl_checker::TestSeed());
  std::mt19937_64 random(nccl_checker::TestSeed());
  constexpr size_t kMessages = 4096;
  Pair pair;
  std::vector<Bytes> sent(kMessages), received(kMessages);
  for (size_t i = 0; i < kMessages; ++i) {
    sent[i].resize(nccl::Link::kInlineBytes + 1 + random() % 3000);
    for (std::byte& byte : sent[i]) byte = static_cast<std::byte>(random());
    received[i].resize(sent[i].size());
  }
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(pair.b->Receive(pair.to_a, i % 5, absl::MakeSpan(received[i])).ok());
    ASSERT_TRUE(pair.a->Send(pair.to_b, i % 5, sent[i]).ok());
  }
  EXPECT_TRUE(pair.Poll(2 * kMessages).empty());
  EXPECT_TRUE(received == sent);
}

// Ring of endpoints that each send to the next and receive from the one before, more than a group holds: any order
// that one rank imposes on its peers would lock it up.
TEST(NcclTest, CirclesDoNotLockUp) {
  constexpr size_t kEndpoints = 6, kMessages = 12, kBytes = 1 << 20;
  std::vector<std::unique_ptr<Transport>> endpoints;
  for (size_t i = 0; i < kEndpoints; ++i) endpoints.push_back(OnNextGpu());
  std::vector<std::vector<Bytes>> received(kEndpoints, std::vector<Bytes>(kMessages * (kEndpoints - 1), Bytes(kBytes)));
  std::vector<Bytes> sent;
  for (size_t i = 0; i < kEndpoints; ++i) sent.push_back(Bytes(kBytes, static_cast<std::byte>(i + 1)));
  for (size_t i = 0; i < kEndpoints; ++i) {
    for (size_t d = 1; d < kEndpoints; ++d) {
      const size_t other = (i + d) % kEndpoints;
      const PeerId peer = endpoints[i]->Connect(endpoints[other]->address(), Soon()).value();
      for (size_t m = 0; m < kMessages; ++m) {
        ASSERT_TRUE(endpoints[i]->Send(peer, m, sent[i]).ok());
        ASSERT_TRUE(endpoints[i]->Receive(peer, m, absl::MakeSpan(received[i][(d - 1) * kMessages + m])).ok());
      }
    }
  }
  size_t done = 0;
  const absl::Time deadline = Soon();
  while (done < 2 * kEndpoints * (kEndpoints - 1) * kMessages && absl::Now() < deadline) {
    for (auto& endpoint : endpoints) {
      std::vector<Completion> completions;
      endpoint->Poll(absl::Milliseconds(1), &completions);
      done += completions.size();
      for (const Completion& c : completions) ASSERT_TRUE(c.status.ok()) << c.status;
    }
  }
  ASSERT_EQ(done, 2 * kEndpoints * (kEndpoints - 1) * kMessages);
  for (size_t i = 0; i < kEndpoints; ++i) {
    for (size_t d = 1; d < kEndpoints; ++d) {
      for (size_t m = 0; m < kMessages; ++m) {
        EXPECT_TRUE(received[i][(d - 1) * kMessages + m] == sent[(i + d) % kEndpoints]);
      }
    }
  }
}

TEST(NcclTest, MessagesOfDeviceMemoryNeedNoStaging) {
  const CudaRuntime& cuda = **LoadCudaRuntime("");
  Pair pair;
  constexpr size_t kBytes = 100000;
  for (bool from_device : {false, true}) {
    for (bool to_device : {false, true}) {
      for (size_t bytes : {size_t{0}, size_t{1}, nccl::Link::kInlineBytes, kBytes}) {
        Bytes host(kBytes), got(kBytes);
        for (size_t i = 0; i < bytes; ++i) host[i] = static_cast<std::byte>(7 * i + bytes + from_device);
        const auto allocate = [&](int device) {
          void* memory = nullptr;
          const CurrentDevice current(cuda, device);
          EXPECT_EQ(cuda.cudaMalloc(&memory, kBytes), cuda::kSuccess);
          return static_cast<std::byte*>(memory);
        };
        const auto copy = [&](void* to, const void* from, int kind, int device) {
          const CurrentDevice current(cuda, device);
          EXPECT_EQ(cuda.cudaMemcpyAsync(to, from, kBytes, kind, nullptr), cuda::kSuccess);
          EXPECT_EQ(cuda.cudaStreamSynchronize(nullptr), cuda::kSuccess);
        };
        std::byte* source = from_device ? allocate(0) : host.data();
        std::byte* destination = to_device ? allocate(1) : got.data();
        if (from_device) copy(source, host.data(), cuda::kMemcpyHostToDevice, 0);
        ASSERT_TRUE(pair.a->Send(pair.to_b, 1, {source, bytes}).ok());
        ASSERT_TRUE(pair.b->Receive(pair.to_a, 1, {destination, bytes}).ok());
        EXPECT_TRUE(pair.Poll(2).empty());
        if (to_device) copy(got.data(), destination, cuda::kMemcpyDeviceToHost, 1);
        EXPECT_TRUE(std::equal(host.begin(), host.begin() + bytes, got.begin())) << bytes;
        if (from_device) cuda.cudaFree(source);
        if (to_device) cuda.cudaFree(destination);
      }
    }
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  setenv("HEADRACE_CUDA_RUNTIME", headrace::nccl_checker::kLibraryPath, 0);
  setenv("HEADRACE_NCCL", headrace::nccl_checker::kLibraryPath, 0);
  // Peers in other processes may be on the same GPU.
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  return headrace::RunConformance(argc, argv, {"nccl", [] { return [] { return headrace::OnNextGpu(); }; }, true});
}
