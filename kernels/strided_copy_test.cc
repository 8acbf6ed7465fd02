#include "kernels/strided_copy.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/test_support.h"

namespace headrace::kernels {
namespace {

using internal::SimdLevel;
using testing::Cases;
using testing::Levels;
using testing::OracleTerm;
using testing::RandomBytes;
using testing::ScopedLevel;
using testing::SeededGenerator;
using testing::Uniform;

constexpr std::byte kGuard{0xA5};

// A box in memory of its own: `copy` points into `src` and `dst`.
struct TestBox {
  StridedCopy copy;
  std::vector<std::byte> src;
  std::vector<std::byte> dst_memory;
  int64_t dst_at = 0;  // the place of copy.dst in dst_memory
};

// The strides of loops laid in memory in `order` (innermost last), each padded by pad[loop] bytes.
void LayOut(int rank, const int64_t* extent, int64_t run, const std::array<int, kMaxBoxLoops>& order,
            const std::array<int64_t, kMaxBoxLoops>& pad, int64_t* stride) {
  int64_t bytes = run;
  for (int i = rank - 1; i >= 0; --i) {
    const int loop = order[i];
    stride[loop] = bytes + pad[loop];
    bytes = stride[loop] * extent[loop];
  }
}

// The lowest and highest offset of a run's first byte.
std::pair<int64_t, int64_t> Reach(int rank, const int64_t* extent, const int64_t* stride) {
  int64_t low = 0, high = 0;
  for (int i = 0; i < rank; ++i) (stride[i] < 0 ? low : high) += stride[i] * std::max<int64_t>(0, extent[i] - 1);
  return {low, high};
}

// Allocates memory for box.copy's strides, exactly as long as needed on the source's side (a sanitizer sees reads
// beyond it), with guards around the destination.
void Allocate(std::mt19937_64& gen, int64_t dst_skew, TestBox& box) {
  StridedCopy& c = box.copy;
  const auto [src_low, src_high] = Reach(c.rank, c.extent, c.src_stride);
  const auto [dst_low, dst_high] = Reach(c.rank, c.extent, c.dst_stride);
  box.src = RandomBytes(gen, src_high - src_low + c.run_bytes);
  box.dst_memory.assign(static_cast<size_t>(dst_high - dst_low + c.run_bytes + 256), kGuard);
  c.src = box.src.data() - src_low;
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(box.dst_memory.data()) % 64);
  box.dst_at = 64 + (64 - misaligned) % 64 + dst_skew - dst_low;
  c.dst = box.dst_memory.data() + box.dst_at;
}

struct Expected {
  std::vector<std::byte> dst_memory;
  std::vector<std::byte> packed;
  std::vector<uint64_t> sum_before;  // sum of the packed bytes before each; the last is the whole sum
};

// Byte by byte, in packed order.
Expected Oracle(const TestBox& box) {
  const StridedCopy& c = box.copy;
  Expected e;
  e.dst_memory.assign(box.dst_memory.size(), kGuard);
  e.sum_before.push_back(0);
  std::array<int64_t, 4> extent{1, 1, 1, 1}, src{}, dst{}, pos{};
  for (int i = 0; i < c.rank; ++i) {
    extent[i] = c.extent[i], src[i] = c.src_stride[i], dst[i] = c.dst_stride[i], pos[i] = c.pos_stride[i];
  }
  auto dot = [](const std::array<int64_t, 4>& a, const std::array<int64_t, 4>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), int64_t{0});
  };
  std::array<int64_t, 4> i;
  for (i[0] = 0; i[0] < extent[0]; ++i[0]) {
    for (i[1] = 0; i[1] < extent[1]; ++i[1]) {
      for (i[2] = 0; i[2] < extent[2]; ++i[2]) {
        for (i[3] = 0; i[3] < extent[3]; ++i[3]) {
          for (int64_t b = 0; b < c.run_bytes; ++b) {
            const std::byte v = c.src[dot(i, src) + b];
            e.dst_memory[static_cast<size_t>(box.dst_at + dot(i, dst) + b)] = v;
            e.packed.push_back(v);
            const uint64_t term = OracleTerm(c.tensor_key, c.first_byte + dot(i, pos) + b, v);
            e.sum_before.push_back(e.sum_before.back() + term);
          }
        }
      }
    }
  }
  return e;
}

