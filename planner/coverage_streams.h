#ifndef HEADRACE_PLANNER_COVERAGE_STREAMS_H_
#define HEADRACE_PLANNER_COVERAGE_STREAMS_H_

// Part of the coverage proof (coverage.h): that the plan's edges and streams carry its copies.
//
//   1. Edges tile the copies, each in an edge of its own ranks. One edge at most for source rank, destination rank and
//      stream; a direct one is not empty.
//   2. A stream's chain is not empty and holds no rank twice. Exactly the ranks of the chain have an edge of the
//   stream,
//      from the stream's source rank.
//   3. A copy on a direct edge has no part. A copy on an edge of a stream has one, whose source side equals the copy's
//      in every number; on each edge parts come in ascending order.
//   4. Each part is wanted by some copy. So what the proof finds out about the sources of copies holds for the parts,
//      and no byte travels in vain.
//
// Then executing the plan by edges writes what its copies say.

#include "absl/status/status.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// For any plan whose copies name buffers that exist. kInternal with the bare reason when a rule is broken, for the
// proof to wrap.
absl::Status CheckEdges(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COVERAGE_STREAMS_H_
