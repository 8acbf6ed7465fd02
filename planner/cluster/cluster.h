#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_H_

// A whole job as rules: what every rank of a trainer and of an engine holds of a model, without a list of it.
//
// Tensors of one unit (planner/models/model.h) are cut alike wherever they are. So a cluster is, per unit, one small
// manifest of a single instance, whose "ranks" are *shards*, and a table that says which ranks hold the shards of which
// instance:
//
//   unit "expert": manifest of gate, up, down     source shard 0: all of it         destination shards 0..31: 1/32 each
//   instance (layer 7, expert 200)                source group (stage 2, ep 12)     destination group 0
//   groups                                        shard 0: ranks 44                 shard 5: ranks 5, 37, 69, ... (DP)
//
// A rank's buffers are all instances of the groups that it is in. Size: the units' shards, the instances (two numbers
// each), the ranks; never their product. Pure data; docs/planning.md.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/manifest.h"
#include "planner/models/model.h"

namespace headrace {

// Ranks by shard. shards[s] are the ranks that hold shard s of the group's instances (replicas), ascending, not empty.
struct RankGroup {
  std::vector<std::vector<int32_t>> shards;
};

struct UnitInstance {
  int32_t layer = -1;   // -1: outside of the layers
  int32_t expert = -1;  // -1: not an expert
  int32_t source_group = 0;
  int32_t destination_group = 0;
  // Which of its group's experts of that layer it is, from 0 on: its place in a buffer that is stacked over them.
  int32_t source_expert = 0;
  int32_t destination_expert = 0;
};

struct ClusterUnit {
  ModelUnit unit;
  // One instance. Tensor names have the placeholders; of a tensor that is stacked over experts, the tensor is one
  // expert's. Source and destination "ranks" are shards, from 0 on; every shard of a group has a buffer list, which may
  // be empty. Validated. No topology.
  Manifest manifest;
  // Buffers of all experts of a rank's layer are one, [local experts, ...] (engines); else each expert has its own.
  bool source_stacked = false;
  bool destination_stacked = false;
  std::vector<UnitInstance> instances;
  std::vector<RankGroup> source_groups;       // each with as many shards as the manifest's source
  std::vector<RankGroup> destination_groups;  // likewise
};

// One side's machines: rank r is on host r / ranks_per_host and in NVLink domain r / ranks_per_domain.
struct SideShape {
  int32_t ranks = 0;
  int32_t ranks_per_host = 1;
  int32_t ranks_per_domain = 1;
};

struct Cluster {
  std::string model;
  std::string layout;  // its id
  std::vector<ClusterUnit> units;
  SideShape source;  // no machine is on both sides
  SideShape destination;
  // Pipeline stage of each source rank: within one the load can be shared evenly.
  std::vector<int32_t> source_stage;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_H_
