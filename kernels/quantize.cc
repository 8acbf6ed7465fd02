#include "kernels/quantize.h"

#include <algorithm>
#include <cstring>

#include "kernels/quantize_bits.h"

namespace headrace::kernels {
namespace {

using internal::BF16;
using internal::ConvertFloat;
using internal::F16;
using internal::F32;

uint32_t LoadF32(FloatType type, const std::byte* at) {
  uint32_t wide = 0;
  uint16_t narrow = 0;
  if (type == FloatType::kF32) {
    std::memcpy(&wide, at, sizeof wide);
    return wide;
  }
  std::memcpy(&narrow, at, sizeof narrow);
  return type == FloatType::kF16 ? ConvertFloat<F16, F32>(narrow) : ConvertFloat<BF16, F32>(narrow);
}

// A part of a box that is in one block: rows [row, row_end), columns [col, col_end) of the box.
struct BlockPart {
  int64_t block_row;  // counted from the grid's first
  int64_t block_col;
  int64_t row, row_end;
  int64_t col, col_end;
};

template <class Body>
void ForEachBlock(BlockScale scale, const QuantizeBox& box, Body&& body) {
  const int64_t height = BlockRows(scale), width = BlockCols(scale);
  const BlockGrid grid = BlocksOf(scale, box);
  for (int64_t i = 0; i < grid.rows; ++i) {
    const int64_t row = (grid.first_row + i) * height - box.first_row;
    for (int64_t j = 0; j < grid.cols; ++j) {
      const int64_t col = (grid.first_col + j) * width - box.first_col;
      body(BlockPart{i, j, std::max<int64_t>(0, row), std::min(box.rows, row + height), std::max<int64_t>(0, col),
                     std::min(box.cols, col + width)});
    }
  }
}

// Calls body(row, col, bits) for each element of a part.
template <class Body>
void ForEachElement(const QuantizeBox& box, const BlockPart& part, Body&& body) {
  for (int64_t r = part.row; r < part.row_end; ++r) {
    const std::byte* at = box.src + r * box.src_stride[0] + part.col * box.src_stride[1];
    for (int64_t c = part.col; c < part.col_end; ++c, at += box.src_stride[1]) body(r, c, LoadF32(box.type, at));
  }
}

}  // namespace

int64_t BlockRows(BlockScale scale) { return scale == BlockScale::kF32Of128x128 ? 128 : 1; }
int64_t BlockCols(BlockScale scale) { return scale == BlockScale::kF32Of128x128 ? 128 : 32; }
int ScaleBytes(BlockScale scale) { return scale == BlockScale::kF32Of128x128 ? 4 : 1; }

bool CanQuantize(FloatType from) { return from != FloatType::kF64; }

BlockGrid BlocksOf(BlockScale scale, const QuantizeBox& box) {
  if (box.rows <= 0 || box.cols <= 0) return {0, 0, 0, 0};
  const int64_t height = BlockRows(scale), width = BlockCols(scale);
  const int64_t row = box.first_row / height, col = box.first_col / width;
  return {row, col, (box.first_row + box.rows - 1) / height - row + 1,
          (box.first_col + box.cols - 1) / width - col + 1};
}

void BlockMaxima(BlockScale scale, const QuantizeBox& box, uint32_t* maxima, int64_t row_stride) {
  ForEachBlock(scale, box, [&](const BlockPart& part) {
    uint32_t& most = maxima[part.block_row * row_stride + part.block_col];
    ForEachElement(box, part,
                   [&](int64_t, int64_t, uint32_t bits) { most = std::max(most, internal::MagnitudeBits(bits)); });
  });
}

void CombineMaxima(const uint32_t* from, int64_t count, uint32_t* into) {
  for (int64_t i = 0; i < count; ++i) into[i] = std::max(into[i], from[i]);
}

void Quantize(BlockScale scale, const QuantizeBox& box, const uint32_t* maxima, int64_t row_stride,
              const QuantizedBox& out) {
  ForEachBlock(scale, box, [&](const BlockPart& part) {
    const uint32_t maximum = maxima[part.block_row * row_stride + part.block_col];
    std::byte* const scale_at =
        out.scales + part.block_row * out.scale_stride[0] + part.block_col * out.scale_stride[1];
    auto store = [&](int64_t r, int64_t c, uint8_t value) {
      out.dst[r * out.dst_stride[0] + c * out.dst_stride[1]] = static_cast<std::byte>(value);
    };
    if (scale == BlockScale::kF32Of128x128) {
      const float factor = internal::BlockScaleF32(maximum);
      const float inverse = 1.0f / factor;
      std::memcpy(scale_at, &factor, sizeof factor);
      ForEachElement(box, part, [&](int64_t r, int64_t c, uint32_t bits) {
        store(r, c, internal::QuantizeByInverse(bits, inverse));
      });
    } else {
      const uint8_t exponent = internal::BlockScaleE8M0(maximum);
      *scale_at = static_cast<std::byte>(exponent);
      ForEachElement(box, part, [&](int64_t r, int64_t c, uint32_t bits) {
        store(r, c, internal::QuantizeByE8M0(bits, exponent));
      });
    }
  });
}

}  // namespace headrace::kernels
