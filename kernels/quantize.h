#ifndef HEADRACE_KERNELS_QUANTIZE_H_
#define HEADRACE_KERNELS_QUANTIZE_H_

// FP8 quantization of a matrix by blocks, of which each shard may hold any part.
//
// A block's scale comes from the greatest magnitude in it, which may sit on another shard. So there are two passes:
// BlockMaxima on every shard, the maxima of common blocks combined by maximum (as unsigned integers: CombineMaxima, or
// an all-reduce), then Quantize on every shard. Shards that share a block write the same scale.
//
// Elements become F8_E4M3 (OCP 8-bit Floating Point Specification 1.0; torch.float8_e4m3fn). All of it is defined to
// the bit, and the GPU kernels give the same bits:
//
//   kF32Of128x128  DeepSeek-V3's scales, as per_block_cast_to_fp8 of DeepGEMM and vLLM computes them, in F32:
//                      scale = max(amax, 1e-4) / 448;  element = to_e4m3(x * (1 / scale))
//                  An infinity makes the scale infinite, itself NaN and its block's finite elements zero; a NaN makes
//                  the scale and all elements of its block NaN. (torch divides by a scalar on GPUs by multiplying with
//                  1/448, so its scales there may differ in the last bit.)
//   kE8M0Of1x32    MXFP8 of the OCP Microscaling Formats Specification 1.0: 32 elements of a row share 2^(e - 127),
//                  byte e. The specification leaves the choice of e open; here it is rounded up, so that nothing is
//                  clipped: the least e with amax <= 448 * 2^(e - 127), as in cuBLAS's and TransformerEngine's recipe,
//                  torchao's RCEIL and vLLM:
//                      element = to_e4m3(x / 2^(e - 127))
//                  Blocks of zeros, and those below 448 * 2^-127, have e = 0. An infinity makes e = 254 and itself 448
//                  of its sign; a NaN makes e = 255 and all elements of its block NaN.
//
// to_e4m3 rounds to nearest, ties to even, keeps denormals, and gives 448 of the sign to what is greater, as torch
// does since 2.13. Each NaN that is written is 0x7F, or 0x7FC00000 as an F32 scale. Zeros keep their sign.
//
// All functions are pure and re-entrant.

#include <cstddef>
#include <cstdint>

#include "kernels/cast.h"

namespace headrace::kernels {

enum class BlockScale { kF32Of128x128, kE8M0Of1x32 };

// The extent of a block, and the bytes of its scale.
int64_t BlockRows(BlockScale scale);
int64_t BlockCols(BlockScale scale);
int ScaleBytes(BlockScale scale);

// F16, BF16 and F32.
bool CanQuantize(FloatType from);

// A shard: `rows` x `cols` elements of a matrix, the first of which is element (first_row, first_col) of it. All
// counts >= 0; a box of no elements is no work.
struct QuantizeBox {
  const std::byte* src = nullptr;  // the first element
  FloatType type = FloatType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t src_stride[2] = {};  // bytes to the next row and the next column
  int64_t first_row = 0;
  int64_t first_col = 0;
};

// The blocks that a box has elements of: block rows [first_row / BlockRows, ...) and as many columns.
struct BlockGrid {
  int64_t first_row;
  int64_t first_col;
  int64_t rows;
  int64_t cols;
};
BlockGrid BlocksOf(BlockScale scale, const QuantizeBox& box);

// Raises maxima[i * row_stride + j], that of block (i, j) of BlocksOf counted from the grid's first, to the greatest
// magnitude of the box's elements in that block: its bits as F32 without the sign; a NaN is 0x7FC00000, above infinity.
// Zero them before the first box of a matrix.
void BlockMaxima(BlockScale scale, const QuantizeBox& box, uint32_t* maxima, int64_t row_stride);

// into[i] = max(into[i], from[i]).
void CombineMaxima(const uint32_t* from, int64_t count, uint32_t* into);

// What Quantize writes: the box's elements, and the scales of the blocks of BlocksOf. Not read: may overlap nothing.
struct QuantizedBox {
  std::byte* dst = nullptr;      // the first element
  int64_t dst_stride[2] = {};    // bytes to the next row and the next column
  std::byte* scales = nullptr;   // of the grid's first block; an F32 needs no alignment on the CPU, 4 on a GPU
  int64_t scale_stride[2] = {};  // bytes to the next block row and the next block column
};

// Quantizes the box by the combined maxima, laid out as for BlockMaxima.
void Quantize(BlockScale scale, const QuantizeBox& box, const uint32_t* maxima, int64_t row_stride,
              const QuantizedBox& out);

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_QUANTIZE_H_
