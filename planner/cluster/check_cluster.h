#ifndef HEADRACE_PLANNER_CLUSTER_CHECK_CLUSTER_H_
#define HEADRACE_PLANNER_CLUSTER_CHECK_CLUSTER_H_

// Whether a cluster's tables fit each other.

#include "absl/status/status.h"
#include "planner/cluster/cluster.h"

namespace headrace {

// kMalformed, with the unit's name: a side without ranks, with hosts or domains of less than one rank, or with more
// than 2^29 of any; a source_stage of another length or below 0; an instance whose groups do not exist, or whose place
// among experts is below 0; groups of one side with different numbers of shards, or fewer than the manifest names; a
// shard without ranks; ranks that are out of range, not ascending, or in two shards of a group; experts_before of
// another length than the shards or below 0; engine_borders that are out of range or not ascending.
absl::Status CheckCluster(const Cluster& cluster);

// What it says of the sides alone.
absl::Status CheckSides(const Cluster& cluster);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CHECK_CLUSTER_H_
