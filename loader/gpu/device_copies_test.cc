// On the checker of loader/testing/nccl_checker, whose device memory is the host's: naive loops read it too.
#include "loader/gpu/device_copies.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/gpu/gpu_memory.h"
#include "loader/testing/checker_gpus.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using testing::Cuda;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr int kGpu = 1;

int violations_wanted = 0;

uint64_t TestSeed() {
  const char* given = std::getenv("HEADRACE_TEST_SEED");
  static const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  return seed;
}

std::unique_ptr<DeviceCopies> Make(int64_t bounce_bytes = 4096) {
  auto copies = DeviceCopies::Create(kGpu, bounce_bytes);
  EXPECT_TRUE(copies.ok()) << copies.status();
  return *std::move(copies);
}

// Memory of a GPU.
struct DeviceBytes {
  explicit DeviceBytes(size_t bytes, int gpu = kGpu) {
    const CurrentDevice current(Cuda(), gpu);
    EXPECT_EQ(Cuda().cudaMalloc(reinterpret_cast<void**>(&data), bytes), cuda::kSuccess);
  }
  ~DeviceBytes() { Cuda().cudaFree(data); }
  std::byte* data = nullptr;
};

// Work of a stream that ends when it is told.
struct Gate {
  explicit Gate(cuda::Stream stream) {
    const auto wait = [](void* argument) {
      Gate* const gate = static_cast<Gate*>(argument);
      std::unique_lock lock(gate->mutex);
      gate->changed.wait(lock, [&] { return gate->open; });
    };
    EXPECT_EQ(Cuda().cudaLaunchHostFunc(stream, wait, this), cuda::kSuccess);
  }
  void Open() {
    std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
};

// Up to three loops around runs; strides that leave gaps, in an order by chance, the outermost of either sign. Both
// ends lie in `room` bytes.
struct RandomBox {
  explicit RandomBox(std::mt19937_64& random) {
    box.run_bytes = 1 + random() % 9;
    box.rank = static_cast<int>(random() % 4);
    std::vector<int> order = {0, 1, 2};
    order.resize(box.rank);
    std::shuffle(order.begin(), order.end(), random);
    int64_t src = box.run_bytes, dst = box.run_bytes;
    for (int loop : order) {
      box.extent[loop] = random() % 11 == 0 ? 0 : 1 + random() % 5;
      box.src_stride[loop] = random() % 5 == 0 ? 0 : src + random() % 3;
      box.dst_stride[loop] = dst + random() % 3;
      src = std::max<int64_t>(src, box.src_stride[loop] * std::max<int64_t>(box.extent[loop], 1));
      dst = box.dst_stride[loop] * std::max<int64_t>(box.extent[loop], 1);
    }
    src_room = src;
    dst_room = dst;
    if (box.rank > 0 && box.extent[0] > 0 && random() % 3 == 0) {
      src_first = (box.extent[0] - 1) * box.src_stride[0];
      dst_first = (box.extent[0] - 1) * box.dst_stride[0];
      box.src_stride[0] *= -1;
      box.dst_stride[0] *= -1;
    }
  }
  // By plain loops.
  void CopyNaively(const std::byte* src, std::byte* dst) const {
    kernels::StridedCopy c = box;
    for (int i = c.rank; i < 3; ++i) c.extent[i] = 1;
    for (int64_t i = 0; i < c.extent[0]; ++i) {
      for (int64_t j = 0; j < c.extent[1]; ++j) {
        for (int64_t k = 0; k < c.extent[2]; ++k) {
          for (int64_t b = 0; b < c.run_bytes; ++b) {
            dst[i * c.dst_stride[0] + j * c.dst_stride[1] + k * c.dst_stride[2] + b] =
                src[i * c.src_stride[0] + j * c.src_stride[1] + k * c.src_stride[2] + b];
          }
        }
      }
    }
  }
  kernels::StridedCopy box;
  int64_t src_room = 0, dst_room = 0, src_first = 0, dst_first = 0;
};

Bytes RandomBytes(size_t bytes, std::mt19937_64& random) {
  Bytes out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

TEST(DeviceCopiesTest, RandomBoxesBothWays) {
  SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  auto copies = Make();
  for (int i = 0; i < 300; ++i) {
    RandomBox one(random);
    const bool to_device = random() % 2 == 0, pinned = random() % 2 == 0;
    const Bytes source = RandomBytes(one.src_room, random);
    Bytes wanted(one.dst_room, std::byte{0xA5});
    DeviceBytes device(to_device ? one.dst_room : one.src_room);
    Bytes host = to_device ? source : wanted;
    std::memcpy(device.data, to_device ? wanted.data() : source.data(), to_device ? wanted.size() : source.size());
    one.CopyNaively(source.data() + one.src_first, wanted.data() + one.dst_first);
    {
      const auto pin = pinned ? copies->Pin(absl::MakeSpan(host)) : nullptr;
      EXPECT_EQ(pin != nullptr, pinned);
      one.box.src = (to_device ? host.data() : device.data) + one.src_first;
      one.box.dst = (to_device ? device.data : host.data()) + one.dst_first;
      to_device ? copies->ToDevice(one.box) : copies->FromDevice(one.box);
      ASSERT_EQ(copies->Finish(), absl::OkStatus());
    }
    const std::byte* got = to_device ? device.data : host.data();
    ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), got)) << "box " << i;
  }
}

