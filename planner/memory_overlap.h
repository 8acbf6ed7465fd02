#ifndef HEADRACE_PLANNER_MEMORY_OVERLAP_H_
#define HEADRACE_PLANNER_MEMORY_OVERLAP_H_

// That no destination byte belongs to two places: part of Validate, see validate.h.

#include <vector>

#include "absl/status/status.h"
#include "planner/manifest.h"

namespace headrace {

// Of destination buffers that passed the checks before kOverlap. kOverlap when
//   - two pieces of one buffer share an element,
//   - the strides of one buffer put two elements at one place, or
//   - two buffers of one rank and storage, neither an alias, share a byte. Buffers whose ranges interleave without
//     sharing a byte (columns of one pitched matrix) are accepted.
// kOutOfMemory when buffers interleave in more than 2^26 runs.
// Cost: sorting the pieces; for buffers whose ranges interleave, their contiguous runs.
absl::Status CheckMemoryOverlap(const std::vector<Buffer>& destination);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MEMORY_OVERLAP_H_
