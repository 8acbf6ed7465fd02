#ifndef HEADRACE_KERNELS_CUDA_COPY_BODY_H_
#define HEADRACE_KERNELS_CUDA_COPY_BODY_H_

// The work of a warp on a table of copies.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cursor.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/units.h"
#include "kernels/strided_copy.h"

namespace headrace::kernels::grid {

// Sides of a copy's shape.
inline constexpr int kCopySrc = 0, kCopyDst = 1, kCopyPos = 2;

// One box (kernels/strided_copy.h), its loops in the order that suits the destination. Lives in device memory.
struct CopyDescriptor {
  const std::byte* src;
  std::byte* dst;  // null: the sum alone
  BoxShape<kMaxBoxLoops, 3> shape;
  int64_t units;  // of unit_bytes each
  int64_t slot;   // index of the sum that the box's bytes are added to
  uint64_t tensor_key;
  int64_t first_byte;
  // 1 to 16: divides the addresses, the strides and the run of source and destination.
  int64_t unit_bytes;
};

// A lane's units begin, begin + 32, ... below `end`; returns their sum.
template <int kBytes, bool kSum, class Warp>
HR_HOST_DEVICE uint64_t CopyUnits(const Warp& warp, const CopyDescriptor& d, int64_t begin, int64_t end) {
  constexpr int kSides = kSum ? 3 : 2;
  constexpr int kBatch = 4;  // loads under way at once
  int unit_bytes[kSides];
  for (int s = 0; s < kSides; ++s) unit_bytes[s] = kBytes;
  // By value: the compiler must take it that stores may change the table.
  const BoxShape<kMaxBoxLoops, 3> shape = d.shape;
  Cursor<kSides, kMaxBoxLoops, 3> at(shape, unit_bytes, begin);
  BlockFactor factor(d.tensor_key);
  uint64_t sum = 0;
  for (int64_t left = (end - begin + kWarpLanes - 1) / kWarpLanes; left > 0; left -= kBatch) {
    Unit<kBytes> unit[kBatch];
    int64_t src[kBatch], dst[kBatch], position[kBatch];
    HR_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      src[i] = at.offset(kCopySrc);
      dst[i] = at.offset(kCopyDst);
      if constexpr (kSum) position[i] = d.first_byte + at.offset(kCopyPos);
      at.Advance(shape);
    }
    HR_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (i < left) unit[i] = warp.template Load<Unit<kBytes>>(d.src + src[i]);
    }
    HR_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left) break;
      if (d.dst != nullptr) warp.Store(d.dst + dst[i], unit[i]);
      if constexpr (kSum) sum += UnitSum(unit[i], position[i], warp.sum_keys(), factor);
    }
  }
  return sum;
}

template <bool kSum, class Warp>
HR_HOST_DEVICE uint64_t CopyLane(const Warp& warp, const CopyDescriptor& d, int64_t begin, int64_t end) {
  if (begin >= end || (!kSum && d.dst == nullptr)) return 0;
  switch (d.unit_bytes) {
    case 16:
      return CopyUnits<16, kSum>(warp, d, begin, end);
    case 8:
      return CopyUnits<8, kSum>(warp, d, begin, end);
    case 4:
      return CopyUnits<4, kSum>(warp, d, begin, end);
    case 2:
      return CopyUnits<2, kSum>(warp, d, begin, end);
    default:
      return CopyUnits<1, kSum>(warp, d, begin, end);
  }
}

// Copies the boxes of the warp's share; with kSum, adds the sum of what it copied of a box to sums[slot].
template <bool kSum, class Warp>
HR_HOST_DEVICE void CopyWarp(const Warp& warp, const Table<CopyDescriptor>& table, uint64_t* sums) {
  ForEachSlice(table, warp.worker(), warp.workers(),
               [&](const CopyDescriptor& d, int64_t first_tile, int64_t end_tile) {
                 const int64_t begin = first_tile * kTileUnits, end = internal::Min(d.units, end_tile * kTileUnits);
                 typename Warp::template PerLane<uint64_t> sum;
                 warp.ForEachLane([&](int lane) { sum[lane] = CopyLane<kSum>(warp, d, begin + lane, end); });
                 if constexpr (kSum) {
                   const uint64_t all = warp.Sum(sum);
                   warp.ForFirstLane([&] { warp.AtomicAdd(sums + d.slot, all); });
                 }
               });
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_COPY_BODY_H_
