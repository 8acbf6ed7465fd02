#ifndef HEADRACE_PLANNER_COST_TESTING_CLUSTERS_H_
#define HEADRACE_PLANNER_COST_TESTING_CLUSTERS_H_

// Small clusters for tests, written down without the rules that make real ones.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "planner/cluster/cluster.h"
#include "planner/cost/flow.h"

namespace headrace {

// How a side cuts the one tensor of a unit: into `shards` equal parts along `axis`; axis -1: every shard has all of it.
struct Cut {
  int shards = 1;
  int axis = 0;
};

// A unit of one BF16 tensor `name` of [rows, columns], without instances and groups.
ClusterUnit UnitOf(const std::string& name, Index rows, Index columns, Cut source, Cut destination);

// A cluster of 1 to 3 such units with random groups, replicas, stages and domains.
Cluster RandomCluster(std::mt19937_64& random);

// Traffic by which every destination rank gets what it wants, each of it from any of its holders along any tree.
// Elements are counted one by one: an oracle for who wants what.
Traffic RandomTraffic(const Cluster& cluster, std::mt19937_64& random);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_TESTING_CLUSTERS_H_
