#ifndef HEADRACE_KERNELS_TEST_SUPPORT_H_
#define HEADRACE_KERNELS_TEST_SUPPORT_H_

// For the tests of this folder: the verification sum by its definition (no code shared with the kernels), SIMD levels
// to run under, seeds and the share of exhaustive cases to run.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

#include "kernels/simd_level.h"

namespace headrace::kernels::testing {

inline uint64_t OracleMix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

inline const std::array<uint32_t, 1024>& OracleKeys() {
  static const auto keys = [] {
    std::array<uint32_t, 1024> k;
    for (uint64_t i = 0; i < 1024; ++i) k[i] = static_cast<uint32_t>(OracleMix(i + 1) >> 32) | 1;
    return k;
  }();
  return keys;
}

// The term of one byte of value `v` at byte `p` of tensor `t`.
inline uint64_t OracleTerm(uint64_t t, int64_t p, std::byte v) {
  const uint64_t value = static_cast<uint64_t>(v) << (8 * (p % 4));
  const uint64_t factor = OracleMix(t * 0xD1342543DE82EF95u + OracleMix(static_cast<uint64_t>(p / 4096))) | 1;
  return (value + 1) * OracleKeys()[p / 4 % 1024] * factor;
}

inline uint64_t OracleSum(uint64_t t, int64_t first, const std::byte* p, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += OracleTerm(t, first + i, p[i]);
  return sum;
}

inline std::vector<internal::SimdLevel> Levels() {
  std::vector<internal::SimdLevel> levels;
  for (int i = 0; i <= static_cast<int>(internal::BestSimdLevel()); ++i) {
    levels.push_back(static_cast<internal::SimdLevel>(i));
  }
  return levels;
}

// Forces a level for a scope.
class ScopedLevel {
 public:
  explicit ScopedLevel(internal::SimdLevel level) { internal::ForceSimdLevelForTest(level); }
  ~ScopedLevel() { internal::ForceSimdLevelForTest(internal::BestSimdLevel()); }
  ScopedLevel(const ScopedLevel&) = delete;
  ScopedLevel& operator=(const ScopedLevel&) = delete;
};

// Percent of the cases to run; HEADRACE_TEST_SHARE, 100 unless set.
inline int64_t Share() {
  const char* share = std::getenv("HEADRACE_TEST_SHARE");
  return share == nullptr ? 100 : std::strtol(share, nullptr, 10);
}

// `full` random cases, cut to the share but not to none.
inline int64_t Cases(int64_t full) { return full * Share() / 100 + 1; }

// A generator whose seed is printed; HEADRACE_TEST_SEED repeats a run.
inline std::mt19937_64 SeededGenerator() {
  const char* set = std::getenv("HEADRACE_TEST_SEED");
  const uint64_t seed = set == nullptr ? std::random_device{}() : std::strtoull(set, nullptr, 10);
  std::cout << "HEADRACE_TEST_SEED=" << seed << "\n";
  return std::mt19937_64(seed);
}

// Uniform in [low, high].
inline int64_t Uniform(std::mt19937_64& gen, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(gen);
}

inline std::vector<std::byte> RandomBytes(std::mt19937_64& gen, int64_t n) {
  std::vector<std::byte> bytes(static_cast<size_t>(n));
  for (std::byte& b : bytes) b = static_cast<std::byte>(gen() >> 56);
  return bytes;
}

}  // namespace headrace::kernels::testing

#endif  // HEADRACE_KERNELS_TEST_SUPPORT_H_
