#include "planner/cluster/cluster_traffic.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/cluster/item_runs.h"

namespace headrace {
namespace {

struct Bundle {
  int32_t consumers = 0;
  ItemStripe first;
  Index bytes = 0;
  Index copies = 0;
};

Index PartsOf(const ClusterPlan& plan, const ItemRun& run) {
  const UnitPlan& unit = plan.unit_plan(run.unit);
  if (run.cell >= 0) return unit.Parts(run.cell, run.first.source);
  Index parts = 0;
  for (int cell : unit.classes()[run.cell_class].cells) parts += unit.Parts(cell, run.first.source);
  return parts * run.instances;
}

std::vector<Bundle> MakeBundles(const ClusterPlan& plan, Index piece_bytes) {
  std::vector<Bundle> bundles;
  using Key = std::tuple<int32_t, int32_t, int32_t, Index>;  // sender, consumers, door, piece
  absl::flat_hash_map<Key, size_t> known;
  ForEachItemRun(plan, piece_bytes, [&](const ItemRun& run) {
    const Index pieces = (run.first.way_bytes + piece_bytes - 1) / piece_bytes;
    const auto piece = static_cast<Index>(static_cast<__int128>(run.first.order) * pieces / kOrderEnd);
    const Key key{run.first.sender, run.consumers, run.first.door, piece};
    const auto [it, fresh] = known.try_emplace(key, bundles.size());
    if (fresh) bundles.push_back({run.consumers, run.first, 0, 0});
    Bundle& bundle = bundles[it->second];
    bundle.first.order = std::min(bundle.first.order, run.first.order);
    bundle.bytes += run.bytes;
    bundle.copies += PartsOf(plan, run);
  });
  std::sort(bundles.begin(), bundles.end(), [](const Bundle& a, const Bundle& b) {
    return std::tie(a.first.order, a.first.sender, a.consumers, a.first.door) <
           std::tie(b.first.order, b.first.sender, b.consumers, b.first.door);
  });
  return bundles;
}

void PlaceNodes(const SideShape& side, Traffic* traffic) {
  const int32_t host = traffic->host.empty() ? 0 : traffic->host.back() + 1;
  const int32_t domain = traffic->domain.empty() ? 0 : traffic->domain.back() + 1;
  for (int32_t r = 0; r < side.ranks; ++r) {
    traffic->host.push_back(host + r / side.ranks_per_host);
    traffic->domain.push_back(domain + r / side.ranks_per_domain);
    traffic->rail.push_back(RailOf(side, r));
  }
}

}  // namespace

Traffic PlanTraffic(const ClusterPlan& plan, Index piece_bytes) {
  Traffic traffic;
  traffic.source_ranks = plan.cluster().source.ranks;
  PlaceNodes(plan.cluster().source, &traffic);
  PlaceNodes(plan.cluster().destination, &traffic);
  std::vector<int32_t> hop_of(traffic.host.size());  // by node: the hop that brings the flow there
  std::vector<Leg> legs;
  for (const Bundle& bundle : MakeBundles(plan, piece_bytes)) {
    Flow& flow = traffic.flows.emplace_back();
    flow.bytes = bundle.bytes;
    flow.copies = bundle.copies;
    legs.clear();
    plan.AppendLegs(plan.consumers()[bundle.consumers], bundle.first, &legs);
    flow.hops.reserve(legs.size());
    for (const Leg& leg : legs) {
      hop_of[leg.to] = static_cast<int32_t>(flow.hops.size());
      flow.hops.push_back({leg.from, leg.to, leg.from < traffic.source_ranks ? -1 : hop_of[leg.from]});
    }
  }
  return traffic;
}

Traffic PlanTraffic(const ClusterPlan& plan) {
  constexpr Index kPieceBytes = Index{16} << 20;
  constexpr double kHops = 2e6;
  double hop_bytes = 0;
  for (const ConsumerSet& set : plan.consumers()) {
    hop_bytes += static_cast<double>(set.bytes()) * static_cast<double>(set.ranks().size());
  }
  return PlanTraffic(plan, std::max(kPieceBytes, static_cast<Index>(hop_bytes / kHops)));
}

}  // namespace headrace
