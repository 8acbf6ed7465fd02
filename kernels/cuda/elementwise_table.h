#ifndef HEADRACE_KERNELS_CUDA_ELEMENTWISE_TABLE_H_
#define HEADRACE_KERNELS_CUDA_ELEMENTWISE_TABLE_H_

// Builds the table of a launch of elementwise work. Addresses are the device's and are not read here; each must be a
// multiple of its element's size, and so must the strides. All destinations of a table must be disjoint, and none may
// overlap a source. Not thread-safe.

#include "kernels/cast.h"
#include "kernels/cuda/elementwise_body.h"
#include "kernels/cuda/table_builder.h"

namespace headrace::kernels {

class ElementwiseTable : public TableBuilder<grid::ElementwiseDescriptor> {
 public:
  // As Cast of kernels/cast.h: adds nothing unless CanCast(from, to).
  void AddCast(FloatType from, FloatType to, const StridedCast& c);
  // As NegExp of kernels/neg_exp.h.
  void AddNegExp(const StridedCast& c);
};

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CUDA_ELEMENTWISE_TABLE_H_
