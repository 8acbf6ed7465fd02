#include "kernels/sum.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sum_keys.h"
#include "kernels/test_support.h"

namespace headrace::kernels {
namespace {

using internal::SimdLevel;
using testing::Cases;
using testing::Levels;
using testing::OracleSum;
using testing::OracleTerm;
using testing::RandomBytes;
using testing::ScopedLevel;
using testing::SeededGenerator;
using testing::Uniform;

TEST(SumKeysTest, KeysAreOddAndDistinct) {
  const auto& keys = internal::kSumKeyTable.key;
  const std::set<uint32_t> distinct(keys.begin(), keys.begin() + internal::kSumKeys);
  EXPECT_EQ(distinct.size(), 1024u);
  for (uint32_t key : distinct) EXPECT_EQ(key & 1, 1u);
}

// The sum travels between processes of different builds: it must never change. The number was worked out by hand of
// the definition in Python.
TEST(SumRunTest, KnownValues) {
  const std::byte bytes[8] = {std::byte{1}, std::byte{2},  std::byte{3},    std::byte{0},
                              std::byte{0}, std::byte{80}, std::byte{0x7F}, std::byte{255}};
  EXPECT_EQ(SumRun(7, 0, bytes, 8), OracleSum(7, 0, bytes, 8));
  EXPECT_EQ(SumRun(0, 0, bytes, 0), 0u);
  EXPECT_EQ(SumRun(7, 0, bytes, 8), 0xE7103F9BB8267B6Bu);
}

TEST(SumRunTest, EqualsItsDefinitionForEveryStartLengthAndAlignment) {
  auto gen = SeededGenerator();
  const std::vector<std::byte> data = RandomBytes(gen, 600);
  int64_t cases = 0;
  for (SimdLevel level : Levels()) {
    ScopedLevel scoped(level);
    for (int64_t start : {int64_t{0}, int64_t{4096 - 300}, (int64_t{1} << 40) + 4096 * 3 - 70}) {
      for (int64_t skew = 0; skew < 8; ++skew) {
        for (int64_t align = 0; align < 5; ++align) {
          uint64_t expect = 0;
          for (int64_t n = 0; n <= 400; ++n) {
            if (Uniform(gen, 0, 99) < testing::Share()) {
              ASSERT_EQ(SumRun(3, start + skew, data.data() + align, n), expect)
                  << "level " << static_cast<int>(level) << " start " << start + skew << " length " << n;
              ++cases;
            }
            expect += OracleTerm(3, start + skew + n, data[static_cast<size_t>(align + n)]);
          }
        }
      }
    }
  }
  std::cout << cases << " runs\n";
}

TEST(SumRunTest, LongRunsEqualTheDefinitionAtEveryLevel) {
  auto gen = SeededGenerator();
  const std::vector<std::byte> data = RandomBytes(gen, 70000);
  for (int64_t i = Cases(300); i > 0; --i) {
    const int64_t from = Uniform(gen, 0, 100), n = Uniform(gen, 0, 69000);
    const int64_t first = Uniform(gen, 0, int64_t{1} << Uniform(gen, 1, 60));
    const uint64_t tensor = gen(), expect = OracleSum(tensor, first, data.data() + from, n);
    for (SimdLevel level : Levels()) {
      ScopedLevel scoped(level);
      ASSERT_EQ(SumRun(tensor, first, data.data() + from, n), expect) << first << " " << n;
    }
  }
}

TEST(SumRunTest, SplitsExactlyAtEveryByte) {
  auto gen = SeededGenerator();
  const std::vector<std::byte> data = RandomBytes(gen, 9000);
  for (int64_t first : {0, 1, 2, 3, 4093}) {
    const uint64_t whole = SumRun(11, first, data.data(), 9000);
    for (int64_t cut = 0; cut <= 9000; ++cut) {
      ASSERT_EQ(SumRun(11, first, data.data(), cut) + SumRun(11, first + cut, data.data() + cut, 9000 - cut), whole)
          << first << " " << cut;
    }
  }
}

// Data like trained BF16 weights, where chance equality is common: few distinct values, many zeros.
std::vector<std::byte> WeightLikeBytes(std::mt19937_64& gen, int64_t n) {
  std::vector<std::byte> bytes(static_cast<size_t>(n));
  for (int64_t i = 0; i + 1 < n; i += 2) {
    const uint64_t r = gen();
    const uint64_t value = r % 10 < 3 ? 0 : 0x3C00 | ((r >> 20) % 8) << 4 | ((r >> 40) & 1) << 15;
    bytes[static_cast<size_t>(i)] = static_cast<std::byte>(value & 0xFF);
    bytes[static_cast<size_t>(i + 1)] = static_cast<std::byte>(value >> 8);
  }
  return bytes;
}

enum Fault {
  kDropped,
  kDoubled,
  kSwapped,
  kSwappedAcrossBlocks,
  kSignFlip,
  kBitFlip,
  kShifted,
  kRunsSwapped,
  kWrongTensor,
  kZeroRunDropped,
  kFaults
};

TEST(SumRunTest, NoInjectedFaultIsMissed) {
  auto gen = SeededGenerator();
  constexpr int64_t kBytes = 1 << 17;
  constexpr int64_t kBlock = 4096;
  const std::vector<std::byte> data = WeightLikeBytes(gen, kBytes);
  std::vector<std::byte> zeros(kBlock);
  const std::byte* d = data.data();
  auto sum = [&](int64_t at, const std::byte* p, int64_t n) { return SumRun(3, at, p, n); };
  auto equal = [&](int64_t a, int64_t b, int64_t n) { return std::equal(d + a, d + a + n, d + b); };
  int64_t injected[kFaults] = {};
  for (int64_t i = Cases(400000); i > 0; --i) {
    const int fault = static_cast<int>(i % kFaults);
    const int64_t n = 2 * Uniform(gen, 1, fault <= kSignFlip ? 1 : 512);
    const int64_t a = 2 * Uniform(gen, 0, (kBytes - 2 * kBlock) / 2);
    int64_t b = 2 * Uniform(gen, 0, (kBytes - 2 * kBlock) / 2);
    if (fault == kSwappedAcrossBlocks) b = a ^ (kBlock * Uniform(gen, 1, 15));
    uint64_t change = 0;  // of the sum of the whole tensor
    bool same = false;    // the fault left every byte as it was
    switch (fault) {
      case kDropped:
        change = -sum(a, d + a, n);
        break;
      case kDoubled:
        change = sum(a, d + a, n);
        break;
      case kSwapped:
      case kSwappedAcrossBlocks:
      case kRunsSwapped:
        if (std::abs(a - b) < n) continue;
        same = equal(a, b, n);
        change = sum(a, d + b, n) + sum(b, d + a, n) - sum(a, d + a, n) - sum(b, d + b, n);
        break;
      case kSignFlip:
      case kBitFlip: {
        const int bit = fault == kSignFlip ? 7 : static_cast<int>(Uniform(gen, 0, 7));
        const std::byte flipped = d[a + 1] ^ static_cast<std::byte>(1 << bit);
        change = sum(a + 1, &flipped, 1) - sum(a + 1, d + a + 1, 1);
        break;
      }
      case kShifted:
        same = equal(a, a + 2, n);
        change = sum(a, d + a + 2, n) - sum(a, d + a, n);
        break;
      case kWrongTensor:
        change = SumRun(4, a, d + a, n) - sum(a, d + a, n);
        break;
      case kZeroRunDropped:
        change = -sum(a, zeros.data(), n);
        break;
    }
    if (same) continue;
    ++injected[fault];
    ASSERT_NE(change, 0u) << "fault " << fault << " at " << a << ", " << b << ", " << n << " bytes";
  }
  int64_t total = 0;
  for (int64_t count : injected) total += count;
  std::cout << total << " faults injected, none missed\n";
}

}  // namespace
}  // namespace headrace::kernels
