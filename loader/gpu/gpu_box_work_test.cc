// Batches of byte work on the checker's GPUs against the CPU's own, bit for bit.
#include "loader/gpu/gpu_box_work.h"

#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/cuda_driver.h"
#include "loader/testing/checker_gpus.h"
#include "planner/status.h"

namespace headrace {
namespace {

using testing::Cuda;
using ::testing::HasSubstr;

constexpr int kGpu = 3;

std::unique_ptr<DeviceMemory> OnGpu(const std::vector<std::byte>& bytes) {
  auto memory = *DeviceMemory::Allocate(Cuda(), kGpu, static_cast<int64_t>(bytes.size()), "a test");
  const CurrentDevice current(Cuda(), kGpu);
  EXPECT_EQ(Cuda().cudaMemcpyAsync(memory->data(), bytes.data(), bytes.size(), cuda::kMemcpyHostToDevice, nullptr),
            cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaStreamSynchronize(nullptr), cuda::kSuccess);
  return memory;
}

std::vector<std::byte> FromGpu(const DeviceMemory& memory) {
  std::vector<std::byte> bytes(static_cast<size_t>(memory.bytes()));
  const CurrentDevice current(Cuda(), kGpu);
  EXPECT_EQ(Cuda().cudaMemcpyAsync(bytes.data(), memory.data(), bytes.size(), cuda::kMemcpyDeviceToHost, nullptr),
            cuda::kSuccess);
  EXPECT_EQ(Cuda().cudaStreamSynchronize(nullptr), cuda::kSuccess);
  return bytes;
}

// Rows of `run` bytes at every `stride`-th of a memory.
kernels::StridedCopy Rows(int64_t rows, int64_t run, int64_t stride, const std::byte* src, std::byte* dst) {
  kernels::StridedCopy box;
  box.src = src;
  box.dst = dst;
  box.rank = 1;
  box.extent[0] = rows;
  box.src_stride[0] = box.dst_stride[0] = stride;
  box.pos_stride[0] = run;
  box.run_bytes = run;
  box.tensor_key = 77;
  return box;
}

// More boxes and sums than a batch holds; what it packs is what the CPU packs, and unpacks to the same.
TEST(GpuBoxWorkTest, ManyBoxesAreSeveralBatches) {
  constexpr int64_t kBoxes = 3 * GpuCopies::kMostSums / 2, kRows = 3, kRun = 5, kStride = 7;
  constexpr int64_t kBytes = kBoxes * kRows * kStride, kPacked = kRows * kRun;
  std::mt19937_64 random(1);
  std::vector<std::byte> source(kBytes), packed(kBoxes * kPacked), destination(kBytes, std::byte{9});
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  const std::vector<std::byte> untouched = destination;
  auto work = GpuBoxWork::WithoutChunks(kGpu);
  ASSERT_TRUE(work.ok()) << work.status();
  const auto on_gpu = OnGpu(source), packed_there = OnGpu(packed), unpacked_there = OnGpu(destination);
  std::vector<uint64_t> sums(kBoxes), sums_there(kBoxes), sums_again(kBoxes, 5);
  const auto at = [](int64_t box) { return box * kRows * kStride; };
  const auto of = [&](auto* memory, int64_t box) { return absl::MakeSpan(memory + box * kPacked, kPacked); };
  for (int64_t i = 0; i < kBoxes; ++i) {
    const auto box = [&](const std::byte* src, std::byte* dst) { return Rows(kRows, kRun, kStride, src, dst); };
    OnCpu()->Pack(box(source.data() + at(i), nullptr), 0, of(packed.data(), i));
    OnCpu()->Sum(box(source.data() + at(i), nullptr), &sums[i]);
    (*work)->Pack(box(on_gpu->data() + at(i), nullptr), 0, of(packed_there->data(), i));
    (*work)->Sum(box(on_gpu->data() + at(i), nullptr), &sums_there[i]);
  }
  ASSERT_EQ((*work)->Finish(), absl::OkStatus());
  EXPECT_EQ(FromGpu(*packed_there), packed);
  EXPECT_EQ(sums_there, sums);
  for (int64_t i = 0; i < kBoxes; ++i) {
    const auto box = [&](std::byte* dst) { return Rows(kRows, kRun, kStride, nullptr, dst); };
    uint64_t sum = 0;
    OnCpu()->Unpack(box(destination.data() + at(i)), 0, of(packed.data(), i), &sum);
    (*work)->Unpack(box(unpacked_there->data() + at(i)), 0, of(packed_there->data(), i), &sums_again[i]);
    sums[i] += 5;
  }
  ASSERT_EQ((*work)->Finish(), absl::OkStatus());
  EXPECT_EQ(FromGpu(*unpacked_there), destination);
  EXPECT_NE(destination, untouched);
  EXPECT_EQ(sums_again, sums);  // added to what was there
  EXPECT_EQ((*work)->Finish(), absl::OkStatus());
}

// A sum that is made of several boxes, not one behind the other either.
TEST(GpuBoxWorkTest, BoxesThatShareASum) {
  auto work = GpuBoxWork::WithoutChunks(kGpu);
  ASSERT_TRUE(work.ok()) << work.status();
  const std::vector<std::byte> source(60, std::byte{3});
  const auto on_gpu = OnGpu(source);
  uint64_t here[2] = {}, there[2] = {};
  for (int i : {0, 0, 1, 0, 1}) {
    OnCpu()->Sum(Rows(2, 8, 30, source.data(), nullptr), &here[i]);
    (*work)->Sum(Rows(2, 8, 30, on_gpu->data(), nullptr), &there[i]);
  }
  ASSERT_EQ((*work)->Finish(), absl::OkStatus());
  EXPECT_EQ(there[0], here[0]);
  EXPECT_EQ(there[1], here[1]);
}

// Copies with and without sums, and conversions, more than a batch holds of each.
TEST(GpuBoxWorkTest, CopiesAndConversions) {
  constexpr int64_t kBoxes = GpuCopies::kMostSums + 9, kRows = 2, kRun = 12, kStride = 16,
                    kBytes = kBoxes * 2 * kStride;
  std::mt19937_64 random(2);
  std::vector<std::byte> source(kBytes), copied(kBytes, std::byte{9}), summed = copied, converted = copied;
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  const auto from = OnGpu(source), copied_there = OnGpu(copied), summed_there = OnGpu(copied);
  const auto converted_there = OnGpu(copied);
  auto work = GpuBoxWork::WithoutChunks(kGpu);
  ASSERT_TRUE(work.ok()) << work.status();
  std::vector<uint64_t> sums(kBoxes, 3), sums_there(kBoxes, 3);
  for (int64_t i = 0; i < kBoxes; ++i) {
    const int64_t at = i * kRows * kStride;
    const auto copy = [&](BoxWork* on, const std::byte* src, std::byte* plain, std::byte* with_sum, uint64_t* sum) {
      on->Copy(Rows(kRows, kRun, kStride, src + at, plain + at), nullptr);
      on->Copy(Rows(kRows, kRun, kStride, src + at, with_sum + at), sum);
    };
    copy(OnCpu(), source.data(), copied.data(), summed.data(), &sums[i]);
    copy(work->get(), from->data(), copied_there->data(), summed_there->data(), &sums_there[i]);
    const auto cast = [&](BoxWork* on, const std::byte* src, std::byte* dst) {
      kernels::StridedCast box;
      box.src = src + at;
      box.dst = dst + at;
      box.rank = 1;
      box.extent[0] = 5;
      box.src_stride[0] = 4;
      box.dst_stride[0] = 6;
      on->Cast(kernels::FloatType::kF32, kernels::FloatType::kBF16, box);
    };
    cast(OnCpu(), source.data(), converted.data());
    cast(work->get(), from->data(), converted_there->data());
  }
  ASSERT_EQ((*work)->Finish(), absl::OkStatus());
  EXPECT_EQ(FromGpu(*copied_there), copied);
  EXPECT_EQ(FromGpu(*summed_there), copied);
  EXPECT_EQ(FromGpu(*converted_there), converted);
  EXPECT_EQ(sums_there, sums);
}

TEST(GpuBoxWorkTest, WhatIsConvertedIsAligned) {
  auto work = GpuBoxWork::WithoutChunks(kGpu);
  ASSERT_TRUE(work.ok()) << work.status();
  const auto memory = OnGpu(std::vector<std::byte>(64));
  for (const auto& [src, dst] : {std::pair<int, int>{2, 32}, {4, 33}}) {
    kernels::StridedCast box;
    box.src = memory->data() + src;
    box.dst = memory->data() + dst;
    (*work)->Cast(kernels::FloatType::kF32, kernels::FloatType::kBF16, box);
    const absl::Status status = (*work)->Finish();
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  }
  EXPECT_EQ((*work)->Finish(), absl::OkStatus());
}

TEST(GpuBoxWorkTest, Words) {
  auto work = GpuBoxWork::WithoutChunks(kGpu);
  ASSERT_TRUE(work.ok()) << work.status();
  const auto memory = OnGpu(std::vector<std::byte>(64));
  const uint64_t words[] = {1, ~uint64_t{0}, 0x0123456789abcdef};
  ASSERT_EQ((*work)->StoreWords(words, memory->data() + 8), absl::OkStatus());
  uint64_t got[5] = {7, 7, 7, 7, 7};
  ASSERT_EQ((*work)->LoadWords(memory->data(), absl::MakeSpan(got)), absl::OkStatus());
  EXPECT_THAT(got, ::testing::ElementsAre(0, words[0], words[1], words[2], 0));
  EXPECT_EQ((*work)->LoadWords(memory->data(), {}), absl::OkStatus());
}

// Memory of another GPU, mapped with or without access for the one that packs.
TEST(GpuBoxWorkTest, MemoryOfAnotherGpuThatIsMapped) {
  constexpr size_t kBytes = 64 << 10;  // the checker's granularity
  const CudaDriver& driver = **LoadCudaDriver(nccl_checker::kLibraryPath);
  const cuda::AllocationProp prop = {
      cuda::kAllocationTypePinned, cuda::kHandleTypeNone, {cuda::kMemLocationDevice, kGpu + 1}, nullptr, {}};
  cuda::AllocationHandle handle;
  cuda::DevicePointer address;
  ASSERT_EQ(driver.cuMemCreate(&handle, kBytes, &prop, 0), cuda::kResultSuccess);
  ASSERT_EQ(driver.cuMemAddressReserve(&address, kBytes, 0, 0, 0), cuda::kResultSuccess);
  ASSERT_EQ(driver.cuMemMap(address, kBytes, 0, handle, 0), cuda::kResultSuccess);
  ASSERT_EQ(driver.cuMemRelease(handle), cuda::kResultSuccess);
  std::byte* const mapped = reinterpret_cast<std::byte*>(address);
  const auto access = [&](int gpu, int flags) {
    const cuda::AccessDesc desc = {{cuda::kMemLocationDevice, gpu}, flags};
    ASSERT_EQ(driver.cuMemSetAccess(address, kBytes, &desc, 1), cuda::kResultSuccess);
  };
  auto work = GpuBoxWork::WithoutChunks(kGpu);
  ASSERT_TRUE(work.ok()) << work.status();
  const auto packed = OnGpu(std::vector<std::byte>(80, std::byte{3}));
  const auto pack = [&] {
    (*work)->Pack(Rows(2, 40, 100, mapped, nullptr), 0, absl::MakeSpan(packed->data(), 80));
    return (*work)->Finish();
  };
  const auto unpack = [&] {
    uint64_t sum = 0;
    (*work)->Unpack(Rows(2, 40, 100, nullptr, mapped), 0, absl::MakeSpan(packed->data(), 80), &sum);
    return (*work)->Finish();
  };
  setenv(nccl_checker::kOnViolationVariable, "return", 1);  // of the kernels; the checker has read it
  access(kGpu + 1, cuda::kAccessReadWrite);
  EXPECT_TRUE(HasCode(pack(), ErrorCode::kTransport)) << "the owner has access, this GPU none";
  access(kGpu, cuda::kAccessRead);
  EXPECT_EQ(pack(), absl::OkStatus());
  EXPECT_EQ(FromGpu(*packed), std::vector<std::byte>(80, std::byte{0xCB}));
  EXPECT_TRUE(HasCode(unpack(), ErrorCode::kTransport)) << "it may only read";
  access(kGpu, cuda::kAccessReadWrite);
  EXPECT_EQ(unpack(), absl::OkStatus());
  unsetenv(nccl_checker::kOnViolationVariable);
  EXPECT_EQ(driver.cuMemUnmap(address, kBytes), cuda::kResultSuccess);
  EXPECT_EQ(driver.cuMemAddressFree(address, kBytes), cuda::kResultSuccess);
}

// A transport whose messages may be on a GPU, or not.
class OfGpu : public Transport {
 public:
  explicit OfGpu(std::optional<int> gpu) { capabilities_.gpu = gpu; }
  absl::string_view name() const override { return "test"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string address() const override { return ""; }
  absl::StatusOr<std::unique_ptr<Region>> AllocateRegion(int64_t) override { return absl::UnimplementedError(""); }
  absl::StatusOr<PeerId> Connect(absl::string_view, absl::Time) override { return absl::UnimplementedError(""); }
  void Disconnect(PeerId) override {}
  absl::StatusOr<std::unique_ptr<Mapping>> Map(PeerId, absl::string_view, absl::Time) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<OpId> Send(PeerId, uint64_t, absl::Span<const std::byte>) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<OpId> Receive(PeerId, uint64_t, absl::Span<std::byte>) override {
    return absl::UnimplementedError("");
  }
  void Poll(absl::Duration, std::vector<Completion>*) override {}
  void Wake() override {}
  void Abort(const absl::Status&) override {}

 private:
  Capabilities capabilities_;
};

TEST(GpuBoxWorkTest, ChunksAreWhereTheMessagesMayBe) {
  for (const std::optional<int> gpu : {std::optional<int>(kGpu), std::optional<int>(kGpu + 1), std::optional<int>()}) {
    auto work = GpuBoxWork::Create(kGpu, OfGpu(gpu), 100, 399);
    ASSERT_TRUE(work.ok()) << work.status();
    std::vector<Chunk> chunks;
    for (int i = 0; i < 3; ++i) {
      chunks.push_back(*(*work)->NewChunk(100));
      cuda::PointerAttributes attributes = {};
      ASSERT_EQ(Cuda().cudaPointerGetAttributes(&attributes, chunks.back().get()), cuda::kSuccess);
      EXPECT_EQ(attributes.type, gpu == kGpu ? cuda::kDevice : cuda::kHost);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(chunks.back().get()) % 16, 0u);
    }
    EXPECT_TRUE(HasCode((*work)->NewChunk(100).status(), ErrorCode::kOutOfMemory));
    std::byte* const last = chunks.back().get();
    chunks.pop_back();
    EXPECT_EQ((*work)->NewChunk(100)->get(), last);
  }
}

TEST(GpuBoxWorkTest, WhatThereIsNot) {
  const absl::Status none = GpuBoxWork::WithoutChunks(99).status();
  EXPECT_TRUE(HasCode(none, ErrorCode::kInvalidOption)) << none;
  const absl::Status full = GpuBoxWork::Create(kGpu, OfGpu(kGpu), 1 << 20, int64_t{1} << 44).status();
  EXPECT_TRUE(HasCode(full, ErrorCode::kOutOfMemory)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("17592186044416 bytes are needed of the memory of GPU 3"));
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  headrace::testing::UseCheckerGpus();
  return RUN_ALL_TESTS();
}
