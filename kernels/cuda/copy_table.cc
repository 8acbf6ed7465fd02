#include "kernels/cuda/copy_table.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/small_nests.h"
#include "kernels/loop_nest.h"
#include "kernels/packed_box.h"

namespace headrace::kernels {
namespace {

using grid::CopyDescriptor;
using internal::kDst;
using internal::kPos;
using internal::kSides;
using internal::kSrc;
using internal::LoopNest;

static_assert(kSrc == grid::kCopySrc && kDst == grid::kCopyDst && kPos == grid::kCopyPos);

// The largest unit that divides addresses, strides and run on the sides that are touched.
int64_t UnitBytes(const LoopNest& nest, const std::byte* src, const std::byte* dst) {
  uint64_t all = grid::kMaxUnitBytes | static_cast<uint64_t>(nest.run[kSrc]) | reinterpret_cast<uintptr_t>(src) |
                 reinterpret_cast<uintptr_t>(dst);
  for (int i = 0; i < nest.rank; ++i) {
    all |= static_cast<uint64_t>(nest.loop[i].stride[kSrc]);
    if (dst != nullptr) all |= static_cast<uint64_t>(nest.loop[i].stride[kDst]);
  }
  return static_cast<int64_t>(all & -all);
}

void AddBox(const StridedCopy& c, bool sum_alone, int64_t slot, CopyTable& table) {
  LoopNest nest;
  nest.rank = c.rank;
  for (int i = 0; i < c.rank; ++i) {
    nest.loop[i].extent = c.extent[i];
    nest.loop[i].stride[kSrc] = c.src_stride[i];
    nest.loop[i].stride[kDst] = sum_alone ? c.src_stride[i] : c.dst_stride[i];
    nest.loop[i].stride[kPos] = c.pos_stride[i];
  }
  std::fill(nest.run, nest.run + kSides, c.run_bytes);
  if (!Normalize(nest, sum_alone ? kSrc : kDst)) return;
  std::byte* const dst = sum_alone ? nullptr : c.dst + nest.base[kDst];
  const int64_t unit = UnitBytes(nest, c.src + nest.base[kSrc], dst);
  grid::ForEachSmallNest(nest, {unit, unit, unit}, [&](const LoopNest& part) {
    CopyDescriptor d = {};
    d.src = c.src + part.base[kSrc];
    d.dst = sum_alone ? nullptr : c.dst + part.base[kDst];
    d.first_byte = c.first_byte + part.base[kPos];
    d.tensor_key = c.tensor_key;
    d.slot = slot;
    d.unit_bytes = unit;
    d.units = grid::FillShape(part, part.run[kSrc] / unit, {kSrc, kDst, kPos}, d.shape);
    table.Append(d, grid::TilesOf(d.units));
  });
}

}  // namespace

void CopyTable::AddCopy(const StridedCopy& c, int64_t slot) { AddBox(c, false, slot, *this); }

void CopyTable::AddSum(const StridedCopy& c, int64_t slot) { AddBox(c, true, slot, *this); }

void CopyTable::AddPack(const StridedCopy& c, int64_t first, std::span<std::byte> staging, int64_t slot) {
  const int64_t end = first + static_cast<int64_t>(staging.size());
  internal::ForEachPackedBox(c, first, end, [&](internal::PackedBox& box, int64_t at) {
    box.copy.dst = staging.data() + at;
    std::copy_n(box.packed_stride, box.copy.rank, box.copy.dst_stride);
    AddBox(box.copy, false, slot, *this);
  });
}

void CopyTable::AddUnpack(const StridedCopy& c, int64_t first, std::span<const std::byte> staging, int64_t slot) {
  const int64_t end = first + static_cast<int64_t>(staging.size());
  internal::ForEachPackedBox(c, first, end, [&](internal::PackedBox& box, int64_t at) {
    box.copy.src = staging.data() + at;
    std::copy_n(box.packed_stride, box.copy.rank, box.copy.src_stride);
    AddBox(box.copy, false, slot, *this);
  });
}

}  // namespace headrace::kernels
