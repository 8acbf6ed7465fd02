#ifndef HEADRACE_KERNELS_CUDA_QUANTIZE_BODY_H_
#define HEADRACE_KERNELS_CUDA_QUANTIZE_BODY_H_

// The work of a warp on a table of matrices to be quantized (kernels/quantize.h): each of the two passes over tiles of
// 16 rows and 128 columns of the matrix, of which a box holds a part. A lane has four columns; eight lanes have an MX
// block, and a block of 128x128 is eight tiles. Tiles start on the matrix's own grid, so that no block is torn within
// a row.

#include <cstddef>
#include <cstdint>

#include "kernels/cast.h"
#include "kernels/cuda/table.h"
#include "kernels/float_bits.h"
#include "kernels/quantize_bits.h"

namespace headrace::kernels::grid {

inline constexpr int64_t kQuantizeTileRows = 16, kQuantizeTileCols = 128, kMxBlockCols = 32, kSquareBlockRows = 128;
inline constexpr int kLaneCols = 4, kLanesOfMxBlock = 8;

// Lives in device memory.
struct QuantizeDescriptor {
  const std::byte* src;
  std::byte* dst;
  std::byte* scales;
  uint32_t* maxima;
  int64_t rows;
  int64_t cols;
  int64_t first_row;
  int64_t first_col;
  int64_t src_stride[2];
  int64_t dst_stride[2];
  int64_t scale_stride[2];
  int64_t maxima_stride;
  int64_t tile_cols;  // tiles side by side
  int32_t type;       // FloatType of the source
  int32_t is_mx;      // 1x32 blocks with E8M0 scales, else 128x128 with F32
  int32_t is_wide;    // a lane's four columns are one aligned access on both sides
};

// Where a tile and a lane's columns are, in rows and columns of the box: parts beyond it are not touched.
struct QuantizeTile {
  int64_t row, row_end;
  int64_t col;       // of the tile's first column: negative where the box begins within the tile
  int64_t col_tile;  // tiles to the left