// Every function against the oracle, at every level; Pack and UnpackAndSum on `ranges` random ranges and the whole.
void Check(std::mt19937_64& gen, TestBox& box, int ranges) {
  const StridedCopy& c = box.copy;
  const Expected e = Oracle(box);
  const auto bytes = static_cast<int64_t>(e.packed.size());
  ASSERT_EQ(BoxBytes(c), bytes);
  auto reset = [&] { std::fill(box.dst_memory.begin(), box.dst_memory.end(), kGuard); };
  for (SimdLevel level : Levels()) {
    SCOPED_TRACE(static_cast<int>(level));
    ScopedLevel scoped(level);
    reset();
    Copy(c);
    ASSERT_TRUE(box.dst_memory == e.dst_memory) << "Copy";
    StridedCopy source_only = c;
    source_only.dst = nullptr;
    ASSERT_EQ(Sum(source_only), e.sum_before.back());
    reset();
    ASSERT_EQ(CopyAndSum(c), e.sum_before.back());
    ASSERT_TRUE(box.dst_memory == e.dst_memory) << "CopyAndSum";

    for (int i = 0; i <= ranges; ++i) {
      int64_t first = i == ranges ? 0 : Uniform(gen, 0, bytes), end = i == ranges ? bytes : Uniform(gen, 0, bytes);
      if (first > end) std::swap(first, end);
      std::vector<std::byte> out(static_cast<size_t>(end - first) + 2, kGuard);
      Pack(source_only, first, std::span(out).subspan(1, out.size() - 2));
      ASSERT_TRUE(std::equal(out.begin() + 1, out.end() - 1, e.packed.begin() + first)) << first << " " << end;
      ASSERT_TRUE(out.front() == kGuard && out.back() == kGuard);
    }

    StridedCopy destination_only = c;
    destination_only.src = nullptr;
    reset();
    std::vector<int64_t> cuts{0, bytes};
    for (int i = 0; i < ranges; ++i) cuts.push_back(Uniform(gen, 0, bytes));
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 1; i < cuts.size(); ++i) {
      const auto from = static_cast<size_t>(cuts[i - 1]), to = static_cast<size_t>(cuts[i]);
      ASSERT_EQ(UnpackAndSum(destination_only, cuts[i - 1], std::span(e.packed).subspan(from, to - from)),
                e.sum_before[to] - e.sum_before[from])
          << from << " " << to;
    }
    ASSERT_TRUE(box.dst_memory == e.dst_memory) << "UnpackAndSum";
  }
}

std::string Describe(const StridedCopy& c) {
  std::string text = "run " + std::to_string(c.run_bytes) + " first " + std::to_string(c.first_byte);
  for (int i = 0; i < c.rank; ++i) {
    text += " [" + std::to_string(c.extent[i]) + ": " + std::to_string(c.src_stride[i]) + " " +
            std::to_string(c.dst_stride[i]) + " " + std::to_string(c.pos_stride[i]) + "]";
  }
  return text;
}

