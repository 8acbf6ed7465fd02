#ifndef HEADRACE_PLANNER_COST_SHARD_CLASSES_H_
#define HEADRACE_PLANNER_COST_SHARD_CLASSES_H_

// What of one instance of a unit (planner/cluster/cluster.h) has the same holders and the same consumers. The bounds
// and the published algorithms are made of it; no plan is.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/manifest.h"

namespace headrace {

// Bytes of one tensor that the same source shards hold and the same destination shards want.
struct ShardClass {
  int tensor = 0;              // index into the manifest's tensors
  std::vector<int> holders;    // source shards, ascending
  std::vector<int> consumers;  // destination shards, ascending
  Index bytes = 0;             // of the tensor, each counted once
  Index boxes = 0;             // into which they are cut
};

// By tensor, then holders, then consumers. `manifest` is a unit's. Cost and errors: those of Intersect.
absl::StatusOr<std::vector<ShardClass>> ShardClasses(const Manifest& manifest);

// How many instances of a unit go from a source group to a destination group.
struct GroupPair {
  int32_t source_group = 0;
  int32_t destination_group = 0;
  Index instances = 0;
  Index layers = 0;  // different layers among them
};

// By destination group, then source group.
std::vector<GroupPair> GroupPairs(const ClusterUnit& unit);

// Ranks of any of the shards, ascending, all different.
std::vector<int32_t> RanksOfShards(const RankGroup& group, const std::vector<int>& shards);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_SHARD_CLASSES_H_
