#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_TRAFFIC_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_TRAFFIC_H_

// A cluster's plan as traffic, for the time model (cost/flow.h).

#include "planner/cluster/cluster_plan.h"
#include "planner/cost/flow.h"

namespace headrace {

// A way's items (ItemStripe::way_bytes) in pieces, each a flow, in the order in which the ranks handle them
// (StripeRoute::order). A flow has a hop for each consumer; there is at least one flow for each way.
Traffic PlanTraffic(const ClusterPlan& plan, Index piece_bytes);
// In pieces of 16 MiB, or larger ones where there would be much more than 2 million hops otherwise.
Traffic PlanTraffic(const ClusterPlan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_TRAFFIC_H_