// All boxes of three loops of extents 1 to 3 around elements of 1, 2, 3 and 4 bytes, with every order of the loops in
// source, destination and tensor.
TEST(StridedCopyTest, ExhaustiveSmallBoxes) {
  auto gen = SeededGenerator();
  int64_t cases = 0;
  for (int64_t run : {1, 2, 3, 4}) {
    for (int shape = 0; shape < 27; ++shape) {
      for (int orders = 0; orders < 216; ++orders) {
        if (Uniform(gen, 0, 99) >= testing::Share()) continue;
        TestBox box;
        StridedCopy& c = box.copy;
        c.run_bytes = run;
        c.rank = 3;
        c.extent[0] = 1 + shape % 3, c.extent[1] = 1 + shape / 3 % 3, c.extent[2] = 1 + shape / 9;
        auto lay_out = [&](int number, int64_t* stride) {
          std::array<int, kMaxBoxLoops> order{0, 1, 2, 3};
          for (int i = 0; i < number; ++i) std::next_permutation(order.begin(), order.begin() + 3);
          std::array<int64_t, kMaxBoxLoops> pad{};
          if (Uniform(gen, 0, 1)) pad[static_cast<size_t>(Uniform(gen, 0, 2))] = run * Uniform(gen, 0, 2);
          LayOut(3, c.extent, run, order, pad, stride);
        };
        lay_out(orders % 6, c.src_stride);
        lay_out(orders / 6 % 6, c.dst_stride);
        lay_out(orders / 36, c.pos_stride);
        c.tensor_key = gen();
        c.first_byte = run * Uniform(gen, 0, 3000);
        Allocate(gen, 0, box);
        SCOPED_TRACE(Describe(c));
        Check(gen, box, 2);
        if (HasFatalFailure()) return;
        ++cases;
      }
    }
  }
  std::cout << cases << " boxes\n";
}

TEST(StridedCopyTest, RandomBoxes) {
  auto gen = SeededGenerator();
  const int64_t cases = Cases(3000);
  for (int64_t n = 0; n < cases; ++n) {
    TestBox box;
    StridedCopy& c = box.copy;
    constexpr std::array<int64_t, 14> kRuns{1, 2, 4, 8, 16, 2, 4, 5, 24, 64, 100, 256, 1000, 5000};
    c.run_bytes = kRuns[static_cast<size_t>(Uniform(gen, 0, 13))];
    c.rank = static_cast<int>(Uniform(gen, 0, kMaxBoxLoops));
    int64_t room = 40000 / c.run_bytes + 1;
    for (int i = 0; i < c.rank; ++i) {
      c.extent[i] = Uniform(gen, Uniform(gen, 0, 20) == 0 ? 0 : 1, std::min<int64_t>(room, Uniform(gen, 1, 150)));
      room = std::max<int64_t>(1, room / std::max<int64_t>(1, c.extent[i]));
    }
    const int64_t unit = Uniform(gen, 0, 2) == 0 ? 1 : c.run_bytes % 2 == 0 ? 2 : c.run_bytes;
    auto lay_out = [&](int64_t* stride) {
      std::array<int, kMaxBoxLoops> order{0, 1, 2, 3};
      if (Uniform(gen, 0, 1)) std::shuffle(order.begin(), order.begin() + c.rank, gen);
      std::array<int64_t, kMaxBoxLoops> pad{};
      for (int64_t& p : pad) p = Uniform(gen, 0, 2) == 0 ? unit * Uniform(gen, 0, 40) : 0;
      LayOut(c.rank, c.extent, c.run_bytes, order, pad, stride);
    };
    lay_out(c.src_stride);
    lay_out(c.dst_stride);
    lay_out(c.pos_stride);
    c.tensor_key = gen();
    c.first_byte = unit * Uniform(gen, 0, 100000);
    // Loops that run backwards or, in the source, stand still.
    for (int i = 0; i < c.rank; ++i) {
      const int64_t kind = Uniform(gen, 0, 11);
      if (kind == 0 || kind == 1) c.src_stride[i] = -c.src_stride[i];
      if (kind == 1 || kind == 2) c.dst_stride[i] = -c.dst_stride[i];
      if (kind == 1 || kind == 3) {
        c.first_byte += c.pos_stride[i] * std::max<int64_t>(0, c.extent[i] - 1);
        c.pos_stride[i] = -c.pos_stride[i];
      }
      if (kind == 4) c.src_stride[i] = 0;
    }
    Allocate(gen, Uniform(gen, 0, 63), box);
    SCOPED_TRACE(Describe(c));
    Check(gen, box, 3);
    if (HasFatalFailure()) return;
  }
}

