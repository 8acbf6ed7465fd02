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
// each), the ranks; never their product.
//
// Engines of different layouts: a unit's destination shards are those of each layout, one layout behind the other, and
// so are the ranks. A group then holds the instances that no layout tells apart, with the shards of all. So a rank of a
// layout that cuts coarser than another is in several groups.
//
//   TP 2 (ranks 0, 1) beside TP 1, EP 2 (ranks 2, 3), 5 experts     shards 0, 1: halves      shard 2: all of it
//   group 0: experts 0 to 2                                         ranks 0 | 1              rank 2, no expert before
//   group 1: experts 3, 4                                           ranks 0 | 1, 3 before    rank 3, no expert before
//
// Pure data; docs/planning.md.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/manifest.h"
#include "planner/models/model.h"

namespace headrace {

// Ranks by shard. shards[s] are the ranks that hold shard s of the group's instances (replicas), ascending, not empty.
struct RankGroup {
  std::vector<std::vector<int32_t>> shards;
  // Of buffers that are stacked over experts, by shard: how many experts of a layer lie before the group's first one.
  // Empty: none anywhere.
  std::vector<int32_t> experts_before = {};
};

struct UnitInstance {
  int32_t layer = -1;   // -1: outside of the layers
  int32_t expert = -1;  // -1: not an expert
  int32_t source_group = 0;
  int32_t destination_group = 0;
  // Which of its group's experts of that layer it is, from 0 on.
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

// Place of an instance's expert in a buffer of `shard` that is stacked over experts.
inline int32_t SourcePlace(const ClusterUnit& unit, const UnitInstance& instance, int64_t shard) {
  const std::vector<int32_t>& before = unit.source_groups[instance.source_group].experts_before;
  return instance.source_expert + (before.empty() ? 0 : before[shard]);
}
inline int32_t DestinationPlace(const ClusterUnit& unit, const UnitInstance& instance, int64_t shard) {
  const std::vector<int32_t>& before = unit.destination_groups[instance.destination_group].experts_before;
  return instance.destination_expert + (before.empty() ? 0 : before[shard]);
}

// One side's machines: rank r is on host r / ranks_per_host and in NVLink domain r / ranks_per_domain.
struct SideShape {
  int32_t ranks = 0;
  int32_t ranks_per_host = 1;
  int32_t ranks_per_domain = 1;
};

// Each GPU of a host has a NIC of its own, and the NICs at one place of all hosts, of both sides, hang on one leaf
// switch, a *rail*: what stays on it crosses one switch, other traffic between domains takes the spine.
inline int32_t RailOf(const SideShape& side, int32_t rank) { return rank % side.ranks_per_host; }

struct Cluster {
  std::string model;
  std::string layout;  // its id
  std::vector<ClusterUnit> units;
  SideShape source;  // no machine is on both sides
  SideShape destination;
  // Pipeline stage of each source rank: within one the load can be shared evenly.
  std::vector<int32_t> source_stage;
  // Destination ranks at which engines of another layout begin, ascending. Empty: all are of one.
  std::vector<int32_t> engine_borders;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_H_
