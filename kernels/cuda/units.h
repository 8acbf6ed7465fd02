#ifndef HEADRACE_KERNELS_CUDA_UNITS_H_
#define HEADRACE_KERNELS_CUDA_UNITS_H_

// Units of memory that a lane loads and stores at once, and their part of the verification sum (kernels/sum.h).

#include <cstdint>
#include <cstring>

#include "kernels/host_device.h"
#include "kernels/sum_keys.h"

namespace headrace::kernels::grid {

inline constexpr int kMaxUnitBytes = 16;

// `kBytes` bytes (1, 2, 4, 8 or 16) at an address that is a multiple of them, as little-endian words.
template <int kBytes>
struct alignas(kBytes) Unit {
  static constexpr int kWords = kBytes / 4;
  uint32_t word[kWords];
};
template <>
struct Unit<2> {
  static constexpr int kWords = 1;
  uint16_t word[1];
};
template <>
struct Unit<1> {
  static constexpr int kWords = 1;
  uint8_t word[1];
};

// The sum's factor of the block that was asked for last: a lane's next unit is mostly in the same one.
class BlockFactor {
 public:
  HR_HOST_DEVICE explicit BlockFactor(uint64_t tensor_key) : tensor_key_(tensor_key) {}

  HR_HOST_DEVICE uint64_t Of(int64_t block) {
    if (block != block_) {
      block_ = block;
      factor_ = internal::SumBlockFactor(tensor_key_, static_cast<uint64_t>(block));
    }
    return factor_;
  }

 private:
  uint64_t tensor_key_;
  int64_t block_ = -1;
  uint64_t factor_ = 0;
};

// The sum of the terms of a unit whose first byte is byte `position` of the tensor. `keys` are the sum's 1024 keys,
// 16-byte aligned.
template <int kBytes>
HR_HOST_DEVICE uint64_t UnitSum(const Unit<kBytes>& unit, int64_t position, const uint32_t* keys, BlockFactor& factor) {
  constexpr int kWords = Unit<kBytes>::kWords;
  const int64_t first = position >> 2;  // word of the tensor
  const int skip = static_cast<int>(position & 3);
  if (kBytes == 16 && (position & 15) == 0) {  // four whole words of one block
    Unit<16> key;
    std::memcpy(&key, __builtin_assume_aligned(keys + (first & (internal::kSumKeys - 1)), 16), sizeof key);
    uint64_t sum = 0, count = 0;
    for (int j = 0; j < 4; ++j) {
      sum += static_cast<uint64_t>(unit.word[j < kWords ? j : 0]) * key.word[j];
      count += key.word[j];
    }
    return (sum + 4 * count) * factor.Of(first / internal::kSumKeys);
  }
  uint64_t total = 0, sum = 0;
  int64_t block = first / internal::kSumKeys;
  for (int j = 0; j <= kWords; ++j) {
    const int64_t word = first + j;
    const int begin = internal::Max(0, 4 * j - skip), end = internal::Min(kBytes, 4 * (j + 1) - skip);
    if (begin >= end) break;  // no byte of the unit is in this word
    if (word / internal::kSumKeys != block) {
      total += sum * factor.Of(block);
      sum = 0;
      block = word / internal::kSumKeys;
    }
    uint32_t value = 0;
    if (j < kWords) value = static_cast<uint32_t>(unit.word[j]) << (8 * skip);
    if (j > 0 && skip > 0) value |= static_cast<uint32_t>(unit.word[j - 1]) >> (32 - 8 * skip);
    const uint64_t key = keys[word & (internal::kSumKeys - 1)];
    sum += (static_cast<uint64_t>(value) + static_cast<uint64_t>(end - begin)) * key;
  }
  return total + sum * factor.Of(block);
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_UNITS_H_
