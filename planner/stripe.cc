#include "planner/stripe.h"

namespace headrace {

Slicing SlicingOf(const TensorSpec& tensor, const Box& box) {
  Slicing s;
  if (box.extent.empty()) {
    s.bytes = DtypeBytes(1, tensor.dtype);
    return s;
  }
  const Index volume = Volume(box);
  for (;; ++s.axis) {
    const bool innermost = s.axis + 1 == box.extent.size();
    s.unit = innermost ? DtypeUnitElements(tensor.dtype) : 1;
    s.bytes = DtypeBytes(volume / box.extent[s.axis] * s.unit, tensor.dtype);
    if (innermost || s.bytes <= kMinStripeBytes) return s;
  }
}

}  // namespace headrace
