#ifndef HEADRACE_PLANNER_STRIPE_H_
#define HEADRACE_PLANNER_STRIPE_H_

// How a box is cut into stripes so that runs stay long.

#include <utility>

#include "absl/types/span.h"
#include "planner/balance.h"
#include "planner/box.h"
#include "planner/manifest.h"

namespace headrace {

// Boxes are cut along the outermost axis of which a slice is no more than kMinStripeBytes: rows of a matrix, of stacked
// experts rows of each.
struct Slicing {
  size_t axis = 0;
  Index unit = 1;   // elements along the axis that are cut off at least (whole bytes of a sub-byte dtype)
  Index bytes = 0;  // of as many slices
};

// `box` is not empty, on common axes (lower.h).
Slicing SlicingOf(const TensorSpec& tensor, const Box& box);

// Calls visit(stripe, box) for each of the stripes, which are multiples of the slicing's bytes and together the box.
template <typename F>
void CutIntoStripes(const TensorSpec& tensor, Box box, absl::Span<const Stripe> stripes, F&& visit) {
  if (stripes.size() == 1) return visit(stripes[0], std::move(box));
  const Slicing slicing = SlicingOf(tensor, box);
  for (const Stripe& stripe : stripes) {
    box.extent[slicing.axis] = stripe.bytes / slicing.bytes * slicing.unit;
    visit(stripe, box);
    box.start[slicing.axis] += box.extent[slicing.axis];
  }
}

}  // namespace headrace

#endif  // HEADRACE_PLANNER_STRIPE_H_
