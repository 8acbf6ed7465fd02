#include "planner/route.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/broadcast_policy.h"
#include "planner/shared_cells.h"

namespace headrace {
namespace {

constexpr size_t kMaxNamedHosts = 4;

Route Broadcast(const Manifest& manifest, const Hosts& hosts, const TensorCells& cut, absl::string_view kind) {
  Route route;
  route.decision = {TransferKind::kBroadcast, InstallKind::kDirect,
                    absl::StrCat("the policy hybrid broadcasts weights of this name: ", kind)};
  std::map<absl::string_view, std::vector<int>> engines;
  for (size_t c = 0; c < cut.cells.size(); ++c) {
    const int64_t rank = manifest.destination[cut.destination[cut.cells[c].destination_box].buffer].rank;
    engines[hosts.EngineOfDestination(rank)].push_back(static_cast<int>(c));
  }
  for (const auto& [engine, cells] : engines) {
    for (SharedCell& cell : ShareCells(cut, cells)) {
      route.shipments.push_back({std::move(cell.box), std::move(cell.destinations), std::move(cell.sources), true});
    }
  }
  return route;
}

// "plain copies; 3 of 5 cells are relayed on hosts a, b and 2 more"
std::string RelayReason(size_t cells, const std::map<absl::string_view, size_t>& relayed) {
  size_t count = 0, named = 0;
  std::string hosts;
  for (const auto& [host, n] : relayed) {
    count += n;
    if (++named <= kMaxNamedHosts) absl::StrAppend(&hosts, named > 1 ? ", " : "", host.empty() ? "(unnamed)" : host);
  }
  if (named > kMaxNamedHosts) absl::StrAppend(&hosts, " and ", named - kMaxNamedHosts, " more");
  return absl::StrCat("plain copies; ", count, " of ", cells, " cells are relayed on host", named > 1 ? "s " : " ",
                      hosts);
}

}  // namespace

Hosts::Hosts(const Manifest& manifest) {
  for (const Placement& p : manifest.topology.source) source_.emplace(p.rank, &p);
  for (const Placement& p : manifest.topology.destination) destination_.emplace(p.rank, &p);
  if (source_.empty() && destination_.empty()) return;
  absl::string_view first;
  bool any = false;
  auto see = [&](absl::string_view host) {
    if (!any) first = host;
    any = true;
    all_one_ = all_one_ && host == first;
  };
  for (const Buffer& b : manifest.source) see(OfSource(b.rank));
  for (const Buffer& b : manifest.destination) see(OfDestination(b.rank));
}

absl::string_view Hosts::HostIn(const Placements& placements, int64_t rank) {
  const auto it = placements.find(rank);
  return it == placements.end() ? absl::string_view() : absl::string_view(it->second->host);
}

absl::string_view Hosts::DomainOfDestination(int64_t rank) const {
  const auto it = destination_.find(rank);
  return it == destination_.end() ? absl::string_view() : absl::string_view(it->second->domain);
}

absl::string_view Hosts::EngineOfDestination(int64_t rank) const {
  const auto it = destination_.find(rank);
  return it == destination_.end() ? absl::string_view() : absl::string_view(it->second->engine);
}

Route RouteTensor(const Manifest& manifest, const Hosts& hosts, Policy policy, const TensorSpec& tensor,
                  TensorCells* cut) {
  if (policy == Policy::kHybrid) {
    if (const std::string kind = BroadcastKind(tensor.name); !kind.empty())
      return Broadcast(manifest, hosts, *cut, kind);
  }
  Route route;
  route.decision = {TransferKind::kReshard, InstallKind::kDirect, "every destination element is a plain copy"};
  route.shipments.reserve(cut->cells.size());
  // Cells that no source on the destination's host offers, by that host and engine.
  std::map<std::pair<absl::string_view, absl::string_view>, std::vector<int>> remote;
  for (size_t c = 0; c < cut->cells.size(); ++c) {
    Cell& cell = cut->cells[c];
    if (!hosts.AllOne()) {
      const int64_t rank = manifest.destination[cut->destination[cell.destination_box].buffer].rank;
      const absl::string_view host = hosts.OfDestination(rank);
      auto is_remote = [&](int s) { return hosts.OfSource(manifest.source[cut->source[s].buffer].rank) != host; };
      if (std::all_of(cell.sources.begin(), cell.sources.end(), is_remote)) {
        remote[{host, hosts.EngineOfDestination(rank)}].push_back(static_cast<int>(c));
        continue;
      }
      std::erase_if(cell.sources, is_remote);
    }
    route.shipments.push_back({std::move(cell.box), {cell.destination_box}, std::move(cell.sources), false});
  }
  std::map<absl::string_view, size_t> relayed;
  for (const auto& [place, cells] : remote) {
    for (SharedCell& cell : ShareCells(*cut, cells)) {
      const bool stream = cell.destinations.size() > 1;
      if (stream) ++relayed[place.first];
      route.shipments.push_back({std::move(cell.box), std::move(cell.destinations), std::move(cell.sources), stream});
    }
  }
  if (!relayed.empty()) route.decision.reason = RelayReason(route.shipments.size(), relayed);
  return route;
}

}  // namespace headrace
