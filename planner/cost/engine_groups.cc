// Groups of hops, which begin and end as a whole.

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "planner/cost/engine.h"

namespace headrace {

void Engine::FormGroups() {
  std::map<std::tuple<int32_t, int32_t, int32_t>, std::vector<int32_t>> groups;  // hops by pair and number
  int32_t h = 0;
  for (const Flow& flow : traffic_.flows) {
    for (const Hop& hop : flow.hops) {
      if (hop.group >= 0) groups[{std::min(hop.from, hop.to), std::max(hop.from, hop.to), hop.group}].push_back(h);
      ++h;
    }
  }
  std::pair<int32_t, int32_t> last = {-1, -1};
  for (auto& [key, hops] : groups) {
    const std::pair<int32_t, int32_t> nodes = {std::get<0>(key), std::get<1>(key)};
    const auto number = static_cast<int32_t>(groups_.size());
    if (nodes != last) pairs_.push_back({.first = number});
    last = nodes;
    ++pairs_.back().count;
    Group& group = groups_.emplace_back();
    group.pair = static_cast<int32_t>(pairs_.size()) - 1;
    for (const int32_t hop : hops) {
      hops_[hop].group = number;
      group.missing += hops_[hop].chunks - hops_[hop].ready;
      group.out += hops_[hop].chunks;
    }
    group.hops = std::move(hops);
  }
}

void Engine::LaunchGroups(int32_t p) {
  Pair& pair = pairs_[p];
  while (pair.launched < pair.count && pair.launched - pair.over < 2 &&
         groups_[pair.first + pair.launched].missing == 0) {
    const int32_t group = pair.first + pair.launched++;
    const Picoseconds launch = NanosecondsTime(static_cast<double>(model_.group_ns));
    CriticalPath path = path_;
    path.Add(Phase::kWaiting, launch);
    Schedule(now_ + launch, EventKind::kGroupBegins, group, path);
  }
}

void Engine::BeginGroup(int32_t g) {
  Group& group = groups_[g];
  group.open = true;
  for (const int32_t h : group.hops) Offer(h);
  for (const int32_t h : group.hops) {
    PumpWorker(hops_[h].from);
    PumpPort(hops_[h].from, hops_[h].nvlink);
  }
  if (group.out == 0) EndGroup(g);  // it had no bytes
}

void Engine::EndGroup(int32_t g) {
  for (const int32_t h : groups_[g].hops) {
    for (uint32_t chunk = 0; chunk < hops_[h].chunks; ++chunk) Received(h);
  }
  ++pairs_[groups_[g].pair].over;
  LaunchGroups(groups_[g].pair);
}

bool Engine::Stuck() const {
  return std::any_of(pairs_.begin(), pairs_.end(), [](const Pair& pair) { return pair.over < pair.count; });
}

}  // namespace headrace
