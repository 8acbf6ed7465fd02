#include "planner/cost/bounds.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/cluster/check_cluster.h"
#include "planner/cost/shard_classes.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Ranks = std::vector<int32_t>;  // ascending

// Bytes over a rate that may be without limit.
double Over(double bytes, double bytes_per_second) { return bytes_per_second > 0 ? bytes / bytes_per_second : 0; }

void Raise(Bound* bound, double seconds, const std::string& of) {
  if (seconds > bound->seconds) *bound = {seconds, of};
}

std::string Name(const std::string& side, const Ranks& ranks) {
  if (ranks.size() == 1) return absl::StrCat(side, " rank ", ranks.front());
  const bool run = ranks.back() - ranks.front() + 1 == static_cast<int32_t>(ranks.size());
  return absl::StrCat(side, " ranks ", ranks.front(), run ? ".." : ", .., ", ranks.back(), " (", ranks.size(), ")");
}

double PerByte(const CopyCost& cost) { return cost.bytes_per_second > 0 ? 1 / cost.bytes_per_second : 0; }

// The least that a worker spends on a byte, whichever wire it takes.
double PackSeconds(const CostModel& model) {
  const auto seconds = [&model](const WireCost& wire) {
    return wire.mapped ? 0 : PerByte(model.pack) + wire.sender_ns_per_byte / 1e9;
  };
  return std::min(seconds(model.nic), seconds(model.nvlink));
}

double LandSeconds(const CostModel& model) {
  const auto seconds = [&model](const WireCost& wire) {
    return wire.receiver_ns_per_byte / 1e9 + PerByte(wire.mapped ? model.direct : model.unpack);
  };
  return std::min(seconds(model.nic), seconds(model.nvlink));
}

// What can leave (or enter) the set in a second; 0: without limit.
double Capacity(const Ranks& ranks, int32_t side_ranks, int32_t domain_ranks, const CostModel& model) {
  if (model.nic.bytes_per_second == 0) return 0;
  double nvlink_ports = 0;
  for (size_t i = 0; i < ranks.size();) {
    const int32_t domain = ranks[i] / domain_ranks;
    size_t end = i;
    while (end < ranks.size() && ranks[end] / domain_ranks == domain) ++end;
    const int32_t size = std::min((domain + 1) * domain_ranks, side_ranks) - domain * domain_ranks;
    if (static_cast<int32_t>(end - i) < size) nvlink_ports += static_cast<double>(end - i);
    i = end;
  }
  if (nvlink_ports > 0 && model.nvlink.bytes_per_second == 0) return 0;
  return static_cast<double>(ranks.size()) * model.nic.bytes_per_second + nvlink_ports * model.nvlink.bytes_per_second;
}

Ranks WholeDomains(const Ranks& ranks, int32_t side_ranks, int32_t domain_ranks) {
  Ranks all;
  for (int32_t rank : ranks) {
    const int32_t first = rank / domain_ranks * domain_ranks;
    if (!all.empty() && all.back() >= first) continue;
    for (int32_t r = first; r < std::min(first + domain_ranks, side_ranks); ++r) all.push_back(r);
  }
  return all;
}

// Bytes that are wanted, by who holds them and by who wants them.
struct Demand {
  std::map<Ranks, double> held_by;
  std::vector<double> rank_wants;
  std::vector<double> domain_wants;
  double distinct = 0;
};

absl::StatusOr<Demand> FindDemand(const Cluster& cluster) {
  Demand demand;
  const int32_t domain_ranks = cluster.destination.ranks_per_domain;
  demand.rank_wants.resize(cluster.destination.ranks);
  demand.domain_wants.resize((cluster.destination.ranks + domain_ranks - 1) / domain_ranks);
  for (const ClusterUnit& unit : cluster.units) {
    HR_ASSIGN_OR_RETURN(const std::vector<ShardClass> classes, ShardClasses(unit.manifest));
    std::vector<Index> from(unit.source_groups.size()), to(unit.destination_groups.size());
    for (const UnitInstance& instance : unit.instances) {
      ++from[instance.source_group];
      ++to[instance.destination_group];
    }
    for (const ShardClass& shared : classes) {
      const double bytes = static_cast<double>(shared.bytes);
      for (size_t g = 0; g < from.size(); ++g) {
        if (from[g] == 0) continue;
        demand.held_by[RanksOfShards(unit.source_groups[g], shared.holders)] += bytes * static_cast<double>(from[g]);
        demand.distinct += bytes * static_cast<double>(from[g]);
      }
      for (size_t g = 0; g < to.size(); ++g) {
        if (to[g] == 0) continue;
        int32_t last = -1;
        for (int32_t rank : RanksOfShards(unit.destination_groups[g], shared.consumers)) {
          demand.rank_wants[rank] += bytes * static_cast<double>(to[g]);
          if (rank / domain_ranks != last)
            demand.domain_wants[rank / domain_ranks] += bytes * static_cast<double>(to[g]);
          last = rank / domain_ranks;
        }
      }
    }
  }
  return demand;
}

