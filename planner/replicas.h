#ifndef HEADRACE_PLANNER_REPLICAS_H_
#define HEADRACE_PLANNER_REPLICAS_H_

// Which bytes are offered more than once, so that they can be compared?
//
// Rank 0 offers a matrix of four rows, ranks 1 and 2 half of it each, rank 3 its last row again:
//
//   rank 0  [0:4]      ->   sum 0 of ranks 0 and 1 over rows [0:2]
//   rank 1  [0:2]           sum 1 of ranks 0 and 2 over row  [2:3]
//   rank 2  [2:4]           sum 2 of ranks 0, 2 and 3 over row [3:4]
//   rank 3  [3:4]
//
// Bytes of one tensor that the same buffers offer are one sum, however many boxes they are: enough to name the tensor
// and the ranks. What no destination wants is left out, and so is what only one buffer offers.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// Tensor bytes of one source buffer that are offered elsewhere too: by another rank, by another buffer of the rank, or
// a second time by the buffer.
struct ReplicaSum {
  // The same wherever the same bytes are offered, and nowhere else: two or more sums of a job have it.
  uint64_t id = 0;
  int tensor = 0;  // index into manifest.tensors
  // Disjoint, together all of them: copies that have a source side alone (destination is -1, and its strides and offset
  // are the source's). The boxes of two sums of a buffer that has no overlapping pieces are disjoint, too.
  std::vector<Copy> boxes;
};

// The sums of one source rank, by tensor, then in an order that all ranks agree on. A pure function of the manifest,
// which BuildPlan accepted. Takes time for the tensors that the rank holds, which grows with the boxes that are offered
// of them and their boundaries, not with elements.
// kOutOfMemory: see CommonAxes::Place; BuildPlan would have found it.
absl::StatusOr<std::vector<ReplicaSum>> FindReplicas(const Manifest& manifest, int64_t source_rank);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_REPLICAS_H_
