// verl-project/verl#6691: out of memory while weights are synchronised, since one fused tensor of all experts is
// materialised at once. Here the memory that a transfer takes beside the buffers is capped, whatever the tensors' size.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/reports/report.h"

namespace {

// All that `new` gave and did not get back, in this process, and the most of it since it was last set.
std::atomic<int64_t> held_bytes{0}, peak_bytes{0};

// nullptr where there is none.
void* Allocate(std::size_t size, std::size_t alignment) noexcept {
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(size == 0 ? 1 : size);
  } else if (posix_memalign(&memory, alignment, size) != 0) {
    memory = nullptr;
  }
  if (memory == nullptr) return nullptr;
  const int64_t now = held_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t peak = peak_bytes;
  while (peak < now && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
  return memory;
}

void* MustAllocate(std::size_t size, std::size_t alignment) {
  void* memory = Allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void Free(void* memory) noexcept {
  held_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// Every form: a library that asks one gives the memory back by another.
using std::align_val_t, std::nothrow_t, std::size_t;
void* operator new(size_t size) { return MustAllocate(size, 1); }
void* operator new[](size_t size) { return MustAllocate(size, 1); }
void* operator new(size_t size, align_val_t a) { return MustAllocate(size, static_cast<size_t>(a)); }
void* operator new[](size_t size, align_val_t a) { return MustAllocate(size, static_cast<size_t>(a)); }
void* operator new(size_t size, const nothrow_t&) noexcept { return Allocate(size, 1); }
void* operator new[](size_t size, const nothrow_t&) noexcept { return Allocate(size, 1); }
void* operator new(size_t size, align_val_t a, const nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(a));
}
void* operator new[](size_t size, align_val_t a, const nothrow_t&) noexcept {
  return Allocate(size, static_cast<size_t>(a));
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, align_val_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t, align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, const nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const nothrow_t&) noexcept { Free(memory); }
void operator delete(void* memory, align_val_t, const nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, align_val_t, const nothrow_t&) noexcept { Free(memory); }

namespace headrace {
namespace {

using testing::FirstError;
using testing::Job;
using testing::JobConfig;

constexpr int kExperts = 8;

// Expert parallel by 8 to one engine's fused tensor [8, rows, columns].
Manifest Experts(Index rows, Index columns) {
  const TensorSpec t{"experts.gate_up", {kExperts, rows, columns}, Dtype::kBF16};
  Manifest m;
  m.tensors = {t};
  for (Index e = 0; e < kExperts; ++e) {
    m.source.push_back(
        BufferOf(e, t.name, t.dtype, {1, rows, columns}, {PieceOf(t.name, {e, 0, 0}, {1, rows, columns}, {0, 0, 0})}));
  }
  m.destination = {WholeBuffer(0, t)};
  return m;
}

JobConfig InMessages(int64_t chunk_bytes, int64_t staging_bytes) {
  MemoryOptions memory;
  memory.map = false;
  auto fabric = std::make_shared<MemoryFabric>(memory);
  JobConfig config;
  config.transport = [fabric] { return fabric->NewEndpoint(); };
  config.shadow = {Shadow::kOff};
  config.chunk_bytes = chunk_bytes;
  config.staging_bytes = staging_bytes;
  return config;
}

TEST(BoundedStagingTest, MemoryBesideTheBuffersStaysUnderTheCapHoweverLargeTheTensor) {
  constexpr int64_t kCap = 64 << 10;
  // Messages of the control service, and what threads and tests keep of their own.
  constexpr int64_t kControl = 256 << 10;
  const Manifest m = Experts(1024, 512);
  constexpr int64_t kExpert = 1 << 20;
  static_assert((kExperts + 1) * kCap + kControl < kExpert, "one expert at once would be seen");
  Job job(m, InMessages(16 << 10, kCap));
  ASSERT_EQ(FirstError(job.Join()), absl::OkStatus());
  for (uint64_t generation : {1, 2, 3}) {
    const int64_t before = held_bytes;
    peak_bytes = before;
    ASSERT_EQ(job.Round(generation), absl::OkStatus());
    EXPECT_EQ(job.Difference(), "");
    // All nine members live in this process, each with its cap.
    EXPECT_LE(peak_bytes - before, (kExperts + 1) * kCap + kControl) << "generation " << generation;
    EXPECT_LE(job.receiver(0).stats().peak_staging_bytes, kCap);
    for (size_t p = 0; p < job.publishers(); ++p) EXPECT_LE(job.publisher(p).stats().peak_staging_bytes, kCap);
  }
  EXPECT_EQ(job.receiver(0).stats().bytes, kExperts * kExpert);
  EXPECT_EQ(job.Close(), absl::OkStatus());
}

// The report's own sizes: experts of 32 bytes, under the smallest cap that there is.
TEST(BoundedStagingTest, TheSmallestCapOfOneChunk) {
  Job job(Experts(4, 4), InMessages(64, 64));
  testing::ExpectTwoGenerations(job);
  EXPECT_LE(job.receiver(0).stats().peak_staging_bytes, 64);
}

TEST(BoundedStagingTest, ACapBelowTheIndivisibleUnitSaysTheBytesThatItNeeds) {
  Job job(Experts(4, 4), InMessages(64, 32));
  bool said = false;
  for (const absl::Status& status : job.Join()) {
    EXPECT_FALSE(status.ok());
    if (!HasCode(status, ErrorCode::kStagingTooSmall)) continue;
    said = true;
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::HasSubstr("32"), ::testing::HasSubstr("64")));
  }
  EXPECT_TRUE(said);
  EXPECT_EQ(job.Difference(), "");
}

}  // namespace
}  // namespace headrace