void FindLeaving(const Cluster& cluster, const CostModel& model, const Demand& demand, LowerBounds* bounds) {
  const SideShape& side = cluster.source;
  std::set<Ranks> sets;
  for (const auto& [ranks, bytes] : demand.held_by) sets.insert(ranks);
  std::map<int32_t, Ranks> stages;
  for (int32_t rank = 0; rank < side.ranks; ++rank) stages[cluster.source_stage[rank]].push_back(rank);
  Ranks all(side.ranks);
  std::iota(all.begin(), all.end(), 0);
  if (!all.empty()) sets.insert(all);
  for (const auto& [stage, ranks] : stages) sets.insert(ranks);
  std::set<Ranks> whole;
  for (const Ranks& ranks : sets) whole.insert(WholeDomains(ranks, side.ranks, side.ranks_per_domain));
  sets.insert(whole.begin(), whole.end());

  std::vector<char> inside(side.ranks);
  for (const Ranks& set : sets) {
    for (int32_t rank : set) inside[rank] = 1;
    double bytes = 0;
    for (const auto& [holders, held] : demand.held_by) {
      if (std::all_of(holders.begin(), holders.end(), [&inside](int32_t rank) { return inside[rank] != 0; })) {
        bytes += held;
      }
    }
    for (int32_t rank : set) inside[rank] = 0;
    const double size = static_cast<double>(set.size());
    const std::string name = Name("trainer", set);
    Raise(&bounds->leaving, Over(bytes, Capacity(set, side.ranks, side.ranks_per_domain, model)), name);
    Raise(&bounds->leaving_directly, Over(bytes, size * model.nic.bytes_per_second), name);
    Raise(&bounds->copying, bytes * PackSeconds(model) / size, name);
  }
}

void FindEntering(const Cluster& cluster, const CostModel& model, const Demand& demand, LowerBounds* bounds) {
  const SideShape& side = cluster.destination;
  for (int32_t rank = 0; rank < side.ranks; ++rank) {
    Raise(&bounds->entering, Over(demand.rank_wants[rank], Capacity({rank}, side.ranks, side.ranks_per_domain, model)),
          absl::StrCat("engine rank ", rank));
    Raise(&bounds->copying, demand.rank_wants[rank] * LandSeconds(model), absl::StrCat("engine rank ", rank));
  }
  for (size_t d = 0; d < demand.domain_wants.size(); ++d) {
    const Ranks ranks =
        WholeDomains({static_cast<int32_t>(d) * side.ranks_per_domain}, side.ranks, side.ranks_per_domain);
    Raise(&bounds->entering, Over(demand.domain_wants[d], Capacity(ranks, side.ranks, side.ranks_per_domain, model)),
          absl::StrCat("engine domain ", d));
  }
  if (model.cores == 0) return;
  for (int32_t first = 0; first < side.ranks; first += side.ranks_per_host) {
    double bytes = 0;
    for (int32_t rank = first; rank < std::min(first + side.ranks_per_host, side.ranks); ++rank) {
      bytes += demand.rank_wants[rank];
    }
    const std::string name = absl::StrCat("engine host ", first / side.ranks_per_host);
    const double land = LandSeconds(model);
    Raise(&bounds->copying, bytes * land / static_cast<double>(model.cores), name);
    if (land > 0) Raise(&bounds->copying, Over(bytes, model.memory_bytes_per_second), name);
  }
}

}  // namespace

absl::StatusOr<LowerBounds> FindLowerBounds(const Cluster& cluster, const CostModel& model) {
  HR_RETURN_IF_ERROR(CheckSides(cluster));
  HR_ASSIGN_OR_RETURN(const Demand demand, FindDemand(cluster));
  LowerBounds bounds;
  FindLeaving(cluster, model, demand, &bounds);
  FindEntering(cluster, model, demand, &bounds);
  bounds.seconds = std::max({bounds.leaving.seconds, bounds.entering.seconds, bounds.copying.seconds});
  bounds.distinct_bytes = static_cast<Index>(demand.distinct);
  bounds.needed_bytes = static_cast<Index>(std::accumulate(demand.rank_wants.begin(), demand.rank_wants.end(), 0.0));
  return bounds;
}

}  // namespace headrace
