#include "planner/manifest.h"

#include <algorithm>

namespace headrace {

Extents RowMajorStrides(const Extents& shape) {
  Extents strides(shape.size());
  Index stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    if (__builtin_mul_overflow(stride, std::max<Index>(shape[i], 1), &stride)) stride = INT64_MAX;
  }
  return strides;
}

Index SaturatedSum(Index a, Index b) {
  Index sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

Index SpanElements(const Buffer& buffer) {
  if (std::find(buffer.shape.begin(), buffer.shape.end(), 0) != buffer.shape.end()) return 0;
  Index last = 0;
  for (size_t i = 0; i < buffer.shape.size(); ++i) {
    last += (buffer.shape[i] - 1) * buffer.strides[i];
  }
  return last + 1;
}

Index SpanBytes(const Buffer& buffer, Dtype dtype) {
  // Rounded up, so that a sub-byte buffer that ends inside a byte owns that byte.
  return DtypeBytes(SpanElements(buffer), dtype);
}

}  // namespace headrace
