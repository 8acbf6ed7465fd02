#ifndef HEADRACE_KERNELS_ROW_KERNELS_IMPL_H_
#define HEADRACE_KERNELS_ROW_KERNELS_IMPL_H_

// The source of every level's row kernels. A level's .cc defines HEADRACE_TARGET (its function target attribute),
// includes this file once and instantiates MakeRowKernels<V> with its vector type V:
//
//   V::kWords                 32-bit words of a vector
//   V::Vec, V::Acc            a vector; an accumulator of 64-bit lanes, value-initialised to zero by V::Zero()
//   V::Load, Store, Stream    unaligned load and store; store past the cache to an address aligned to the vector
//   V::MulAdd(acc, a, b)      adds the 64-bit products of the even, then of the odd 32-bit lanes
//   V::Reduce(acc)            the sum of the lanes
//
// Everything here has internal linkage: code compiled for one level must never be merged with another's.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/row_kernels.h"
#include "kernels/sum_keys.h"

#define HEADRACE_INLINE HEADRACE_TARGET static inline __attribute__((always_inline))

namespace headrace::kernels_internal {

enum class RowMode { kSum, kCopy, kStream };

inline constexpr int64_t kLineBytes = 64;

// The bytes to the next line boundary at or after `p`.
HEADRACE_INLINE int64_t ToLine(const std::byte* p) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(p) & (kLineBytes - 1));
}

// Copies n bytes, N <= n <= 2 N, as two parts that may overlap each other.
template <size_t N>
HEADRACE_INLINE void CopyEnds(std::byte* dst, const std::byte* src, int64_t n) {
  std::byte head[N], tail[N];
  std::memcpy(head, src, N);
  std::memcpy(tail, src + n - N, N);
  std::memcpy(dst, head, N);
  std::memcpy(dst + n - N, tail, N);
}

// 0 <= n <= 64.
HEADRACE_INLINE void CopyShort(std::byte* dst, const std::byte* src, int64_t n) {
  if (n >= 32) return CopyEnds<32>(dst, src, n);
  if (n >= 16) return CopyEnds<16>(dst, src, n);
  if (n >= 8) return CopyEnds<8>(dst, src, n);
  if (n >= 4) return CopyEnds<4>(dst, src, n);
  if (n >= 2) return CopyEnds<2>(dst, src, n);
  if (n == 1) *dst = *src;
}

// n >= 64.
template <class V>
HEADRACE_INLINE void CopyLong(std::byte* dst, const std::byte* src, int64_t n) {
  constexpr int64_t kVec = V::kWords * 4;
  constexpr int64_t kStep = 256;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 16
    for (int64_t j = 0; j < kStep; j += kVec) V::Store(dst + i + j, V::Load(src + i + j));
  }
  for (; i + kLineBytes <= n; i += kLineBytes) {
    for (int64_t j = 0; j < kLineBytes; j += kVec) V::Store(dst + i + j, V::Load(src + i + j));
  }
  if (i < n) {  // the last 64 bytes again, rather than a short copy with its branches
    for (int64_t j = 0; j < kLineBytes; j += kVec) {
      V::Store(dst + n - kLineBytes + j, V::Load(src + n - kLineBytes + j));
    }
  }
}

// Streams the whole lines of the destination; its ends, shared with neighbours, go through the cache.
template <class V>
HEADRACE_INLINE void CopyStream(std::byte* dst, const std::byte* src, int64_t n) {
  constexpr int64_t kVec = V::kWords * 4;
  constexpr int64_t kStep = 256;
  int64_t i = std::min(n, ToLine(dst));
  CopyShort(dst, src, i);
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 16
    for (int64_t j = 0; j < kStep; j += kVec) V::Stream(dst + i + j, V::Load(src + i + j));
  }
  for (; i + kLineBytes <= n; i += kLineBytes) {
    for (int64_t j = 0; j < kLineBytes; j += kVec) V::Stream(dst + i + j, V::Load(src + i + j));
  }
  CopyShort(dst + i, src + i, n - i);
}

template <class V>
HEADRACE_TARGET static void CopyRows(const Rows& r) {
  const std::byte* src = r.src;
  std::byte* dst = r.dst;
  const int64_t n = r.run_bytes;
  if (n < kLineBytes) {
    for (int64_t i = 0; i < r.count; ++i, src += r.src_stride, dst += r.dst_stride) CopyShort(dst, src, n);
  } else {
    for (int64_t i = 0; i < r.count; ++i, src += r.src_stride, dst += r.dst_stride) CopyLong<V>(dst, src, n);
  }
}

template <class V>
HEADRACE_TARGET static void CopyRowsStream(const Rows& r) {
  const std::byte* src = r.src;
  std::byte* dst = r.dst;
  for (int64_t i = 0; i < r.count; ++i, src += r.src_stride, dst += r.dst_stride) {
    CopyStream<V>(dst, src, r.run_bytes);
  }
}

