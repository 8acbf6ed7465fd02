#include "tests/layouts/element_demand.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <tuple>

#include "planner/layout/oracle.h"

namespace headrace {
namespace {

constexpr Index kElementBits = 40;

std::map<int64_t, Placement> ByRank(const std::vector<Placement>& placements) {
  std::map<int64_t, Placement> by_rank;
  for (const Placement& p : placements) by_rank[p.rank] = p;
  return by_rank;
}

}  // namespace

double ElementDemand::LeastBusiest() const {
  std::vector<double> inside(size_t{1} << source_ranks.size(), 0);
  for (const auto& [ranks, bytes] : by_candidates) inside[ranks] += static_cast<double>(bytes);
  // Each set's own, then that of all its subsets.
  for (size_t bit = 0; bit < source_ranks.size(); ++bit) {
    for (size_t set = 0; set < inside.size(); ++set) {
      if ((set >> bit & 1) != 0) inside[set] += inside[set ^ (size_t{1} << bit)];
    }
  }
  double worst = 0;
  for (size_t set = 1; set < inside.size(); ++set) worst = std::max(worst, inside[set] / __builtin_popcountll(set));
  return worst;
}

ElementDemand CountElements(const Manifest& manifest) {
  ElementDemand demand;
  std::set<int64_t> ranks;
  for (const Buffer& b : manifest.source) ranks.insert(b.rank);
  demand.source_ranks.assign(ranks.begin(), ranks.end());
  if (ranks.size() > 16) {
    std::cerr << ranks.size() << " source ranks: too many to count sets of them\n";
    std::abort();
  }
  std::map<int64_t, Placement> sources = ByRank(manifest.topology.source);
  std::map<int64_t, Placement> destinations = ByRank(manifest.topology.destination);

  std::vector<std::vector<uint32_t>> offered;  // by tensor and element: the ranks
  for (const TensorSpec& t : manifest.tensors) offered.emplace_back(oracle::SizeOf(t.shape), 0);
  std::map<std::string, uint32_t> on_host;
  for (size_t i = 0; i < demand.source_ranks.size(); ++i) {
    on_host[sources[demand.source_ranks[i]].host] |= uint32_t{1} << i;
  }
  for (const Buffer& b : manifest.source) {
    const auto bit = static_cast<size_t>(
        std::lower_bound(demand.source_ranks.begin(), demand.source_ranks.end(), b.rank) - demand.source_ranks.begin());
    for (Index value : oracle::Expand(b.shape, b.pieces, manifest.tensors).values) {
      if (value >= 0) offered[value >> kElementBits][value & ((Index{1} << kElementBits) - 1)] |= uint32_t{1} << bit;
    }
  }

  demand.needed_of_tensor.resize(manifest.tensors.size());
  demand.distinct_of_tensor.resize(manifest.tensors.size());
  std::set<std::tuple<std::string, std::string, Index>> entered;  // engine, host, element
  std::set<std::pair<std::string, Index>> distinct;
  for (const Buffer& b : manifest.destination) {
    if (b.alias_of) continue;
    const Placement& place = destinations[b.rank];
    for (Index value : oracle::Expand(b.shape, b.pieces, manifest.tensors).values) {
      if (value < 0) continue;
      const Index t = value >> kElementBits;
      const Index bytes = DtypeBits(manifest.tensors[t].dtype) / 8;
      const uint32_t from = offered[t][value & ((Index{1} << kElementBits) - 1)];
      demand.needed_bytes += bytes;
      demand.needed_of_tensor[t] += bytes;
      if (distinct.insert({place.engine, value}).second) demand.distinct_of_tensor[t] += bytes;
      if (const uint32_t here = from & on_host[place.host]; here != 0) {
        demand.by_candidates[here] += bytes;
      } else if (entered.insert({place.engine, place.host, value}).second) {
        demand.by_candidates[from] += bytes;
        demand.host_wire_bytes += bytes;
      }
    }
  }
  return demand;
}

}  // namespace headrace
