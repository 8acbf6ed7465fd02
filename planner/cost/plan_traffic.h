#ifndef HEADRACE_PLANNER_COST_PLAN_TRAFFIC_H_
#define HEADRACE_PLANNER_COST_PLAN_TRAFFIC_H_

// The traffic of a whole plan, for the simulator (simulate.h).

#include "planner/cost/flow.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// A flow for each direct edge, and one for each stream, along its chain, in the order of the plan's edges (a stream
// where its first edge is). Nodes are the source ranks of the topology in its order, then the destination ranks; hosts
// and domains are numbered in the order in which nodes name them. A flow's copies are those of its edge; of a stream
// its parts, which is what its source packs.
// `plan` is one that BuildPlan made from `manifest`.
Traffic TrafficOf(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_PLAN_TRAFFIC_H_
