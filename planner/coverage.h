#ifndef HEADRACE_PLANNER_COVERAGE_H_
#define HEADRACE_PLANNER_COVERAGE_H_

// The proof that a plan is right. It shares no code with the builder: no common axes, no partition of boxes. The
// builder cuts tensors and lays the cuts into memory; the proof goes the other way and reads back from each copy's
// numbers which elements of which piece it moves (coverage_pieces.h), then counts them (coverage_meeting.h):
//
//   1. Each copy's numbers are sane: indices exist, extents are positive, nothing leaves the memory of its buffers.
//   2. No two elements of a destination buffer, no two of its pieces and no two buffers of a storage share memory.
//   3. Each element that a copy writes, it writes where a piece wants this very element of this tensor; each that a
//      zero fill writes is in a zero piece. So `keep` and gaps are never written.
//   4. The elements written in each piece are pairwise different, and as many as the piece has: each exactly once.
//   5. Each element that a copy reads, a piece of its source buffer offers there as this very element.
//   6. Edges and streams carry exactly the copies (coverage_streams.h): what a stream brings to a rank is the source
//      side of the rank's copies, and each rank of a chain gets all of it.
//
// Cost: time and memory in proportion to copies (n log n), pieces and loops, one buffer at a time, whatever the extents
// and strides. A run that crosses pieces counts once per piece. Loops that lie in no one piece, and strides in which
// neither divides the other, are legal but written out, up to kMaxProofParts parts of a buffer.

#include "absl/status/status.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// For a validated manifest and any plan, also one that was tampered with. kPlanInvalid names the tensor, buffers and
// ranks of the first difference. kOutOfMemory when a buffer would have to be written out in more than kMaxProofParts
// parts.
absl::Status ProveCoverage(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COVERAGE_H_
