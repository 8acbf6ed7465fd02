#ifndef HEADRACE_KERNELS_CUDA_QUANTIZE_TABLE_H_
#define HEADRACE_KERNELS_CUDA_QUANTIZE_TABLE_H_

// Builds the table of the two passes of kernels/quantize.h; one table serves both. Addresses are the device's and are
// not read here; elements, maxima and F32 scales must be aligned to their size, strides too. Nothing that a table
// writes may overlap, except the maxima and the scales of a block that several boxes share. Not thread-safe.

#include <cstdint>

#include "kernels/cuda/quantize_body.h"
#include "kernels/cuda/table_builder.h"
#include "kernels/quantize.h"

namespace headrace::kernels {

class QuantizeTable : public TableBuilder<grid::QuantizeDescriptor> {
 public:
  // As BlockMaxima and Quantize: `maxima` and `row_stride` as there. Adds nothing unless CanQuantize(box.type).
  void Add(BlockScale scale, const QuantizeBox& box, uint32_t* maxima, int64_t row_stride, const QuantizedBox& out);
};

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CUDA_QUANTIZE_TABLE_H_
