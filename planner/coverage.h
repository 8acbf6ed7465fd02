#ifndef HEADRACE_PLANNER_COVERAGE_H_
#define HEADRACE_PLANNER_COVERAGE_H_

// The proof that a plan is right. It shares no code with the builder: no boxes, no common axes, no partition. It lays
// every copy and every piece out as contiguous byte runs (place in memory, place in the tensor) and compares them:
//
//   1. Each copy's numbers are sane: indices exist, extents are positive, nothing leaves the memory of its buffers.
//   2. Writes (copies, zero fills) and kept elements of each destination storage do not meet: no byte is written
//      twice, `keep` and gaps are never written.
//   3. The writes of each destination buffer are exactly what its pieces ask for: each byte from the right byte of the
//      right tensor, each zero a zero, nothing missing.
//   4. Each copy reads bytes that its source buffer offers as exactly those bytes of that tensor.
//
// Cost: time and memory in proportion to contiguous runs, one rank at a time; a contiguous copy is one run.

#include "absl/status/status.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// For a validated manifest and any plan, also one that was tampered with. kPlanInvalid names the tensor, buffers and
// ranks of the first difference. kOutOfMemory when one buffer is filled or read in more than 2^26 contiguous runs.
absl::Status ProveCoverage(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COVERAGE_H_
