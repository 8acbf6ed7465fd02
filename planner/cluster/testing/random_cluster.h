#ifndef HEADRACE_PLANNER_CLUSTER_TESTING_RANDOM_CLUSTER_H_
#define HEADRACE_PLANNER_CLUSTER_TESTING_RANDOM_CLUSTER_H_

// Test only. Small clusters that can be planned, by a random generator: units of random manifests
// (testing/random_manifest.h) and of matrices that are cut by rows, columns or not at all on either side, large enough
// to be striped; several groups, shards and replicas on ranks in any order; experts, stacked or not, at any
// places; any sizes of domains.

#include "planner/cluster/cluster.h"
#include "planner/testing/random_manifest.h"

namespace headrace {

struct RandomClusterOptions {
  int max_units = 3;
  Index max_ranks = 16;  // of a side
  Index max_layers = 3;
  bool large = false;  // matrices of up to 512 KiB, which are cut into stripes
};

Cluster RandomCluster(Random& random, const RandomClusterOptions& options = {});

// A unit of one BF16 matrix [rows, columns] named `name`, which the source shards cut by rows and the destination
// shards by columns; one shard: it has all of it. Without instances and groups.
ClusterUnit MatrixUnit(const std::string& name, Index rows, Index columns, int source_shards, int destination_shards);

// `groups` groups of `shards` shards of `replicas` ranks, rank by rank in the order replica, shard, group (the group
// outermost), from 0 on.
std::vector<RankGroup> EvenGroups(int groups, int shards, int replicas);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_TESTING_RANDOM_CLUSTER_H_