  HR_HOST_DEVICE QuantizeTile(const QuantizeDescriptor& d, int64_t tile) {
    const int64_t strip = d.first_row / kQuantizeTileRows + tile / d.tile_cols;
    col_tile = tile % d.tile_cols;
    row = internal::Max<int64_t>(0, strip * kQuantizeTileRows - d.first_row);
    row_end = internal::Min(d.rows, (strip + 1) * kQuantizeTileRows - d.first_row);
    col = col_tile * kQuantizeTileCols - d.first_col % kQuantizeTileCols;
  }
  // The place of row `r`'s block of the tile in the grid of maxima and scales.
  HR_HOST_DEVICE int64_t SquareBlockRow(const QuantizeDescriptor& d, int64_t r) const {
    return (d.first_row + r) / kSquareBlockRows - d.first_row / kSquareBlockRows;
  }
  // The MX block that starts at box column `c`.
  HR_HOST_DEVICE int64_t MxBlockCol(const QuantizeDescriptor& d, int64_t c) const {
    return (d.first_col + c) / kMxBlockCols - d.first_col / kMxBlockCols;
  }
};

template <int kBytes>
struct alignas(kBytes) LaneBytes {
  uint8_t byte[kBytes];
};

// Up to four elements of a row as F32 bits, from box column `col`; those outside of the box are 0.
template <class Format, class Warp>
HR_HOST_DEVICE void LoadFormat(const Warp& warp, const QuantizeDescriptor& d, int64_t row, int64_t col,
                               uint32_t (&out)[kLaneCols]) {
  using Bits = typename Format::Bits;
  Bits in[kLaneCols] = {};
  const std::byte* const at = d.src + row * d.src_stride[0];
  if (d.is_wide && col >= 0 && col + kLaneCols <= d.cols) {
    struct alignas(kLaneCols * sizeof(Bits)) Wide {
      Bits bits[kLaneCols];
    };
    const Wide wide = warp.template Load<Wide>(at + col * d.src_stride[1]);
    HR_UNROLL
    for (int i = 0; i < kLaneCols; ++i) in[i] = wide.bits[i];
  } else {
    HR_UNROLL
    for (int i = 0; i < kLaneCols; ++i) {
      if (col + i >= 0 && col + i < d.cols) in[i] = warp.template Load<Bits>(at + (col + i) * d.src_stride[1]);
    }
  }
  HR_UNROLL
  for (int i = 0; i < kLaneCols; ++i) {
    if constexpr (sizeof(Bits) == 4) {
      out[i] = in[i];
    } else {
      out[i] = internal::ConvertFloat<Format, internal::F32>(in[i]);
    }
  }
}

template <class Warp>
HR_HOST_DEVICE void LoadLane(const Warp& warp, const QuantizeDescriptor& d, int64_t row, int64_t col,
                             uint32_t (&out)[kLaneCols]) {
  if (d.type == static_cast<int>(FloatType::kF32)) return LoadFormat<internal::F32>(warp, d, row, col, out);
  if (d.type == static_cast<int>(FloatType::kF16)) return LoadFormat<internal::F16>(warp, d, row, col, out);
  LoadFormat<internal::BF16>(warp, d, row, col, out);
}

template <class Warp>
HR_HOST_DEVICE uint32_t LaneMaximum(const Warp& warp, const QuantizeDescriptor& d, int64_t row, int64_t col) {
  uint32_t bits[kLaneCols];
  LoadLane(warp, d, row, col, bits);
  uint32_t most = 0;
  HR_UNROLL
  for (int i = 0; i < kLaneCols; ++i) most = internal::Max(most, internal::MagnitudeBits(bits[i]));
  return most;
}

template <class Warp>
HR_HOST_DEVICE void MaximaOfTile(const Warp& warp, const QuantizeDescriptor& d, const QuantizeTile& tile) {
  typename Warp::template PerLane<uint32_t> most;
  if (!d.is_mx) {
    warp.ForEachLane([&](int lane) {
      uint32_t all = 0;
      for (int64_t row = tile.row; row < tile.row_end; ++row) {
        all = internal::Max(all, LaneMaximum(warp, d, row, tile.col + lane * kLaneCols));
      }
      most[lane] = all;
    });
    warp.template GroupMax<kWarpLanes>(most);
    warp.ForFirstLane([&] {
      warp.AtomicMax(d.maxima + tile.SquareBlockRow(d, tile.row) * d.maxima_stride + tile.col_tile, most[0]);
    });
    return;
  }
  for (int64_t row = tile.row; row < tile.row_end; ++row) {
    warp.ForEachLane([&](int lane) { most[lane] = LaneMaximum(warp, d, row, tile.col + lane * kLaneCols); });
    warp.template GroupMax<kLanesOfMxBlock>(most);
    warp.ForEachLane([&](int lane) {
      const int64_t col = tile.col + lane * kLaneCols;
      if (lane % kLanesOfMxBlock != 0 || col >= d.cols || col + kMxBlockCols <= 0) return;
      warp.AtomicMax(d.maxima + row * d.maxima_stride + tile.MxBlockCol(d, col), most[lane]);
    });
  }
}

// Stores the lane's elements of a row, of which `value(bits)` gives each one's FP8.
template <class Warp, class Value>
HR_HOST_DEVICE void QuantizeLane(const Warp& warp, const QuantizeDescriptor& d, int64_t row, int64_t col,
                                 const Value& value) {
  uint32_t bits[kLaneCols];
  LoadLane(warp, d, row, col, bits);
  LaneBytes<kLaneCols> out;
  HR_UNROLL
  for (int i = 0; i < kLaneCols; ++i) out.byte[i] = value(bits[i]);
  std::byte* const at = d.dst + row * d.dst_stride[0];
  if (d.is_wide && col >= 0 && col + kLaneCols <= d.cols) {
    warp.Store(at + col * d.dst_stride[1], out);
    return;
  }
  HR_UNROLL
  for (int i = 0; i < kLaneCols; ++i) {
    if (col + i >= 0 && col + i < d.cols) warp.Store(at + (col + i) * d.dst_stride[1], out.byte[i]);
  }
}

template <class Warp>
HR_HOST_DEVICE void QuantizeTileOf(const Warp& warp, const QuantizeDescriptor& d, const QuantizeTile& tile) {
  warp.ForEachLane([&](int lane) {
    const int64_t col = tile.col + lane * kLaneCols;
    if (!d.is_mx) {
      const int64_t block_row = tile.SquareBlockRow(d, tile.row);
      const float scale = internal::BlockScaleF32(d.maxima[block_row * d.maxima_stride + tile.col_tile]);
      const float inverse = 1.0f / scale;
      if (lane == 0) {
        // Every tile of the block stores the same.
        warp.Store(d.scales + block_row * d.scale_stride[0] + tile.col_tile * d.scale_stride[1], scale);
      }
      for (int64_t row = tile.row; row < tile.row_end; ++row) {
        QuantizeLane(warp, d, row, col, [&](uint32_t bits) { return internal::QuantizeByInverse(bits, inverse); });
      }
      return;
    }
    const int64_t block = lane / kLanesOfMxBlock * kMxBlockCols + tile.col;  // column where the lane's block starts
    if (block >= d.cols || block + kMxBlockCols <= 0) return;
    const int64_t block_col = tile.MxBlockCol(d, block);
    for (int64_t row = tile.row; row < tile.row_end; ++row) {
      const uint8_t scale = internal::BlockScaleE8M0(d.maxima[row * d.maxima_stride + block_col]);
      if (lane % kLanesOfMxBlock == 0) {
        warp.Store(d.scales + row * d.scale_stride[0] + block_col * d.scale_stride[1], scale);
      }
      QuantizeLane(warp, d, row, col, [&](uint32_t bits) { return internal::QuantizeByE8M0(bits, scale); });
    }
  });
}

template <class Warp>
HR_HOST_DEVICE void BlockMaximaWarp(const Warp& warp, const Table<QuantizeDescriptor>& table) {
  ForEachSlice(table, warp.worker(), warp.workers(), [&](const QuantizeDescriptor& d, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) MaximaOfTile(warp, d, QuantizeTile(d, tile));
  });
}

template <class Warp>
HR_HOST_DEVICE void QuantizeWarp(const Warp& warp, const Table<QuantizeDescriptor>& table) {
  ForEachSlice(table, warp.worker(), warp.workers(), [&](const QuantizeDescriptor& d, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) QuantizeTileOf(warp, d, QuantizeTile(d, tile));
  });
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_QUANTIZE_BODY_H_
