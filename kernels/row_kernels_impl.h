#ifndef HEADRACE_KERNELS_ROW_KERNELS_IMPL_H_
#define HEADRACE_KERNELS_ROW_KERNELS_IMPL_H_

// The source of every level's row kernels. A level's .cc defines HEADRACE_TARGET (its function target attribute),
// includes this file once and instantiates MakeRowKernels<V> with its vector type V:
//
//   V::kWords                 32-bit words of a vector
//   V::Vec, V::Acc            a vector; an accumulator of 64-bit lanes, value-initialised to zero by V::Zero()
//   V::Load, Store, Stream    unaligned load and store; store past the cache to an address aligned to the vector
//   V::MulAddEven(acc, x, k)  adds the 64-bit products of the even 32-bit lanes of x and of k
//   V::MulAddOdd(acc, x, k)   adds those of the odd lanes of x and the even lanes of k
//   V::Reduce(a, b)           the sum of all lanes of both
//
// Everything here has internal linkage: code compiled for one level must never be merged with another's.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/row_kernels.h"
#include "kernels/sum_keys.h"

#define HEADRACE_INLINE HEADRACE_TARGET static inline __attribute__((always_inline))

namespace headrace::kernels::internal {

enum class RowMode { kSum, kCopy, kStream };

inline constexpr int64_t kLineBytes = 64;
// Long runs go through this many pages side by side: more streams for the prefetcher, more banks of memory at work.
inline constexpr int64_t kPages = 4;
inline constexpr int64_t kPageBytes = kSumBlockBytes;
inline constexpr int64_t kChunkBytes = 256;  // of a page before the next page's turn, where there is no sum

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
  int64_t i = std::min(n, ToLine(dst));
  CopyShort(dst, src, i);
  for (; i + kPages * kPageBytes <= n; i += kPages * kPageBytes) {
    for (int64_t j = i; j < i + kPageBytes; j += kChunkBytes) {
#pragma GCC unroll 4
      for (int64_t page = j; page < j + kPages * kPageBytes; page += kPageBytes) {
        for (int64_t k = page; k < page + kChunkBytes; k += kVec) V::Stream(dst + k, V::Load(src + k));
      }
    }
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

// What accumulates over all rows of one block: the inner product of words and keys in vector lanes, the rest aside.
template <class V>
struct BlockAcc {
  typename V::Acc even, odd;
  uint64_t scalar;
};

// Adds the inner product of `n` words with their keys; copies them too unless the mode is kSum. kStream wants `dst` on
// a line and n a multiple of 16.
template <class V, RowMode kMode>
HEADRACE_INLINE void Dot(std::byte* dst, const std::byte* src, const uint32_t* key, int64_t n, BlockAcc<V>& acc) {
  constexpr int64_t kW = V::kWords;
  int64_t i = 0;
  for (; i + kW <= n; i += kW) {
    const typename V::Vec x = V::Load(src + i * 4);
    if constexpr (kMode == RowMode::kCopy) V::Store(dst + i * 4, x);
    if constexpr (kMode == RowMode::kStream) V::Stream(dst + i * 4, x);
    V::MulAddEven(acc.even, x, V::Load(key + i));
    // The keys of the odd words, one word further on, are then where those of the even words were.
    V::MulAddOdd(acc.odd, x, V::Load(key + i + 1));
  }
  for (; i < n; ++i) {
    uint32_t word;
    std::memcpy(&word, src + i * 4, 4);
    if constexpr (kMode != RowMode::kSum) std::memcpy(dst + i * 4, &word, 4);
    acc.scalar += static_cast<uint64_t>(word) * key[i];
  }
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

// Adds the sum without H of `n` bytes at offset `at` of one block.
template <class V, RowMode kMode>
HEADRACE_INLINE void AddToBlock(std::byte* dst, const std::byte* src, int64_t at, int64_t n, BlockAcc<V>& acc) {
  constexpr RowMode kPlain = kMode == RowMode::kSum ? RowMode::kSum : RowMode::kCopy;
  if (at & 3) {
    const int64_t part = std::min(n, 4 - (at & 3));
    acc.scalar += PartWord<kPlain>(dst, src, kSumKeyTable.key[at >> 2], at & 3, part);
    dst += part, src += part, at += part, n -= part;
  }
  const int64_t words = n >> 2, first = at >> 2;
  const uint32_t* key = kSumKeyTable.key.data() + first;
  int64_t done = 0;
  if constexpr (kMode == RowMode::kStream) {
    // Words and lines can be made to agree unless the tensor's words straddle those of the destination.
    const int64_t skip = ToLine(dst);
    if ((skip & 3) == 0 && words >= skip / 4 + 16) {
      if (skip > 0) Dot<V, RowMode::kCopy>(dst, src, key, skip / 4, acc);
      const int64_t lines = (words - skip / 4) & ~int64_t{15};
      Dot<V, RowMode::kStream>(dst + skip, src + skip, key + skip / 4, lines, acc);
      done = skip / 4 + lines;
    }
  }
  if (done < words) Dot<V, kPlain>(dst + done * 4, src + done * 4, key + done, words - done, acc);
  acc.scalar += 4 * (kSumKeyTable.prefix[first + words] - kSumKeyTable.prefix[first]);
  if (n & 3) {
    acc.scalar += PartWord<kPlain>(dst + words * 4, src + words * 4, kSumKeyTable.key[first + words], 0, n & 3);
  }
}

// The sum of kPages whole blocks, side by side: each key is loaded once for all of them.
template <class V, RowMode kMode>
HEADRACE_INLINE uint64_t SumPages(std::byte* dst, const std::byte* src, uint64_t tensor_key, uint64_t block) {
  constexpr RowMode kPlain = kMode == RowMode::kSum ? RowMode::kSum : RowMode::kCopy;
  const uint32_t* key = kSumKeyTable.key.data();
  BlockAcc<V> acc[kPages];
  int64_t from = 0, to = kPageBytes;  // what is done side by side of each block
  if constexpr (kMode == RowMode::kStream) {
    from = ToLine(dst);
    if (from > 0) to = from + kPageBytes - kLineBytes;
  }
#pragma GCC unroll 4
  for (int64_t p = 0; p < kPages; ++p) acc[p] = {V::Zero(), V::Zero(), 4 * kSumKeyTable.prefix[kSumKeys]};
  for (int64_t i = from; i < to; i += V::kWords * 4) {
    const typename V::Vec even = V::Load(key + i / 4), odd = V::Load(key + i / 4 + 1);
#pragma GCC unroll 4
    for (int64_t p = 0; p < kPages; ++p) {
      const int64_t at = p * kPageBytes + i;
      const typename V::Vec x = V::Load(src + at);
      if constexpr (kMode == RowMode::kCopy) V::Store(dst + at, x);
      if constexpr (kMode == RowMode::kStream) V::Stream(dst + at, x);
      V::MulAddEven(acc[p].even, x, even);
      V::MulAddOdd(acc[p].odd, x, odd);
    }
  }
  uint64_t sum = 0;
#pragma GCC unroll 4
  for (int64_t p = 0; p < kPages; ++p) {
    if (from > 0) {
      const int64_t page = p * kPageBytes;
      Dot<V, kPlain>(dst + page, src + page, key, from / 4, acc[p]);
      Dot<V, kPlain>(dst + page + to, src + page + to, key + to / 4, (kPageBytes - to) / 4, acc[p]);
    }
    const uint64_t factor = SumBlockFactor(tensor_key, block + static_cast<uint64_t>(p));
    sum += factor * (V::Reduce(acc[p].even, acc[p].odd) + acc[p].scalar);
  }
  return sum;
}

// Short rows leave few loads in flight behind the arithmetic of the sum: the lines of a row this far ahead are asked
// for in advance. Longer rows and plain copies gain nothing from it.
inline constexpr int64_t kPrefetchBytes = 4096;
inline constexpr int64_t kPrefetchRunBytes = 2048;

template <class V, RowMode kMode>
HEADRACE_TARGET static uint64_t SumRows(const Rows& r) {
  const std::byte* src_row = r.src;
  std::byte* dst_row = r.dst;
  int64_t row_at = r.first_byte;
  const int64_t ahead = r.run_bytes > kPrefetchRunBytes ? r.count : kPrefetchBytes / r.run_bytes + 1;
  uint64_t block = static_cast<uint64_t>(r.first_byte) / kSumBlockBytes;  // the block that `acc` belongs to
  BlockAcc<V> acc{V::Zero(), V::Zero(), 0};
  uint64_t sum = 0;
  for (int64_t i = 0; i < r.count; ++i, src_row += r.src_stride, dst_row += r.dst_stride, row_at += r.pos_stride) {
    if (ahead < r.count - i) {
      const std::byte* next = src_row + ahead * r.src_stride;
      for (int64_t b = 0; b < r.run_bytes; b += kLineBytes) __builtin_prefetch(next + b);
    }
    const std::byte* src = src_row;
    std::byte* dst = dst_row;
    auto at = static_cast<uint64_t>(row_at);
    for (int64_t left = r.run_bytes; left > 0;) {
      constexpr int64_t kSideBySide = kPages * kPageBytes;
      if (left >= kSideBySide && at % kSumBlockBytes == 0 && (kMode != RowMode::kStream || ToLine(dst) % 4 == 0)) {
        sum += SumPages<V, kMode>(dst, src, r.tensor_key, at / kSumBlockBytes);
        src += kSideBySide, dst += kSideBySide, at += kSideBySide, left -= kSideBySide;
        continue;
      }
      if (at / kSumBlockBytes != block) {
        sum += SumBlockFactor(r.tensor_key, block) * (V::Reduce(acc.even, acc.odd) + acc.scalar);
        acc = {V::Zero(), V::Zero(), 0};
        block = at / kSumBlockBytes;
      }
      const auto in_block = static_cast<int64_t>(at % kSumBlockBytes);
      const int64_t n = std::min(left, kSumBlockBytes - in_block);
      AddToBlock<V, kMode>(dst, src, in_block, n, acc);
      src += n, dst += n, at += static_cast<uint64_t>(n), left -= n;
    }
  }
  return sum + SumBlockFactor(r.tensor_key, block) * (V::Reduce(acc.even, acc.odd) + acc.scalar);
}

template <class V>
constexpr RowKernels MakeRowKernels() {
  return {CopyRows<V>, CopyRowsStream<V>, SumRows<V, RowMode::kSum>, SumRows<V, RowMode::kCopy>,
          SumRows<V, RowMode::kStream>};
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_ROW_KERNELS_IMPL_H_