// The inner product of `n` words with their keys; copies them too unless the mode is kSum. kStream wants `dst` on a
// line and n a multiple of 16.
template <class V, RowMode kMode>
HEADRACE_INLINE uint64_t Dot(std::byte* dst, const std::byte* src, const uint32_t* key, int64_t n) {
  constexpr int64_t kW = V::kWords;
  auto load = [src](int64_t i) HEADRACE_TARGET __attribute__((always_inline)) { return V::Load(src + i * 4); };
  auto store = [dst](int64_t i, typename V::Vec x) HEADRACE_TARGET __attribute__((always_inline)) {
    if constexpr (kMode == RowMode::kCopy) V::Store(dst + i * 4, x);
    if constexpr (kMode == RowMode::kStream) V::Stream(dst + i * 4, x);
  };
  uint64_t sum = 0;
  int64_t i = 0;
  if (n >= kW) {
    typename V::Acc a = V::Zero(), b = V::Zero();
    for (; i + 2 * kW <= n; i += 2 * kW) {
      const typename V::Vec x = load(i), y = load(i + kW);
      store(i, x);
      store(i + kW, y);
      V::MulAdd(a, x, V::Load(key + i));
      V::MulAdd(b, y, V::Load(key + i + kW));
    }
    if (i + kW <= n) {
      const typename V::Vec x = load(i);
      store(i, x);
      V::MulAdd(a, x, V::Load(key + i));
      i += kW;
    }
    sum = V::Reduce(a, b);
  }
  for (; i < n; ++i) {
    uint32_t word;
    std::memcpy(&word, src + i * 4, 4);
    if constexpr (kMode != RowMode::kSum) std::memcpy(dst + i * 4, &word, 4);
    sum += static_cast<uint64_t>(word) * key[i];
  }
  return sum;
}

// The term without H of `n` bytes that lie in one word, from byte `at` of it on.
template <RowMode kMode>
HEADRACE_INLINE uint64_t PartWord(std::byte* dst, const std::byte* src, uint32_t key, int64_t at, int64_t n) {
  uint64_t word = 0;
  for (int64_t i = 0; i < n; ++i) {
    word |= static_cast<uint64_t>(src[i]) << (8 * (at + i));
    if constexpr (kMode != RowMode::kSum) dst[i] = src[i];
  }
  return (word + static_cast<uint64_t>(n)) * key;
}

// The sum without H of `n` bytes at offset `at` of one block.
template <class V, RowMode kMode>
HEADRACE_INLINE uint64_t BlockSum(std::byte* dst, const std::byte* src, int64_t at, int64_t n) {
  constexpr RowMode kPlain = kMode == RowMode::kSum ? RowMode::kSum : RowMode::kCopy;
  uint64_t sum = 0;
  if (at & 3) {
    const int64_t part = std::min(n, 4 - (at & 3));
    sum += PartWord<kPlain>(dst, src, kSumKeyTable.key[at >> 2], at & 3, part);
    dst += part, src += part, at += part, n -= part;
  }
  const int64_t words = n >> 2, first = at >> 2;
  const uint32_t* key = kSumKeyTable.key.data() + first;
  int64_t done = 0;
  if constexpr (kMode == RowMode::kStream) {
    // Words and lines can be made to agree unless the tensor's words straddle those of the destination.
    const int64_t skip = ToLine(dst);
    if ((skip & 3) == 0 && words >= skip / 4 + 16) {
      if (skip > 0) sum += Dot<V, RowMode::kCopy>(dst, src, key, skip / 4);
      const int64_t lines = (words - skip / 4) & ~int64_t{15};
      sum += Dot<V, RowMode::kStream>(dst + skip, src + skip, key + skip / 4, lines);
      done = skip / 4 + lines;
    }
  }
  if (done < words) sum += Dot<V, kPlain>(dst + done * 4, src + done * 4, key + done, words - done);
  sum += 4 * (kSumKeyTable.prefix[first + words] - kSumKeyTable.prefix[first]);
  if (n & 3) sum += PartWord<kPlain>(dst + words * 4, src + words * 4, kSumKeyTable.key[first + words], 0, n & 3);
  return sum;
}

template <class V, RowMode kMode>
HEADRACE_TARGET static uint64_t SumRows(const Rows& r) {
  const std::byte* src_row = r.src;
  std::byte* dst_row = r.dst;
  int64_t row_at = r.first_byte;
  int64_t block = -1;  // of `factor`: rows of one block share it
  uint64_t factor = 0, sum = 0;
  for (int64_t i = 0; i < r.count; ++i, src_row += r.src_stride, dst_row += r.dst_stride, row_at += r.pos_stride) {
    const std::byte* src = src_row;
    std::byte* dst = dst_row;
    int64_t at = row_at, left = r.run_bytes;
    while (left > 0) {
      if (at / kSumBlockBytes != block) {
        block = at / kSumBlockBytes;
        factor = SumBlockFactor(r.tensor_key, static_cast<uint64_t>(block));
      }
      const int64_t in_block = at % kSumBlockBytes;
      const int64_t n = std::min(left, kSumBlockBytes - in_block);
      sum += factor * BlockSum<V, kMode>(dst, src, in_block, n);
      src += n, dst += n, at += n, left -= n;
    }
  }
  return sum;
}

template <class V>
constexpr RowKernels MakeRowKernels() {
  return {CopyRows<V>, CopyRowsStream<V>, SumRows<V, RowMode::kSum>, SumRows<V, RowMode::kCopy>,
          SumRows<V, RowMode::kStream>};
}

}  // namespace headrace::kernels_internal

#endif  // HEADRACE_KERNELS_ROW_KERNELS_IMPL_H_
