#include "planner/cost/shard_classes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "planner/box.h"
#include "planner/dtype.h"
#include "planner/intersect.h"
#include "planner/shared_cells.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::vector<ShardClass>> ShardClasses(const Manifest& manifest) {
  HR_ASSIGN_OR_RETURN(const std::vector<TensorCells> tensors, Intersect(manifest));
  std::vector<ShardClass> classes;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorCells& cut = tensors[t];
    std::vector<int> cells(cut.cells.size());
    std::iota(cells.begin(), cells.end(), 0);
    std::map<std::pair<std::vector<int>, std::vector<int>>, ShardClass> by_shards;
    for (const SharedCell& cell : ShareCells(cut, cells)) {
      std::set<int> holders, consumers;
      for (int box : cell.sources) holders.insert(static_cast<int>(manifest.source[cut.source[box].buffer].rank));
      for (int box : cell.destinations) {
        consumers.insert(static_cast<int>(manifest.destination[cut.destination[box].buffer].rank));
      }
      ShardClass& shared = by_shards[{{holders.begin(), holders.end()}, {consumers.begin(), consumers.end()}}];
      shared.bytes += DtypeBytes(Volume(cell.box), manifest.tensors[t].dtype);
      ++shared.boxes;
    }
    for (auto& [shards, shared] : by_shards) {
      classes.push_back({static_cast<int>(t), shards.first, shards.second, shared.bytes, shared.boxes});
    }
  }
  return classes;
}

std::vector<GroupPair> GroupPairs(const ClusterUnit& unit) {
  std::map<std::pair<int32_t, int32_t>, std::pair<Index, std::set<int32_t>>> pairs;
  for (const UnitInstance& instance : unit.instances) {
    auto& [instances, layers] = pairs[{instance.destination_group, instance.source_group}];
    ++instances;
    layers.insert(instance.layer);
  }
  std::vector<GroupPair> result;
  for (const auto& [groups, counts] : pairs) {
    result.push_back({groups.second, groups.first, counts.first, static_cast<Index>(counts.second.size())});
  }
  return result;
}

std::vector<int32_t> RanksOfShards(const RankGroup& group, const std::vector<int>& shards) {
  std::vector<int32_t> ranks;
  for (int shard : shards) ranks.insert(ranks.end(), group.shards[shard].begin(), group.shards[shard].end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace headrace
