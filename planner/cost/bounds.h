#ifndef HEADRACE_PLANNER_COST_BOUNDS_H_
#define HEADRACE_PLANNER_COST_BOUNDS_H_

// What no schedule can beat: the least time for the bytes of a refit, from who holds and who wants what alone. No plan
// goes in, and no code of the planner's decisions.
//
// Every term is a cut: bytes that must cross it, over what can cross it in a second. For any set of nodes, links carry
// per second at most its NICs, and the NVLink ports of those that have a neighbour outside of the set.
//
//   leaving    bytes that only ranks of the set hold (some destination wants them): at least once out of the set. Sets:
//              the holders of anything, pipeline stages, all ranks, and each of these with its whole NVLink domains
//   entering   distinct bytes that a destination domain, or a rank, wants: at least once into it
//   copying    a destination's worker writes each byte that the rank wants, a source's packs each byte at least once;
//              workers of one host share its cores and memory
//
// Assumed: ranks do nothing else; a byte that is there once can be used anywhere on the rank; any rank may pass on
// bytes, trainer ranks too; rates are the cost model's. Left out, so that it stays a bound: the spine (a schedule may
// bring bytes to their rail over NVLink first), latencies, filling of pipelines, costs per message and per copy,
// snapshots, commits, the fixed costs. Compare it with Simulation::transfer_seconds of a simulation without snapshots.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/cost/machine.h"
#include "planner/manifest.h"

namespace headrace {

struct Bound {
  double seconds = 0;
  std::string of;  // whom it holds for: "trainer ranks 0..15", "engine domain 3"; empty: for nobody
};

struct LowerBounds {
  Bound leaving;
  Bound entering;
  Bound copying;
  // As `leaving`, where trainer ranks pass on nothing for each other. No bound for every schedule.
  Bound leaving_directly;
  double seconds = 0;        // the largest of the first three
  Index distinct_bytes = 0;  // wanted, each byte of the model once
  Index needed_bytes = 0;    // wanted, summed over destination ranks
};

// `cluster` is validated but for its sides. Errors: those of CheckSides and ShardClasses.
absl::StatusOr<LowerBounds> FindLowerBounds(const Cluster& cluster, const CostModel& model);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_BOUNDS_H_
