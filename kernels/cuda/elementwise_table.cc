#include "kernels/cuda/elementwise_table.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/small_nests.h"
#include "kernels/loop_nest.h"

namespace headrace::kernels {
namespace {

using grid::ElementwiseDescriptor;
using internal::kDst;
using internal::kPos;
using internal::kSrc;
using internal::LoopNest;

// Whether runs are whole groups of `kWideElements` elements that are aligned on side `s`.
bool IsWide(const LoopNest& nest, internal::Side s, const void* base, int64_t element_bytes) {
  const int64_t unit = grid::kWideElements * element_bytes, alignment = std::min<int64_t>(16, unit);
  if (nest.run[s] % unit != 0 || reinterpret_cast<uintptr_t>(base) % static_cast<uintptr_t>(alignment) != 0)
    return false;
  return std::all_of(nest.loop, nest.loop + nest.rank,
                     [&](const internal::Loop& loop) { return loop.stride[s] % alignment == 0; });
}

void AddBox(int op, int64_t src_bytes, int64_t dst_bytes, const StridedCast& c, ElementwiseTable& table) {
  LoopNest nest;
  nest.rank = c.rank;
  for (int i = 0; i < c.rank; ++i) {
    nest.loop[i].extent = c.extent[i];
    nest.loop[i].stride[kSrc] = c.src_stride[i];
    nest.loop[i].stride[kDst] = nest.loop[i].stride[kPos] = c.dst_stride[i];
  }
  nest.run[kSrc] = src_bytes;
  nest.run[kDst] = nest.run[kPos] = dst_bytes;
  if (!Normalize(nest, kDst)) return;
  const bool is_wide =
      IsWide(nest, kSrc, c.src + nest.base[kSrc], src_bytes) && IsWide(nest, kDst, c.dst + nest.base[kDst], dst_bytes);
  const int32_t width = is_wide ? grid::kWideElements : 1;
  const int64_t src_unit = width * src_bytes, dst_unit = width * dst_bytes;
  grid::ForEachSmallNest(nest, {src_unit, dst_unit, dst_unit}, [&](const LoopNest& part) {
    ElementwiseDescriptor d = {};
    d.src = c.src + part.base[kSrc];
    d.dst = c.dst + part.base[kDst];
    d.op = op;
    d.width = width;
    d.units = grid::FillShape(part, part.run[kDst] / dst_unit, {kSrc, kDst}, d.shape);
    table.Append(d, grid::TilesOf(d.units));
  });
}

}  // namespace

void ElementwiseTable::AddCast(FloatType from, FloatType to, const StridedCast& c) {
  if (!CanCast(from, to)) return;
  AddBox(grid::CastOp(from, to), FloatBytes(from), FloatBytes(to), c, *this);
}

void ElementwiseTable::AddNegExp(const StridedCast& c) { AddBox(grid::kNegExpOp, 4, 4, c, *this); }

}  // namespace headrace::kernels
