#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_TRAFFIC_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_TRAFFIC_H_

// A cluster's plan as traffic, for the time model (cost/flow.h).

#include "planner/cluster/cluster_plan.h"
#include "planner/cost/flow.h"

namespace headrace {

inline constexpr Index kFlowBytes = Index{256} << 20;

// Items that one sender sends to the same consumers by the same tree are one flow, as far as they follow each other
// within about `flow_bytes` of what the sender sends. Flows come in the order in which the ranks handle them
// (StripeRoute::order). A flow has a hop for each consumer: memory is flows times consumers.
Traffic PlanTraffic(const ClusterPlan& plan, Index flow_bytes = kFlowBytes);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_TRAFFIC_H_
