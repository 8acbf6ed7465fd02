#ifndef HEADRACE_PLANNER_COUPLING_H_
#define HEADRACE_PLANNER_COUPLING_H_

// Units that a destination must hold whole: scale blocks and their scales, and bytes of sub-byte dtypes. Part of
// Validate, see validate.h.

#include "absl/status/status.h"
#include "planner/manifest.h"

namespace headrace {

// Of a manifest that passed the checks before kMisalignedBlock.
//   kMisalignedBlock: a destination piece of a coupled weight holds a part of a block (a last partial block is
//     whole), or a box of a sub-byte dtype, on either side, starts or ends inside a byte.
//   kOutOfMemory: a view cuts a piece of them into more than 2^22 boxes.
//   kConflict: a destination rank holds a block without the scale that belongs to it.
absl::Status CheckCouplings(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COUPLING_H_
