#include "kernels/small_runs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/row_kernels.h"
#include "kernels/transpose.h"

namespace headrace::kernels::internal {
namespace {

// A tile's lines along either loop are a cache line or more, and 64 x 64 two-byte elements on two sides are 16 KiB.
constexpr int64_t kTile = 64;
// Of a nest of one loop, where there is nothing to keep in the cache.
constexpr int64_t kLine = 1024;

// Copies the elements of a tile, loop `a` innermost.
template <int kBytes>
void CopyTile(const Loop& a, const Loop& b, const std::byte* src, std::byte* dst) {
  for (int64_t j = 0; j < b.extent; ++j) {
    const std::byte* s = src + j * b.stride[kSrc];
    std::byte* d = dst + j * b.stride[kDst];
    for (int64_t i = 0; i < a.extent; ++i) {
      std::memcpy(d + i * a.stride[kDst], s + i * a.stride[kSrc], kBytes);
    }
  }
}

using CopyTileFn = void (*)(const Loop&, const Loop&, const std::byte*, std::byte*);

CopyTileFn CopyTileOf(int64_t bytes) {
  switch (bytes) {
    case 1:
      return CopyTile<1>;
    case 2:
      return CopyTile<2>;
    case 4:
      return CopyTile<4>;
    case 8:
      return CopyTile<8>;
    default:
      return CopyTile<16>;
  }
}

// The loop along which the elements are neighbours in the tensor, or -1.
int PositionLoop(const LoopNest& nest) {
  for (int i = 0; i < nest.rank; ++i) {
    if (nest.loop[i].stride[kPos] == nest.run[kSrc]) return i;
  }
  return -1;
}

struct TileSum {
  bool along_b;  // the tile's loop along which elements are neighbours in the tensor is b, not a
  bool any;      // whether there is such a loop; otherwise each element is summed on its own
  CopyTileFn copy;
  int64_t element;
};

// The sum of a tile by lines of neighbours in the tensor: straight out of the source or the destination where they
// are neighbours there too, out of a gathered line otherwise.
uint64_t SumTile(const TileSum& how, const Loop& a, const Loop& b, const std::byte* src, const std::byte* dst,
                 uint64_t tensor_key, int64_t position) {
  const Loop& line = how.along_b ? b : a;
  const Loop& lines = how.along_b ? a : b;
  Rows rows;
  rows.tensor_key = tensor_key;
  rows.first_byte = position;
  rows.pos_stride = lines.stride[kPos];
  rows.count = lines.extent;
  rows.run_bytes = line.extent * how.element;
  if (how.any && line.stride[kSrc] == how.element) {
    rows.src = src;
    rows.src_stride = lines.stride[kSrc];
    return ActiveRowKernels().sum(rows);
  }
  if (how.any && dst != nullptr && line.stride[kDst] == how.element) {
    rows.src = dst;
    rows.src_stride = lines.stride[kDst];
    return ActiveRowKernels().sum(rows);
  }
  uint64_t sum = 0;
  if (!how.any) {
    rows.run_bytes = how.element;
    rows.src_stride = lines.stride[kSrc];
    for (int64_t i = 0; i < line.extent; ++i) {
      rows.src = src + i * line.stride[kSrc];
      rows.first_byte = position + i * line.stride[kPos];
      sum += ActiveRowKernels().sum(rows);
    }
    return sum;
  }
  std::byte gathered[kLine * 16];
  rows.src = gathered;
  rows.count = 1;
  Loop gather = line;
  gather.stride[kDst] = how.element;
  for (int64_t i = 0; i < lines.extent; ++i, rows.first_byte += rows.pos_stride) {
    how.copy(gather, Loop{}, src + i * lines.stride[kSrc], gathered);
    sum += ActiveRowKernels().sum(rows);
  }
  return sum;
}

// Lines of a transposed tile: long enough for the memory's pages and prefetchers on both sides.
constexpr int64_t kTransposeLineBytes = 256;
// One cache line more, so that the elements of a column do not compete for a few sets of the cache.
constexpr int64_t kTransposePitch = kTransposeLineBytes + 64;

int64_t TransposeSide(int64_t element) { return element == 1 ? 128 : kTransposeLineBytes / element; }

// A tile of a transpose: lines of the source, contiguous along b, become lines of the destination, contiguous along a.
// Both go through buffers, since lines that are far apart in memory are fast only as whole lines. With the sum, it is
// fused into the copy of those lines that are contiguous in the tensor.
uint64_t TransposeAndSum(const TileSum& how, bool with_sum, bool stream, const Loop& a, const Loop& b,
                         const std::byte* src, std::byte* dst, uint64_t tensor_key, int64_t position) {
  alignas(64) std::byte in[128 * kTransposePitch], out[128 * kTransposePitch];
  const RowKernels& kernels = ActiveRowKernels();
  uint64_t sum = 0;
  auto copy = [&](const Rows& rows, bool past_cache, bool sum_here) {
    if (with_sum && sum_here) {
      sum += (past_cache ? kernels.copy_sum_stream : kernels.copy_sum)(rows);
    } else {
      (past_cache ? kernels.copy_stream : kernels.copy)(rows);
    }
  };
  Rows read{src,        in,       b.extent * how.element, a.extent, a.stride[kSrc], kTransposePitch,
            tensor_key, position, a.stride[kPos]};
  copy(read, false, how.along_b);
  TransposeTile(how.element, a.extent, b.extent, in, kTransposePitch, out, kTransposePitch);
  Rows write{out,        dst,      a.extent * how.element, b.extent, kTransposePitch, b.stride[kDst],
             tensor_key, position, b.stride[kPos]};
  copy(write, stream, how.any && !how.along_b);
  if (with_sum && !how.any) sum += SumTile(how, a, b, src, dst, tensor_key, position);
  return sum;
}

}  // namespace

uint64_t SmallRuns(SmallRunWork work, bool stream, const LoopNest& normalized, const std::byte* src, std::byte* dst,
                   uint64_t tensor_key, int64_t first_byte) {
  LoopNest nest = normalized;
  TileSum how{false, false, CopyTileOf(nest.run[kSrc]), nest.run[kSrc]};
  // Loop a stays innermost, where the destination (or a source that is only summed) is densest. Loop b is the one
  // along which the tensor is contiguous if there is another such, since sums go by lines; else the source's densest.
  const int inner = nest.rank - 1;
  if (nest.rank > 1) {
    int b = -1;
    if (work != SmallRunWork::kCopy) b = PositionLoop(nest);
    if (b < 0 || b == inner) {
      b = 0;
      for (int i = 1; i < inner; ++i) {
        if (std::abs(nest.loop[i].stride[kSrc]) < std::abs(nest.loop[b].stride[kSrc])) b = i;
      }
    }
    std::swap(nest.loop[b], nest.loop[inner - 1]);  // the order of loops does not matter to the result
  }
  const Loop a = nest.loop[inner];
  const Loop b = nest.rank > 1 ? nest.loop[inner - 1] : Loop{};
  how.along_b = nest.rank > 1 && b.stride[kPos] == how.element;
  how.any = how.along_b || a.stride[kPos] == how.element;
  const bool transpose = work != SmallRunWork::kSum && a.stride[kDst] == how.element && b.stride[kSrc] == how.element &&
                         a.extent >= 8 && b.extent >= 8;
  const int64_t step_b = transpose ? TransposeSide(how.element) : kTile;
  const int64_t step_a = b.extent == 1 ? kLine : step_b;
  uint64_t sum = 0;
  ForEachOuter(nest, 2, [&](int64_t src_at, int64_t dst_at, int64_t pos_at) {
    for (int64_t j = 0; j < b.extent; j += step_b) {
      for (int64_t i = 0; i < a.extent; i += step_a) {
        Loop tile_a = a, tile_b = b;
        tile_a.extent = std::min(step_a, a.extent - i);
        tile_b.extent = std::min(step_b, b.extent - j);
        const std::byte* s = src + (src_at + i * a.stride[kSrc] + j * b.stride[kSrc]);
        std::byte* d = nullptr;
        if (work != SmallRunWork::kSum) d = dst + (dst_at + i * a.stride[kDst] + j * b.stride[kDst]);
        const int64_t position = first_byte + pos_at + i * a.stride[kPos] + j * b.stride[kPos];
        const bool with_sum = work != SmallRunWork::kCopy;
        if (transpose) {
          sum += TransposeAndSum(how, with_sum, stream, tile_a, tile_b, s, d, tensor_key, position);
          continue;
        }
        if (d != nullptr) how.copy(tile_a, tile_b, s, d);
        if (with_sum) sum += SumTile(how, tile_a, tile_b, s, d, tensor_key, position);
      }
    }
  });
  return sum;
}

}  // namespace headrace::kernels::internal
