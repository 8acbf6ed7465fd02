#ifndef HEADRACE_PLANNER_CLUSTER_BUILD_CLUSTER_H_
#define HEADRACE_PLANNER_CLUSTER_BUILD_CLUSTER_H_

// A model under a layout as a cluster (cluster.h). Pure and thread-safe.

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/cluster/job_layout.h"
#include "planner/models/model.h"

namespace headrace {

// Every unit but draft ones. Time and memory: the units' shards (unit_rules.h), the instances, the ranks of each unit.
//
//   dense units      a group for each pipeline stage; its shards are TP ranks, the shard's ranks the replicas (DP, CP)
//   tied embeddings  one group, of both end stages
//   experts          a group for each stage and expert-parallel rank; shards are expert TP. The engine deals experts
//                    out unevenly where they do not divide (the first ranks have one more), Megatron does not
//   several engines  a group for each run of layers and experts that no engine layout tells apart. Ranks of a layout
//                    that cuts coarser than another are in several groups
//   FSDP             one group, of all shards; of units that are stacked over experts one for each FSDP rank, whose
//                    experts it holds
//
//   malformed       a layer that the model has not; a unit that contradicts itself
//   shape_mismatch  what the rules refuse: sizes that do not divide; machines that are not as many as the ranks
//   misaligned_block  a cut inside a scale block
//   invalid_option  no engines
//   out_of_bounds   more than kMaxSideRanks ranks a side; more than 2^20 instances of units
absl::StatusOr<Cluster> BuildCluster(const Model& model, const JobLayout& layout);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_BUILD_CLUSTER_H_
