// Tables of copies on the checker's GPUs, whose memory is the host's: naive loops read it too.
#include "loader/gpu/gpu_copies.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/strided_copy.h"
#include "loader/testing/checker_gpus.h"
#include "loader/testing/naive_copy.h"
#include "planner/status.h"

namespace headrace {
namespace {

using testing::Cuda;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr int kGpu = 3;
constexpr int64_t kGpuBytes = 4 << 20;

uint64_t TestSeed() {
  const char* given = std::getenv("HEADRACE_TEST_SEED");
  static const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  return seed;
}

std::unique_ptr<GpuCopies> Make() {
  auto copies = GpuCopies::Create(kGpu);
  EXPECT_TRUE(copies.ok()) << copies.status();
  return *std::move(copies);
}

std::unique_ptr<DeviceMemory> OnGpu(const Bytes& bytes) {
  auto memory = *DeviceMemory::Allocate(Cuda(), kGpu, static_cast<int64_t>(bytes.size()), "a test");
  std::memcpy(memory->data(), bytes.data(), bytes.size());
  return memory;
}

Bytes BytesOf(const DeviceMemory& memory) { return Bytes(memory.data(), memory.data() + memory.bytes()); }

Bytes RandomBytes(size_t count, std::mt19937_64& random) {
  Bytes bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

int64_t FreeBytes() {
  const CurrentDevice current(Cuda(), kGpu);
  size_t free = 0, total = 0;
  EXPECT_EQ(Cuda().cudaMemGetInfo(&free, &total), cuda::kSuccess);
  return static_cast<int64_t>(free);
}

// Boxes in memories of `kRoom` bytes each, which they fill in part.
constexpr int64_t kRoom = 4096;

kernels::StridedCopy RandomBox(std::mt19937_64& random, const std::byte* src, std::byte* dst) {
  kernels::StridedCopy box;
  box.src = src;
  box.dst = dst;
  box.tensor_key = random();
  box.first_byte = static_cast<int64_t>(random() % 1000);
  box.run_bytes = 1 + static_cast<int64_t>(random() % 40);
  box.rank = static_cast<int>(random() % 3);
  int64_t src_room = box.run_bytes, dst_room = box.run_bytes, positions = box.run_bytes;
  for (int i = box.rank; i-- > 0;) {
    box.extent[i] = 1 + static_cast<int64_t>(random() % 6);
    box.src_stride[i] = src_room + static_cast<int64_t>(random() % 5);
    box.dst_stride[i] = dst_room + static_cast<int64_t>(random() % 5);
    box.pos_stride[i] = positions;
    src_room = box.src_stride[i] * box.extent[i];
    dst_room = box.dst_stride[i] * box.extent[i];
    positions *= box.extent[i];
  }
  EXPECT_LE(std::max(src_room, dst_room), kRoom);
  return box;
}

// The same box of another pair of memories.
kernels::StridedCopy At(kernels::StridedCopy box, const std::byte* src, std::byte* dst) {
  box.src = src;
  box.dst = dst;
  return box;
}

TEST(GpuCopiesTest, RandomTablesCopyAndSum) {
  SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  const auto copies = Make();
  for (int round = 0; round < 100; ++round) {
    const int64_t boxes = 1 + static_cast<int64_t>(random() % 20), slots = 1 + static_cast<int64_t>(random() % 4);
    const Bytes source = RandomBytes(static_cast<size_t>(boxes * kRoom), random);
    Bytes wanted(source.size(), std::byte{0xA5});
    const auto from = OnGpu(source), to = OnGpu(wanted);
    std::vector<uint64_t> sums(static_cast<size_t>(slots));
    for (uint64_t& sum : sums) sum = random();
    std::vector<uint64_t> wanted_sums = sums;
    kernels::CopyTable table;
    for (int64_t i = 0; i < boxes; ++i) {
      const int64_t slot = static_cast<int64_t>(random() % static_cast<uint64_t>(slots));
      const kernels::StridedCopy here = RandomBox(random, source.data() + i * kRoom, wanted.data() + i * kRoom);
      testing::VisitBox(here, [](const std::byte* src, std::byte* dst, int64_t) { *dst = *src; });
      wanted_sums[static_cast<size_t>(slot)] += kernels::Sum(here);
      table.AddCopy(At(here, from->data() + i * kRoom, to->data() + i * kRoom), slot);
    }
    const int64_t free = FreeBytes();
    ASSERT_EQ(copies->Run(table, absl::MakeSpan(sums)), absl::OkStatus());
    EXPECT_EQ(FreeBytes(), free);
    ASSERT_EQ(sums, wanted_sums) << "round " << round;  // added to what was there
    ASSERT_TRUE(BytesOf(*to) == wanted) << "round " << round;
    // Without sums, and again.
    std::memset(to->data(), 0xA5, source.size());
    ASSERT_EQ(copies->Run(table, {}), absl::OkStatus());
    ASSERT_TRUE(BytesOf(*to) == wanted) << "round " << round;
  }
}

TEST(GpuCopiesTest, AnUploadedTableRunsOften) {
  SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  const auto copies = Make();
  const int64_t free = FreeBytes();
  {
    const auto from = OnGpu(Bytes(kRoom)), to = OnGpu(Bytes(kRoom));
    const kernels::StridedCopy box = RandomBox(random, from->data(), to->data());
    GpuCopies::Uploaded uploaded;
    {
      kernels::CopyTable table;  // which may go
      table.AddCopy(box, 0);
      auto made = copies->Upload(table);
      ASSERT_TRUE(made.ok()) << made.status();
      uploaded = *std::move(made);
    }
    const int64_t left = FreeBytes();
    for (int again = 0; again < 3; ++again) {
      const Bytes source = RandomBytes(kRoom, random);
      std::memcpy(from->data(), source.data(), source.size());
      std::memset(to->data(), 0xA5, kRoom);
      Bytes wanted(kRoom, std::byte{0xA5});
      testing::VisitBox(At(box, source.data(), wanted.data()),
                        [](const std::byte* src, std::byte* dst, int64_t) { *dst = *src; });
      ASSERT_EQ(copies->Run(uploaded), absl::OkStatus());
      EXPECT_TRUE(BytesOf(*to) == wanted);
    }
    EXPECT_EQ(FreeBytes(), left);
  }
  EXPECT_EQ(FreeBytes(), free);
}

TEST(GpuCopiesTest, AnEmptyTableIsNoWork) {
  const auto copies = Make();
  const int64_t free = FreeBytes();
  const auto uploaded = copies->Upload({});
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
  EXPECT_EQ(uploaded->image, nullptr);
  EXPECT_EQ(FreeBytes(), free);
  EXPECT_EQ(copies->Run(*uploaded), absl::OkStatus());
  uint64_t sum = 5;
  EXPECT_EQ(copies->Run(kernels::CopyTable(), absl::MakeSpan(&sum, 1)), absl::OkStatus());
  EXPECT_EQ(sum, 5u);
}

TEST(GpuCopiesTest, TheLargestTableThatIsRunOnce) {
  std::mt19937_64 random(1);
  const auto copies = Make();
  const Bytes source = RandomBytes(GpuCopies::kMostSums, random);
  const auto from = OnGpu(source);
  std::vector<uint64_t> sums(GpuCopies::kMostSums), wanted(GpuCopies::kMostSums);
  kernels::CopyTable table;
  for (int64_t boxes = 0;; ++boxes) {
    kernels::StridedCopy box;
    box.src = source.data() + boxes % GpuCopies::kMostSums;
    box.run_bytes = 1;
    kernels::CopyTable larger = table;
    larger.AddSum(At(box, from->data() + boxes % GpuCopies::kMostSums, nullptr), boxes % GpuCopies::kMostSums);
    if (larger.ImageBytes() > GpuCopies::kMostImageBytes) break;
    wanted[static_cast<size_t>(boxes % GpuCopies::kMostSums)] += kernels::Sum(box);
    table = std::move(larger);
  }
  ASSERT_EQ(copies->Run(table, absl::MakeSpan(sums)), absl::OkStatus());
  EXPECT_EQ(sums, wanted);
}

// What was asked for is refused as a whole; the next table runs.
TEST(GpuCopiesTest, AFailureIsToldAndNotKept) {
  const auto copies = Make();
  const auto from = OnGpu(Bytes(8, std::byte{3})), to = OnGpu(Bytes(8, std::byte{0xA5}));
  const Bytes pageable(8);
  kernels::StridedCopy box;
  box.run_bytes = 8;
  kernels::CopyTable wrong, right;
  wrong.AddCopy(At(box, pageable.data(), to->data()), 0);
  right.AddCopy(At(box, from->data(), to->data()), 0);
  uint64_t sum = 5;
  setenv(nccl_checker::kOnViolationVariable, "return", 1);
  for (const absl::Status& failed :
       {copies->Run(wrong, absl::MakeSpan(&sum, 1)), copies->Run(wrong, {}), copies->Run(*copies->Upload(wrong))}) {
    EXPECT_TRUE(HasCode(failed, ErrorCode::kTransport)) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("copies on GPU 3: the checker refused a launch"));
  }
  unsetenv(nccl_checker::kOnViolationVariable);
  EXPECT_EQ(sum, 5u);
  EXPECT_EQ(to->data()[0], std::byte{0xA5});
  EXPECT_EQ(copies->Run(right, absl::MakeSpan(&sum, 1)), absl::OkStatus());
  EXPECT_NE(sum, 5u);
  EXPECT_EQ(to->data()[0], std::byte{3});
}

TEST(GpuCopiesTest, ItsMemoryIsFreedWithIt) {
  const int64_t free = FreeBytes();
  {
    const auto copies = Make();
    EXPECT_EQ(copies->gpu(), kGpu);
    EXPECT_LE(FreeBytes(), free - GpuCopies::kMostImageBytes);
  }
  EXPECT_EQ(FreeBytes(), free);
}

TEST(GpuCopiesTest, AGpuWithoutRoomIsNamed) {
  auto filled = *DeviceMemory::Allocate(Cuda(), kGpu, FreeBytes() - GpuCopies::kMostImageBytes, "a test");
  const int64_t free = FreeBytes();
  const absl::Status full = GpuCopies::Create(kGpu).status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("tables of copies: "));
  EXPECT_EQ(FreeBytes(), free);  // what it had got, too
  filled.reset();
  const auto copies = Make();
  const auto from = OnGpu(Bytes(8)), to = OnGpu(Bytes(8));
  kernels::StridedCopy box;
  box.run_bytes = 8;
  kernels::CopyTable table;
  table.AddCopy(At(box, from->data(), to->data()), 0);
  filled = *DeviceMemory::Allocate(Cuda(), kGpu, FreeBytes(), "a test");
  const absl::Status no_upload = copies->Upload(table).status();
  EXPECT_TRUE(HasCode(no_upload, ErrorCode::kOutOfMemory)) << no_upload;
  EXPECT_THAT(std::string(no_upload.message()), HasSubstr("a table of copies: "));
  EXPECT_EQ(copies->Run(table, {}), absl::OkStatus());  // which needs none
}

TEST(GpuCopiesTest, WhatIsNotThereIsNamed) {
  for (int gpu : {-1, 99}) {
    const absl::Status none = GpuCopies::Create(gpu).status();
    EXPECT_TRUE(HasCode(none, ErrorCode::kInvalidOption)) << none;
  }
  const std::string kernels = std::getenv("HEADRACE_CUDA_KERNELS");
  const auto with = [&](const char* path) {
    setenv("HEADRACE_CUDA_KERNELS", path, 1);
    const absl::Status status = GpuCopies::Create(kGpu).status();
    setenv("HEADRACE_CUDA_KERNELS", kernels.c_str(), 1);
    EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(with("/nonexistent/kernels.so"),
              ::testing::AllOf(HasSubstr("/nonexistent/kernels.so"), HasSubstr("HEADRACE_CUDA_KERNELS")));
  // A member that cannot run them is told when it joins, not when it publishes.
  EXPECT_THAT(with("loader/gpu/libheadrace_refusing_kernels.so"), HasSubstr("copies on GPU 3: no kernel image"));
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  setenv(headrace::nccl_checker::kDeviceBytesVariable, std::to_string(headrace::kGpuBytes).c_str(), 1);
  return RUN_ALL_TESTS();
}
