#include "planner/cluster/check_cluster.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status Malformed(const Cluster& cluster, const std::string& what) {
  return Error(ErrorCode::kMalformed,
               absl::StrCat("cluster of ", cluster.model, ", layout ", cluster.layout, ": ", what));
}

// So that the first rank behind the last domain has a number.
constexpr int32_t kMostRanks = int32_t{1} << 29;

absl::Status CheckSide(const Cluster& cluster, const char* name, const SideShape& side) {
  if (side.ranks < 1 || side.ranks_per_host < 1 || side.ranks_per_domain < 1) {
    return Malformed(cluster, absl::StrCat("the ", name, " has ", side.ranks, " ranks, ", side.ranks_per_host,
                                           " per host, ", side.ranks_per_domain, " per domain; each must be above 0"));
  }
  if (std::max({side.ranks, side.ranks_per_host, side.ranks_per_domain}) > kMostRanks) {
    return Malformed(cluster,
                     absl::StrCat("the ", name, " has ", side.ranks, " ranks, ", side.ranks_per_host, " per host, ",
                                  side.ranks_per_domain, " per domain; each must be at most ", kMostRanks));
  }
  return absl::OkStatus();
}

// Shards that the buffers of a side name, at most.
int64_t ShardsNamed(const std::vector<Buffer>& buffers, bool* negative) {
  int64_t most = 0;
  for (const Buffer& b : buffers) {
    most = std::max(most, b.rank + 1);
    *negative = *negative || b.rank < 0;
  }
  return most;
}

absl::Status CheckGroups(const Cluster& cluster, const ClusterUnit& unit, const char* name, const SideShape& side,
                         const std::vector<Buffer>& buffers, const std::vector<RankGroup>& groups) {
  bool negative = false;
  const int64_t named = ShardsNamed(buffers, &negative);
  std::vector<int32_t> group_of(side.ranks, -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string where = absl::StrCat("unit \"", unit.unit.name, "\", ", name, " group ", g);
    const RankGroup& group = groups[g];
    if (negative || group.shards.empty() || named > static_cast<int64_t>(group.shards.size()) ||
        group.shards.size() != groups[0].shards.size()) {
      return Malformed(cluster, absl::StrCat(where, " has ", group.shards.size(), " shards, the manifest names ", named,
                                             " and group 0 has ", groups[0].shards.size()));
    }
    const std::vector<int32_t>& before = group.experts_before;
    if ((!before.empty() && before.size() != group.shards.size()) ||
        std::any_of(before.begin(), before.end(), [](int32_t experts) { return experts < 0; })) {
      return Malformed(cluster, absl::StrCat(where, ": experts_before must name a number of experts for each of ",
                                             group.shards.size(), " shards, and has ", before.size()));
    }
    for (size_t s = 0; s < group.shards.size(); ++s) {
      if (group.shards[s].empty()) return Malformed(cluster, absl::StrCat(where, ": nobody holds shard ", s));
      int32_t last = -1;
      for (int32_t rank : group.shards[s]) {
        if (rank <= last || rank >= side.ranks) {
          return Malformed(cluster, absl::StrCat(where, ", shard ", s, ": rank ", rank, " after ", last, ", of ",
                                                 side.ranks, " ranks"));
        }
        if (group_of[rank] == static_cast<int32_t>(g)) {
          return Malformed(cluster, absl::StrCat(where, ": rank ", rank, " is in two shards, one of them ", s));
        }
        group_of[rank] = static_cast<int32_t>(g);
        last = rank;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSides(const Cluster& cluster) {
  HR_RETURN_IF_ERROR(CheckSide(cluster, "source", cluster.source));
  return CheckSide(cluster, "destination", cluster.destination);
}

absl::Status CheckCluster(const Cluster& cluster) {
  HR_RETURN_IF_ERROR(CheckSides(cluster));
  if (cluster.source_stage.size() != static_cast<size_t>(cluster.source.ranks) ||
      std::any_of(cluster.source_stage.begin(), cluster.source_stage.end(), [](int32_t s) { return s < 0; })) {
    return Malformed(cluster, absl::StrCat("source_stage must name a stage for each of ", cluster.source.ranks,
                                           " ranks, and has ", cluster.source_stage.size()));
  }
  int32_t last_border = 0;
  for (int32_t border : cluster.engine_borders) {
    if (border <= last_border || border >= cluster.destination.ranks) {
      return Malformed(cluster, absl::StrCat("engine border ", border, " after ", last_border, ", of ",
                                             cluster.destination.ranks, " ranks"));
    }
    last_border = border;
  }
  for (const ClusterUnit& unit : cluster.units) {
    HR_RETURN_IF_ERROR(CheckGroups(cluster, unit, "source", cluster.source, unit.manifest.source, unit.source_groups));
    HR_RETURN_IF_ERROR(CheckGroups(cluster, unit, "destination", cluster.destination, unit.manifest.destination,
                                   unit.destination_groups));
    for (size_t i = 0; i < unit.instances.size(); ++i) {
      const UnitInstance& instance = unit.instances[i];
      auto lacks = [](int32_t group, const std::vector<RankGroup>& groups) {
        return group < 0 || group >= static_cast<int32_t>(groups.size());
      };
      if (lacks(instance.source_group, unit.source_groups) ||
          lacks(instance.destination_group, unit.destination_groups) || instance.source_expert < 0 ||
          instance.destination_expert < 0) {
        return Malformed(cluster,
                         absl::StrCat("unit \"", unit.unit.name, "\", instance ", i, " (layer ", instance.layer,
                                      ", expert ", instance.expert, ") names groups ", instance.source_group, " and ",
                                      instance.destination_group, ", places ", instance.source_expert, " and ",
                                      instance.destination_expert, ", which do not exist"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace headrace
