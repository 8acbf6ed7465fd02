#ifndef HEADRACE_PLANNER_CLUSTER_EXPAND_H_
#define HEADRACE_PLANNER_CLUSTER_EXPAND_H_

// From a cluster's rules to lists: what real members of the job would say of their buffers, and the ordinary manifest
// of all of them. Pure and thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/manifest.h"

namespace headrace {

enum class ClusterSide { kSource, kDestination };

// The rank's buffers, with their names and tensors' names in the place of {layer} and {expert}: unit by unit, instance
// by instance. Where experts are stacked, the buffers of a layer's local experts are one, [local experts, ...].
// Time and memory: the rank's own pieces, and one pass over the cluster's instances and ranks.
//   out_of_bounds  a rank that the side has not
absl::StatusOr<std::vector<Buffer>> RankBuffers(const Cluster& cluster, ClusterSide side, int32_t rank);

// Every tensor of the cluster: unit by unit, instance by instance; one for a layer's experts where they are stacked in
// the checkpoint.
std::vector<TensorSpec> ClusterTensors(const Cluster& cluster);

// The whole manifest, with couplings and topology (hosts "source0", "destination3"; domains "source_domain0", ..; one
// engine or, where their layouts differ, "engine0", "engine1", ..: the engines of one layout each): for clusters that
// fit in memory. BuildPlan takes it.
Manifest ExpandManifest(const Cluster& cluster);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_EXPAND_H_