// Boxes above the size from which stores bypass the cache.
TEST(StridedCopyTest, LargeBoxesAtEveryAlignment) {
  auto gen = SeededGenerator();
  for (int64_t run : {128, 192, 200, 1152, 4096, 65536, 70001, 1 << 21}) {
    for (int64_t skew : {0, 4, 2, 1, 63}) {
      for (int64_t pitch : {0, 64, 6}) {
        if (Uniform(gen, 0, 99) >= 4 * testing::Share()) continue;
        TestBox box;
        StridedCopy& c = box.copy;
        c.run_bytes = run;
        c.rank = 1;
        c.extent[0] = (int64_t{1} << 20) / run + 1;
        c.src_stride[0] = run + 10;
        c.dst_stride[0] = run + pitch;
        c.pos_stride[0] = run + 2 * Uniform(gen, 0, 300);
        c.first_byte = 2 * Uniform(gen, 0, 5000);
        c.tensor_key = gen();
        Allocate(gen, skew, box);
        SCOPED_TRACE(Describe(c));
        Check(gen, box, 2);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Matrices with the source in column-major order, the tensor in either; some above the size that bypasses the cache.
TEST(StridedCopyTest, Transposes) {
  auto gen = SeededGenerator();
  for (int64_t element : {1, 2, 4, 8, 16}) {
    for (int64_t n = Cases(12); n > 0; --n) {
      TestBox box;
      StridedCopy& c = box.copy;
      c.run_bytes = element;
      c.rank = 2;
      const int64_t most = n % 6 == 0 ? 1200 : 300;
      c.extent[0] = Uniform(gen, most / 2, most), c.extent[1] = Uniform(gen, 1, most);
      const int64_t pad = element * Uniform(gen, 0, 9);
      LayOut(2, c.extent, element, {1, 0, 2, 3}, {0, pad, 0, 0}, c.src_stride);
      LayOut(2, c.extent, element, {0, 1, 2, 3}, {pad, 0, 0, 0}, c.dst_stride);
      LayOut(2, c.extent, element, n % 2 ? std::array{0, 1, 2, 3} : std::array{1, 0, 2, 3},
             {n % 3 ? 0 : element, n % 5 ? 0 : element, 0, 0}, c.pos_stride);
      c.first_byte = element * Uniform(gen, 0, 5000);
      c.tensor_key = gen();
      Allocate(gen, n % 4 == 0 ? 1 : 0, box);
      SCOPED_TRACE(Describe(c));
      Check(gen, box, 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(StridedCopyTest, PackedStreamCutAtEveryByte) {
  auto gen = SeededGenerator();
  TestBox box;
  StridedCopy& c = box.copy;
  c = {.run_bytes = 6, .rank = 3, .extent = {3, 4, 5}, .tensor_key = 5, .first_byte = 4002};
  c.pos_stride[0] = 200, c.pos_stride[1] = 40, c.pos_stride[2] = 8;
  LayOut(3, c.extent, 6, {1, 2, 0, 3}, {0, 2, 0, 0}, c.src_stride);
  LayOut(3, c.extent, 6, {0, 2, 1, 3}, {2, 0, 4, 0}, c.dst_stride);
  Allocate(gen, 2, box);
  const Expected e = Oracle(box);
  const int64_t bytes = BoxBytes(c);
  for (int64_t first = 0; first <= bytes; ++first) {
    for (int64_t end = first; end <= bytes; ++end) {
      const auto packed = std::span(e.packed).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
      std::vector<std::byte> out(packed.size());
      Pack(c, first, out);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), packed.begin())) << first << " " << end;
      ASSERT_EQ(UnpackAndSum(c, first, packed),
                e.sum_before[static_cast<size_t>(end)] - e.sum_before[static_cast<size_t>(first)])
          << first << " " << end;
    }
  }
  ASSERT_TRUE(box.dst_memory == e.dst_memory);
}

}  // namespace
}  // namespace headrace::kernels
