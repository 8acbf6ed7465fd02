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
// kOutOfMemory when whether memory is shared takes too long to find out: three or more strides none of which exceeds
// what the smaller ones reach (lattice.h).
// Cost: sorting the pieces; of buffers whose ranges interleave, up to 2^20 runs, or each pair.
absl::Status CheckMemoryOverlap(const std::vector<Buffer>& destination);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MEMORY_OVERLAP_H_
