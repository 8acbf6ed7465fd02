// Quantizes a matrix, for kernels/quantize_reference_test.py: cut into four shards, each by itself but for the maxima.
// Usage: quantize_tool SCALE TYPE ROWS COLS ROW_CUT COL_CUT <ELEMENTS >RESULT
//   SCALE 128x128 or 1x32; TYPE f32, f16 or bf16; ROW_CUT and COL_CUT are where the second shard's rows and columns
//   begin. RESULT: the elements, then the scales of all blocks, row by row.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/quantize.h"

namespace headrace::kernels {
namespace {

int Run(char** argv) {
  const BlockScale scale = std::string(argv[1]) == "1x32" ? BlockScale::kE8M0Of1x32 : BlockScale::kF32Of128x128;
  const std::string type_name = argv[2];
  const FloatType type = type_name == "f32" ? FloatType::kF32 : type_name == "f16" ? FloatType::kF16 : FloatType::kBF16;
  int64_t size[4];
  for (int i = 0; i < 4; ++i) size[i] = std::strtoll(argv[3 + i], nullptr, 10);
  const int64_t rows = size[0], cols = size[1], bytes = FloatBytes(type), scale_bytes = ScaleBytes(scale);
  std::vector<std::byte> in(static_cast<size_t>(rows * cols * bytes));
  if (std::fread(in.data(), 1, in.size(), stdin) != in.size()) {
    std::fprintf(stderr, "quantize_tool: fewer elements than %s x %s\n", argv[3], argv[4]);
    return 1;
  }
  QuantizeBox whole;
  whole.rows = rows, whole.cols = cols;
  const BlockGrid all = BlocksOf(scale, whole);
  std::vector<std::byte> elements(static_cast<size_t>(rows * cols));
  std::vector<std::byte> scales(static_cast<size_t>(all.rows * all.cols * scale_bytes));
  std::vector<uint32_t> combined(static_cast<size_t>(all.rows * all.cols));
  struct Shard {
    QuantizeBox box;
    BlockGrid grid;
  };
  std::vector<Shard> shards;
  const int64_t row_cuts[] = {0, size[2], rows}, col_cuts[] = {0, size[3], cols};
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      Shard s;
      s.box.type = type;
      s.box.first_row = row_cuts[i], s.box.rows = row_cuts[i + 1] - row_cuts[i];
      s.box.first_col = col_cuts[j], s.box.cols = col_cuts[j + 1] - col_cuts[j];
      s.box.src = in.data() + (row_cuts[i] * cols + col_cuts[j]) * bytes;
      s.box.src_stride[0] = cols * bytes, s.box.src_stride[1] = bytes;
      s.grid = BlocksOf(scale, s.box);
      std::vector<uint32_t> maxima(static_cast<size_t>(s.grid.rows * s.grid.cols));
      BlockMaxima(scale, s.box, maxima.data(), s.grid.cols);
      for (int64_t r = 0; r < s.grid.rows; ++r) {
        CombineMaxima(maxima.data() + r * s.grid.cols, s.grid.cols,
                      combined.data() + (s.grid.first_row + r) * all.cols + s.grid.first_col);
      }
      shards.push_back(s);
    }
  }
  for (const Shard& s : shards) {
    const int64_t first = s.grid.first_row * all.cols + s.grid.first_col;
    QuantizedBox out;
    out.dst = elements.data() + s.box.first_row * cols + s.box.first_col;
    out.dst_stride[0] = cols, out.dst_stride[1] = 1;
    out.scales = scales.data() + first * scale_bytes;
    out.scale_stride[0] = all.cols * scale_bytes, out.scale_stride[1] = scale_bytes;
    Quantize(scale, s.box, combined.data() + first, all.cols, out);
  }
  std::fwrite(elements.data(), 1, elements.size(), stdout);
  std::fwrite(scales.data(), 1, scales.size(), stdout);
  return 0;
}

}  // namespace
}  // namespace headrace::kernels

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: quantize_tool SCALE TYPE ROWS COLS ROW_CUT COL_CUT <ELEMENTS >RESULT\n");
    return 2;
  }
  return headrace::kernels::Run(argv);
}
