#include "kernels/strided_copy.h"

#include <cstdint>

#include "kernels/box_index.h"
#include "kernels/loop_nest.h"
#include "kernels/packed_box.h"
#include "kernels/row_kernels.h"
#include "kernels/small_runs.h"

namespace headrace::kernels {
namespace {

using internal::kDst;
using internal::kPos;
using internal::kSides;
using internal::kSrc;
using internal::LoopNest;
using internal::RowKernels;
using internal::Rows;
using internal::Side;
using internal::SmallRunWork;

constexpr int64_t kLineBytes = 64;
// Streaming pays where the data would not stay in the cache, and only where whole lines of the destination can be
// written: rows that start on a line, or rows so long that their ends do not matter. A box is one of many copies of a
// generation, so even a small one does not stay: measured on a refit of thousands of boxes of some hundred KiB, 64 KiB
// is where streaming begins to win.
constexpr int64_t kStreamBoxBytes = int64_t{64} << 10;
constexpr int64_t kStreamRunBytes = int64_t{64} << 10;
constexpr int64_t kStreamAlignedRunBytes = 128;

LoopNest MakeNest(const StridedCopy& c, SmallRunWork work) {
  const int64_t* dst_stride = work == SmallRunWork::kSum ? c.src_stride : c.dst_stride;
  const int64_t* pos_stride = work == SmallRunWork::kCopy ? c.dst_stride : c.pos_stride;
  LoopNest nest;
  nest.rank = c.rank;
  for (int i = 0; i < c.rank; ++i) {
    nest.loop[i].extent = c.extent[i];
    nest.loop[i].stride[kSrc] = c.src_stride[i];
    nest.loop[i].stride[kDst] = dst_stride[i];
    nest.loop[i].stride[kPos] = pos_stride[i];
  }
  for (int s = 0; s < kSides; ++s) nest.run[s] = c.run_bytes;
  return nest;
}

bool ShouldStream(const LoopNest& nest, const std::byte* dst, int64_t box_bytes) {
  if (box_bytes < kStreamBoxBytes) return false;
  if (nest.run[kDst] >= kStreamRunBytes) return true;
  if (nest.run[kDst] < kStreamAlignedRunBytes) return false;
  if (reinterpret_cast<uintptr_t>(dst + nest.base[kDst]) % kLineBytes != 0) return false;
  for (int i = 0; i < nest.rank; ++i) {
    if (nest.loop[i].stride[kDst] % kLineBytes != 0) return false;
  }
  return true;
}

// The work on the whole of `c`, which may be a part of a larger box of `box_bytes`.
uint64_t Run(SmallRunWork work, const StridedCopy& c, int64_t box_bytes) {
  LoopNest nest = MakeNest(c, work);
  if (!Normalize(nest, work == SmallRunWork::kSum ? kSrc : kDst)) return 0;
  if (nest.rank > 0 && internal::IsSmallRun(nest.run[kSrc])) {
    const bool past_cache = work != SmallRunWork::kSum && box_bytes >= kStreamBoxBytes;
    const uint64_t sum = internal::SmallRuns(work, past_cache, nest, c.src, c.dst, c.tensor_key, c.first_byte);
    if (past_cache) internal::StreamFence();
    return sum;
  }
  const RowKernels& kernels = internal::ActiveRowKernels();
  const bool stream = work != SmallRunWork::kSum && ShouldStream(nest, c.dst, box_bytes);
  Rows rows;
  rows.run_bytes = nest.run[kSrc];
  rows.count = 1;
  rows.tensor_key = c.tensor_key;
  if (nest.rank > 0) {
    const internal::Loop& inner = nest.loop[nest.rank - 1];
    rows.count = inner.extent;
    rows.src_stride = inner.stride[kSrc];
    rows.dst_stride = inner.stride[kDst];
    rows.pos_stride = inner.stride[kPos];
  }
  uint64_t sum = 0;
  internal::ForEachOuter(nest, 1, [&](int64_t src_at, int64_t dst_at, int64_t pos_at) {
    rows.src = c.src + src_at;
    rows.first_byte = c.first_byte + pos_at;
    if (work != SmallRunWork::kSum) rows.dst = c.dst + dst_at;
    switch (work) {
      case SmallRunWork::kCopy:
        (stream ? kernels.copy_stream : kernels.copy)(rows);
        break;
      case SmallRunWork::kSum:
        sum += kernels.sum(rows);
        break;
      case SmallRunWork::kCopyAndSum:
        sum += (stream ? kernels.copy_sum_stream : kernels.copy_sum)(rows);
        break;
    }
  });
  if (stream) internal::StreamFence();
  return sum;
}

}  // namespace

int64_t BoxBytes(const StridedCopy& c) { return internal::BoxBytes(c.run_bytes, c.rank, c.extent); }

void Copy(const StridedCopy& c) { Run(SmallRunWork::kCopy, c, BoxBytes(c)); }

uint64_t CopyAndSum(const StridedCopy& c) { return Run(SmallRunWork::kCopyAndSum, c, BoxBytes(c)); }

uint64_t Sum(const StridedCopy& c) { return Run(SmallRunWork::kSum, c, BoxBytes(c)); }

void Pack(const StridedCopy& c, int64_t first, std::span<std::byte> out) {
  internal::ForEachPackedBox(c, first, first + static_cast<int64_t>(out.size()),
                             [&](internal::PackedBox& box, int64_t at) {
                               box.copy.dst = out.data() + at;
                               for (int i = 0; i < box.copy.rank; ++i) box.copy.dst_stride[i] = box.packed_stride[i];
                               // 0: what is packed is sent next and should stay in the cache.
                               Run(SmallRunWork::kCopy, box.copy, 0);
                             });
}

uint64_t UnpackAndSum(const StridedCopy& c, int64_t first, std::span<const std::byte> in) {
  const int64_t box_bytes = BoxBytes(c);
  uint64_t sum = 0;
  internal::ForEachPackedBox(c, first, first + static_cast<int64_t>(in.size()),
                             [&](internal::PackedBox& box, int64_t at) {
                               box.copy.src = in.data() + at;
                               for (int i = 0; i < box.copy.rank; ++i) box.copy.src_stride[i] = box.packed_stride[i];
                               sum += Run(SmallRunWork::kCopyAndSum, box.copy, box_bytes);
                             });
  return sum;
}

}  // namespace headrace::kernels