TEST(DeviceCopiesTest, ClearsAndPiecesOfRandomBoxes) {
  SCOPED_TRACE(::testing::Message() << "HEADRACE_TEST_SEED=" << TestSeed());
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 200; ++i) {
    const int64_t element = int64_t{1} << random() % 4;
    auto copies = Make(/*bounce_bytes=*/element + random() % 100);
    BufferBox box;
    box.offset = element * (random() % 3);
    box.run_bytes = element * (1 + random() % 12);
    int64_t room = box.run_bytes;
    for (uint64_t loops = random() % 4; loops > 0; --loops) {
      const int64_t stride = room + element * (random() % 3), extent = 1 + random() % 5;
      box.loops.insert(box.loops.begin(), {extent, stride});
      room = stride * extent;
    }
    room += box.offset;
    const Bytes before = RandomBytes(room, random);
    DeviceBytes device(room);
    std::memcpy(device.data, before.data(), room);
    // Every byte of the box once, and where it is: 1 + its place.
    const auto mark = [](const BufferBox& b, std::vector<int64_t>* packed) {
      std::function<void(size_t, int64_t)> walk = [&](size_t loop, int64_t at) {
        if (loop < b.loops.size()) {
          for (int64_t step = 0; step < b.loops[loop].first; ++step) walk(loop + 1, at + step * b.loops[loop].second);
          return;
        }
        for (int64_t n = 0; n < b.run_bytes; ++n) packed->push_back(at + n);
      };
      walk(0, b.offset);
    };
    std::vector<int64_t> whole, seen;
    mark(box, &whole);
    ASSERT_EQ(copies->ReadInPieces(box, device.data, element,
                                   [&](const BufferBox& piece, const std::byte* packed) {
                                     std::vector<int64_t> places;
                                     mark(piece, &places);
                                     EXPECT_EQ(piece.run_bytes % element, 0);
                                     for (size_t n = 0; n < places.size(); ++n) {
                                       EXPECT_EQ(packed[n], before[places[n]]);
                                     }
                                     seen.insert(seen.end(), places.begin(), places.end());
                                   }),
              absl::OkStatus());
    std::sort(whole.begin(), whole.end());
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen, whole) << "box " << i;
    Bytes wanted = before;
    for (int64_t place : whole) wanted[place] = std::byte{0};
    copies->Clear(box, device.data);
    ASSERT_EQ(copies->Finish(), absl::OkStatus());
    ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), device.data)) << "box " << i;
  }
}

