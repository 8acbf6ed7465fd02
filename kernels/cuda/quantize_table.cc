#include "kernels/cuda/quantize_table.h"

#include <cstdint>

namespace headrace::kernels {
namespace {

// Whether four columns from each multiple of four of the matrix are one aligned access.
bool IsWide(const void* first, int64_t first_col, const int64_t (&stride)[2], int64_t element_bytes) {
  const int64_t unit = grid::kLaneCols * element_bytes;
  const auto start =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(first)) - first_col % grid::kLaneCols * element_bytes;
  return stride[1] == element_bytes && stride[0] % unit == 0 && start % unit == 0;
}

}  // namespace

void QuantizeTable::Add(BlockScale scale, const QuantizeBox& box, uint32_t* maxima, int64_t row_stride,
                        const QuantizedBox& out) {
  if (box.rows <= 0 || box.cols <= 0 || !CanQuantize(box.type)) return;
  grid::QuantizeDescriptor d = {};
  d.src = box.src;
  d.dst = out.dst;
  d.scales = out.scales;
  d.maxima = maxima;
  d.rows = box.rows;
  d.cols = box.cols;
  d.first_row = box.first_row;
  d.first_col = box.first_col;
  for (int i = 0; i < 2; ++i) {
    d.src_stride[i] = box.src_stride[i];
    d.dst_stride[i] = out.dst_stride[i];
    d.scale_stride[i] = out.scale_stride[i];
  }
  d.maxima_stride = row_stride;
  auto tiles = [](int64_t first, int64_t count, int64_t size) { return (first + count - 1) / size - first / size + 1; };
  d.tile_cols = tiles(box.first_col, box.cols, grid::kQuantizeTileCols);
  d.type = static_cast<int32_t>(box.type);
  d.is_mx = scale == BlockScale::kE8M0Of1x32;
  d.is_wide = IsWide(box.src, box.first_col, box.src_stride, FloatBytes(box.type)) &&
              IsWide(out.dst, box.first_col, out.dst_stride, 1);
  Append(d, tiles(box.first_row, box.rows, grid::kQuantizeTileRows) * d.tile_cols);
}

}  // namespace headrace::kernels
