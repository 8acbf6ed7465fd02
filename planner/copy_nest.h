#ifndef HEADRACE_PLANNER_COPY_NEST_H_
#define HEADRACE_PLANNER_COPY_NEST_H_

// From boxes to strided copies: runs as long as both sides allow, and as few loops around them.

#include <vector>

#include "absl/types/span.h"
#include "planner/intersect.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// Appends the copies that bring `box`, which lies in the source box cut.source[source] and in each of the destination
// boxes cut.destination[d], to all of the latter: for each nest of loops one copy to each destination, in their order,
// all with the same source side (Part). One nest, unless the box needs more than kMaxCopyLoops loops. Loops run in the
// order of the source's memory, or, where there is but one destination, of the destination's.
void LowerBox(const TensorSpec& tensor, int tensor_index, const TensorCells& cut, const Box& box, int source,
              absl::Span<const int> destinations, std::vector<Copy>* out);

// Appends the copies that have the source side alone of `box`, which lies in the source box cut.source[source]:
// destination is -1, its offset and strides are the source's.
void LowerSourceBox(const TensorSpec& tensor, int tensor_index, const TensorCells& cut, const Box& box, int source,
                    std::vector<Copy>* out);

// Joins copies without loops that continue each other in source, destination and tensor.
void JoinRuns(std::vector<Copy>* copies);

// The zero fills of all destination buffers, by buffer.
std::vector<ZeroFill> LowerZeroFills(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COPY_NEST_H_