TEST(DeviceCopiesTest, AwaitStreamWaitsForWhatWasEnqueued) {
  auto copies = Make();
  const CurrentDevice current(Cuda(), kGpu);
  cuda::Stream own = nullptr;
  ASSERT_EQ(Cuda().cudaStreamCreateWithFlags(&own, cuda::kStreamNonBlocking), cuda::kSuccess);
  for (cuda::Stream stream : {own, cuda::Stream{nullptr}}) {
    Gate gate(stream);
    const absl::Status late = copies->AwaitStream(stream, absl::Now() + absl::Milliseconds(30));
    EXPECT_TRUE(HasCode(late, ErrorCode::kDeadline)) << late;
    gate.Open();
    EXPECT_EQ(copies->AwaitStream(stream, absl::InfiniteFuture()), absl::OkStatus());
    EXPECT_EQ(Cuda().cudaStreamQuery(stream), cuda::kSuccess);
  }
  ASSERT_EQ(Cuda().cudaStreamDestroy(own), cuda::kSuccess);
}

TEST(DeviceCopiesTest, AnErrorIsToldOnceByFinish) {
  auto copies = Make();
  Bytes a(8), b(8);
  DeviceBytes device(8);
  kernels::StridedCopy wrong;
  wrong.src = a.data();
  wrong.dst = b.data();
  wrong.run_bytes = 8;
  copies->FromDevice(wrong);  // from the host
  ++violations_wanted;
  kernels::StridedCopy right = wrong;
  right.src = device.data;
  copies->FromDevice(right);
  EXPECT_TRUE(HasCode(copies->Finish(), ErrorCode::kTransport));
  EXPECT_EQ(copies->Finish(), absl::OkStatus());
  // Another mistake: a part of it is pinned already.
  const auto pin = copies->Pin(absl::MakeSpan(a));
  EXPECT_NE(pin, nullptr);
  EXPECT_EQ(copies->Pin(absl::MakeSpan(a)), nullptr);
  ++violations_wanted;
}

// In a thread that has not used CUDA, going back to GPU 0 would make a context there.
TEST(CurrentDeviceTest, IsTakenBackButInThreadsOfOurs) {
  for (bool ours : {false, true}) {
    int after = -1;
    std::thread([&] {
      if (ours) CurrentDevice::OfOurThread();
      { const CurrentDevice current(Cuda(), kGpu); }
      Cuda().cudaGetDevice(&after);
    }).join();
    EXPECT_EQ(after, ours ? kGpu : 0);
  }
}

TEST(DeviceCopiesTest, WhereMemoryIs) {
  Bytes host(8);
  DeviceBytes here(8), there(8, kGpu + 1);
  Buffer b;
  b.name = "w";
  b.rank = 3;
  b.dtype = Dtype::kU8;
  b.shape = {8};
  b.strides = {1};
  const auto find = [&](std::optional<int> gpu, const std::byte* first) {
    return FindGpuMemory(gpu, {b}, {{"w", first}});
  };
  EXPECT_TRUE(find(kGpu, here.data)->has("w"));
  EXPECT_TRUE(find(kGpu, here.data + 7)->has("w"));
  EXPECT_FALSE(find(kGpu, host.data())->has("w"));
  EXPECT_FALSE(find(kGpu, nullptr)->has("w"));
  EXPECT_EQ(find(std::nullopt, here.data)->copies, nullptr);
  const absl::Status other = find(kGpu, there.data).status();
  EXPECT_TRUE(HasCode(other, ErrorCode::kInvalidOption)) << other;
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("\"w\""), HasSubstr("GPU 2"), HasSubstr("GPU 1")));
  EXPECT_EQ(SubjectOf(other).buffer, "w");
  for (int gpu : {-1, 8}) {
    const absl::Status none = DeviceCopies::Create(gpu).status();
    EXPECT_TRUE(HasCode(none, ErrorCode::kInvalidOption)) << none;
    EXPECT_THAT(std::string(none.message()), HasSubstr(absl::StrCat("GPU ", gpu)));
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  const char* temporary = std::getenv("TEST_TMPDIR");
  const std::string file = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/violations");
  headrace::testing::UseCheckerGpus();
  setenv(headrace::nccl_checker::kOnViolationVariable, "return", 1);
  setenv(headrace::nccl_checker::kViolationsFileVariable, file.c_str(), 1);
  const int failed = RUN_ALL_TESTS();
  int violations = 0;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) ++violations;
  if (violations == headrace::violations_wanted) return failed;
  std::fprintf(stderr, "%d violations of CUDA's rules, and %d were meant\n", violations, headrace::violations_wanted);
  return 1;
}
