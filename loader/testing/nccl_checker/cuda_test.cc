// The fake CUDA: memory, streams, events; and what the shared object exports.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "loader/testing/nccl_checker/checker_testing.h"
#include "loader/testing/nccl_checker/nccl_checker.h"

namespace headrace::nccl_checker {
namespace {

using testing::Each;

// A host function that waits until it is let go.
class Gate {
 public:
  explicit Gate(cuda::Stream stream) {
    MUST(lib().cudaLaunchHostFunc(
        stream,
        [](void* gate) {
          static_cast<Gate*>(gate)->begun_ = true;
          static_cast<Gate*>(gate)->begun_.notify_all();
          static_cast<Gate*>(gate)->open_.wait(false);
        },
        this));
  }
  void AwaitBegun() { begun_.wait(false); }
  void Open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> begun_{false}, open_{false};
};

struct Pinned {
  explicit Pinned(size_t bytes) {
    MUST(lib().cudaHostAlloc(reinterpret_cast<void**>(&data), bytes, cuda::kHostAllocPortable));
  }
  ~Pinned() { lib().cudaFreeHost(data); }
  unsigned char* data = nullptr;
};

TEST(CudaTest, DevicesHaveIdsOfTheirOwnAndOneIsCurrentInEachThread) {
  int count = 0;
  MUST(lib().cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 8);
  std::set<std::string> ids;
  for (int i = 0; i < count; ++i) {
    char id[16];
    MUST(lib().cudaDeviceGetPCIBusId(id, sizeof(id), i));
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 8u);
  MUST(lib().cudaSetDevice(3));
  std::thread([] {
    int device = -1;
    MUST(lib().cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
  }).join();
  int device = -1;
  MUST(lib().cudaGetDevice(&device));
  EXPECT_EQ(device, 3);
  EXPECT_EQ(lib().cudaSetDevice(8), cuda::kErrorInvalidDevice);
  EXPECT_EQ(lib().cudaGetLastError(), cuda::kErrorInvalidDevice);
  EXPECT_EQ(lib().cudaGetLastError(), cuda::kSuccess);
  EXPECT_STREQ(lib().cudaGetErrorName(cuda::kErrorInvalidDevice), "cudaErrorInvalidDevice");
}

TEST(CudaTest, AttributesTellMemoryApart) {
  Buffer device(5, 100);
  Pinned pinned(100);
  int pageable = 0;
  cuda::PointerAttributes attributes;
  for (const size_t offset : {0, 99}) {
    MUST(lib().cudaPointerGetAttributes(&attributes, device.data + offset));
    EXPECT_EQ(attributes.type, cuda::kDevice);
    EXPECT_EQ(attributes.device, 5);
    EXPECT_EQ(attributes.device_pointer, device.data + offset);
    EXPECT_EQ(attributes.host_pointer, nullptr);
    MUST(lib().cudaPointerGetAttributes(&attributes, pinned.data + offset));
    EXPECT_EQ(attributes.type, cuda::kHost);
    EXPECT_EQ(attributes.host_pointer, pinned.data + offset);
  }
  for (const void* pointer : {static_cast<const void*>(&pageable), static_cast<const void*>(device.data + 100)}) {
    MUST(lib().cudaPointerGetAttributes(&attributes, pointer));
    EXPECT_EQ(attributes.type, cuda::kUnregistered);
  }
}

TEST(CudaTest, MemoryIsFilledAndCounted) {
  size_t before, during, after, total;
  MUST(lib().cudaSetDevice(2));
  MUST(lib().cudaMemGetInfo(&before, &total));
  {
    Buffer device(2, 5000);
    MUST(lib().cudaMemGetInfo(&during, &total));
    Rank rank(2);
    EXPECT_THAT(device.Get(rank.stream), Each(0xCB));
  }
  MUST(lib().cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before - during, 5000u);
  EXPECT_EQ(after, before);
  void* pointer;
  EXPECT_EQ(lib().cudaMalloc(&pointer, total + 1), cuda::kErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
}

TEST(CudaTest, CopiesOfPinnedMemoryAreAsynchronous) {
  Rank rank(0);
  Buffer device(0, 4);
  Pinned pinned(4);
  std::memset(pinned.data, 1, 4);
  Gate gate(rank.stream);
  MUST(lib().cudaMemcpyAsync(device.data, pinned.data, 4, cuda::kMemcpyHostToDevice, rank.stream));
  MUST(lib().cudaMemsetAsync(device.data, 7, 1, rank.stream));
  std::memset(pinned.data, 2, 4);  // before the copy runs
  EXPECT_EQ(lib().cudaStreamQuery(rank.stream), cuda::kErrorNotReady);
  gate.Open();
  EXPECT_EQ(device.Get(rank.stream), (std::vector<unsigned char>{7, 2, 2, 2}));
}

TEST(CudaTest, CopiesOfPageableMemoryReturnWhenTheyAreDone) {
  Rank rank(0);
  Buffer device(0, 4);
  Gate gate(rank.stream);
  std::atomic<bool> returned{false};
  std::thread copier([&] {
    device.Set({1, 2, 3, 4}, rank.stream);
    returned = true;
  });
  gate.AwaitBegun();
  EXPECT_FALSE(returned);
  gate.Open();
  copier.join();
  EXPECT_EQ(lib().cudaStreamQuery(rank.stream), cuda::kSuccess);
}

TEST(CudaTest, EventsAreOfTheWorkBeforeThem) {
  Rank one(0), two(0);
  Buffer device(0, 1);
  cuda::Event event;
  MUST(lib().cudaEventCreateWithFlags(&event, cuda::kEventDisableTiming));
  EXPECT_EQ(lib().cudaEventQuery(event), cuda::kSuccess);  // never recorded
  Gate first(one.stream);
  MUST(lib().cudaEventRecord(event, one.stream));
  Gate second(one.stream);
  MUST(lib().cudaStreamWaitEvent(two.stream, event, 0));
  MUST(lib().cudaMemsetAsync(device.data, 9, 1, two.stream));
  EXPECT_EQ(lib().cudaEventQuery(event), cuda::kErrorNotReady);
  EXPECT_EQ(lib().cudaStreamQuery(two.stream), cuda::kErrorNotReady);
  first.Open();
  MUST(lib().cudaStreamSynchronize(two.stream));
  EXPECT_EQ(device.Get(two.stream)[0], 9);
  EXPECT_EQ(lib().cudaEventQuery(event), cuda::kSuccess);
  EXPECT_EQ(lib().cudaStreamQuery(one.stream), cuda::kErrorNotReady);
  second.Open();
  MUST(lib().cudaStreamSynchronize(one.stream));
  MUST(lib().cudaEventDestroy(event));
}

TEST(CudaTest, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  MUST(lib().cudaSetDevice(0));
  cuda::Stream blocking;
  MUST(lib().cudaStreamCreateWithFlags(&blocking, 0));
  Rank independent(0);
  Buffer device(0, 1);
  Gate first(blocking);
  Gate second(nullptr);
  MUST(lib().cudaMemsetAsync(device.data, 5, 1, blocking));
  MUST(lib().cudaStreamSynchronize(independent.stream));
  EXPECT_EQ(lib().cudaStreamQuery(nullptr), cuda::kErrorNotReady);
  first.Open();
  second.AwaitBegun();
  EXPECT_EQ(lib().cudaStreamQuery(blocking), cuda::kErrorNotReady);
  second.Open();
  MUST(lib().cudaStreamSynchronize(blocking));
  EXPECT_EQ(device.Get(independent.stream)[0], 5);
  MUST(lib().cudaStreamDestroy(blocking));
}

TEST(ExportsTest, TheFunctionsOfTheListsAndNothingElse) {
  std::set<std::string> expected, exported;
#define NAME(name, parameters) expected.insert(#name);
  HEADRACE_CUDA_FUNCTIONS(NAME)
  HEADRACE_CUDA_DRIVER_FUNCTIONS(NAME)
  HEADRACE_CUDA_TEXT_FUNCTIONS(NAME)
  HEADRACE_NCCL_FUNCTIONS(NAME)
  HEADRACE_NCCL_TEXT_FUNCTIONS(NAME)
#undef NAME
  const std::string command = std::string("nm -D --defined-only --format=posix ") + kLibraryPath;
  FILE* output = popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  char name[1000];
  while (std::fscanf(output, "%999s%*[^\n]", name) == 1) exported.insert(name);
  EXPECT_EQ(pclose(output), 0);
  EXPECT_EQ(exported, expected);
}

}  // namespace
}  // namespace headrace::nccl_checker

int main(int argc, char** argv) { return headrace::nccl_checker::CheckerTestMain(argc, argv, {}); }
