#include "planner/manifest.h"

#include <algorithm>

namespace headrace {

Extents RowMajorStrides(const Extents& shape) {
  Extents strides(shape.size());
  Index stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    // Wraps in a manifest that was not validated.
    stride = static_cast<Index>(static_cast<uint64_t>(stride) * static_cast<uint64_t>(std::max<Index>(shape[i], 1)));
  }
  return strides;
}

Index SpanElements(const Buffer& buffer) {
  Index last = 0;
  for (size_t i = 0; i < buffer.shape.size(); ++i) {
    if (buffer.shape[i] == 0) return 0;
    last += (buffer.shape[i] - 1) * buffer.strides[i];
  }
  return last + 1;
}

Index SpanBytes(const Buffer& buffer, Dtype dtype) {
  // Rounded up, so that a sub-byte buffer that ends inside a byte owns that byte.
  return (SpanElements(buffer) * DtypeBits(dtype) + 7) / 8;
}

}  // namespace headrace
