#ifndef HEADRACE_KERNELS_SUM_KEYS_H_
#define HEADRACE_KERNELS_SUM_KEYS_H_

// The keys of the verification sum; kernels/sum.h gives the definition.

#include <array>
#include <cstdint>

#include "kernels/host_device.h"

namespace headrace::kernels::internal {

inline constexpr int64_t kSumBlockBytes = 4096;  // bytes of a tensor that share one block factor
inline constexpr int kSumKeys = 1024;            // one key for each 4-byte word of a block

// The finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
HR_HOST_DEVICE constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Odd, so that no key is a zero divisor mod 2^64; distinct (a test proves it), so that words swapped inside a block
// always change the sum.
struct alignas(64) SumKeys {
  std::array<uint32_t, kSumKeys + 1> key{};     // one more, that is loaded but never used
  std::array<uint64_t, kSumKeys + 1> prefix{};  // prefix[i] = key[0] + ... + key[i - 1]
};

constexpr SumKeys MakeSumKeys() {
  SumKeys k;
  for (int i = 0; i < kSumKeys; ++i) {
    k.key[i] = static_cast<uint32_t>(SplitMix64(static_cast<uint64_t>(i) + 1) >> 32) | 1u;
    k.prefix[i + 1] = k.prefix[i] + k.key[i];
  }
  return k;
}

inline constexpr SumKeys kSumKeyTable = MakeSumKeys();

// The odd factor H of block `block` (byte position / 4096) of a tensor.
HR_HOST_DEVICE constexpr uint64_t SumBlockFactor(uint64_t tensor_key, uint64_t block) {
  return SplitMix64(tensor_key * 0xD1342543DE82EF95u + SplitMix64(block)) | 1u;
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_SUM_KEYS_H_
