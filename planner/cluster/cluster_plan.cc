#include "planner/cluster/cluster_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "planner/cluster/check_cluster.h"
#include "planner/cluster/entry_shares.h"
#include "planner/cluster/sender_lines.h"
#include "planner/fair_shares.h"
#include "planner/status.h"
#include "planner/validate.h"

namespace headrace {
namespace {

constexpr Index kMostBytes = Index{1} << 61;

// Where a border that lies `border` bytes behind an item's beginning cuts it: at a multiple of `unit`, the nearest one,
// so that no stripe is shorter than that.
Index CutAt(Index border, Index bytes, Index unit) {
  if (border <= 0) return 0;
  if (border >= bytes) return bytes;
  const Index whole = bytes / unit - 1;  // multiples of which the rest is at least one unit
  const Index below = std::min(border / unit, std::max<Index>(whole, 0)) * unit;
  const Index above = below / unit < whole ? below + unit : bytes;
  return border - below < above - border ? below : above;
}

std::vector<int32_t> RanksOf(const RankGroup& group, const std::vector<int>& shards) {
  std::vector<int32_t> ranks;
  for (int s : shards) ranks.insert(ranks.end(), group.shards[s].begin(), group.shards[s].end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

UnitIndex IndexInstances(const ClusterUnit& unit) {
  UnitIndex index;
  const size_t count = unit.instances.size();
  index.instances.resize(count);
  std::iota(index.instances.begin(), index.instances.end(), 0);
  auto groups_of = [&](int32_t i) {
    return std::pair(unit.instances[i].destination_group, unit.instances[i].source_group);
  };
  std::stable_sort(index.instances.begin(), index.instances.end(),
                   [&](int32_t a, int32_t b) { return groups_of(a) < groups_of(b); });
  index.group_of.resize(count);
  index.place_of.resize(count);
  index.groups_of_source.resize(unit.source_groups.size());
  index.groups_of_destination.resize(unit.destination_groups.size());
  for (size_t n = 0; n < count; ++n) {
    const int32_t i = index.instances[n];
    const auto [destination, source] = groups_of(i);
    if (n == 0 || groups_of(index.instances[n - 1]) != groups_of(i)) {
      const auto number = static_cast<int32_t>(index.groups.size());
      index.groups.push_back({source, destination, static_cast<int32_t>(n), 0, 0});
      index.groups_of_source[source].push_back(number);
      index.groups_of_destination[destination].push_back(number);
    }
    index.group_of[i] = static_cast<int32_t>(index.groups.size()) - 1;
    index.place_of[i] = index.groups.back().count++;
  }
  return index;
}

void AddMemberships(const std::vector<RankGroup>& groups, int32_t unit, std::vector<std::vector<Membership>>* out) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t s = 0; s < groups[g].shards.size(); ++s) {
      for (int32_t rank : groups[g].shards[s]) {
        (*out)[rank].push_back({unit, static_cast<int32_t>(g), static_cast<int32_t>(s)});
      }
    }
  }
}

size_t SectionAt(const ConsumerSet& set, Index at) {
  return std::upper_bound(set.borders().begin(), set.borders().end(), at) - set.borders().begin();
}

}  // namespace

class ClusterPlanner {
 public:
  ClusterPlanner(const Cluster& cluster, Policy policy) {
    plan_.cluster_ = &cluster;
    plan_.policy_ = policy;
  }

  absl::StatusOr<ClusterPlan> Run() && {
    const Cluster& cluster = *plan_.cluster_;
    HR_RETURN_IF_ERROR(CheckCluster(cluster));
    plan_.sent_.assign(cluster.source.ranks, 0);
    plan_.source_memberships_.resize(cluster.source.ranks);
    plan_.destination_memberships_.resize(cluster.destination.ranks);
    for (size_t u = 0; u < cluster.units.size(); ++u) {
      const ClusterUnit& unit = cluster.units[u];
      auto in_unit = [&](const absl::Status& status) {
        return WithMessage(status, absl::StrCat("unit \"", unit.unit.name, "\": ", status.message()));
      };
      if (absl::Status valid = Validate(unit.manifest); !valid.ok()) return in_unit(valid);
      absl::StatusOr<UnitPlan> unit_plan = UnitPlan::Make(unit, plan_.policy_);
      if (!unit_plan.ok()) return in_unit(unit_plan.status());
      plan_.unit_plans_.push_back(*std::move(unit_plan));
      plan_.indices_.push_back(IndexInstances(unit));
      AddMemberships(unit.source_groups, static_cast<int32_t>(u), &plan_.source_memberships_);
      AddMemberships(unit.destination_groups, static_cast<int32_t>(u), &plan_.destination_memberships_);
      HR_RETURN_IF_ERROR(AddAggregates(static_cast<int>(u)));
    }
    ShareEntries(cluster.destination, &plan_.consumers_);
    Share();
    PlaceEntries();
    FollowWays();
    return std::move(plan_);
  }

 private:
  absl::Status AddAggregates(int u) {
    const ClusterUnit& unit = plan_.cluster_->units[u];
    const UnitPlan& unit_plan = plan_.unit_plans_[u];
    std::map<std::pair<int32_t, int>, int32_t> loads, consumers;  // by group and set of shards
    for (InstanceGroup& group : plan_.indices_[u].groups) {
      group.first_aggregate = static_cast<int32_t>(plan_.aggregates_.size());
      for (const CellClass& c : unit_plan.classes()) {
        const auto [load, new_load] = loads.try_emplace({group.source_group, c.source_set}, 0);
        if (new_load) {
          load->second = LoadOf(RanksOf(unit.source_groups[group.source_group], unit_plan.source_sets()[c.source_set]));
        }
        const auto [set, new_set] = consumers.try_emplace({group.destination_group, c.destination_set}, 0);
        if (new_set) {
          set->second = ConsumersOf(RanksOf(unit.destination_groups[group.destination_group],
                                            unit_plan.destination_sets()[c.destination_set]));
        }
        Index bytes;
        if (__builtin_mul_overflow(c.bytes, static_cast<Index>(group.count), &bytes) || bytes >= kMostBytes ||
            (total_ += bytes) >= kMostBytes) {
          return Error(ErrorCode::kOutOfBounds,
                       absl::StrCat("unit \"", unit.unit.name, "\": the cluster's tensors have 2^61 bytes or more"));
        }
        Load& line = plan_.loads_[load->second];
        plan_.aggregates_.push_back(
            {load->second, set->second, bytes, line.bytes, plan_.consumers_[set->second].AddBytes(bytes)});
        line.bytes += bytes;
      }
    }
    return absl::OkStatus();
  }

  int32_t LoadOf(std::vector<int32_t> ranks) {
    const auto [it, fresh] = loads_.try_emplace(ranks, static_cast<int32_t>(plan_.loads_.size()));
    if (fresh) plan_.loads_.push_back({std::move(ranks), 0, {}, {}});
    return it->second;
  }

  int32_t ConsumersOf(std::vector<int32_t> ranks) {
    const auto [it, fresh] = consumers_.try_emplace(ranks, static_cast<int32_t>(plan_.consumers_.size()));
    if (fresh) plan_.consumers_.emplace_back(std::move(ranks), plan_.cluster_->destination);
    return it->second;
  }

  // How much of each load each of its candidates sends, and which part of it.
  void Share() {
    std::vector<SharedLoad> loads;
    for (const Load& load : plan_.loads_) loads.push_back({load.bytes, load.candidates});
    const std::vector<std::vector<Index>> shares = FairShares(loads, plan_.cluster_->source.ranks);
    std::vector<RailRoom> rooms;
    for (const ConsumerSet& set : plan_.consumers_) rooms.emplace_back(set, plan_.cluster_->destination);
    std::vector<std::vector<LinePart>> parts(plan_.loads_.size());
    for (const Aggregate& a : plan_.aggregates_) parts[a.load].push_back({a.load_begin, a.bytes, &rooms[a.consumers]});
    std::vector<std::vector<int32_t>> rails;       // by load, candidate
    std::vector<std::pair<size_t, size_t>> order;  // those with the least choice first
    for (size_t l = 0; l < plan_.loads_.size(); ++l) {
      rails.emplace_back();
      for (const int32_t rank : plan_.loads_[l].candidates) {
        rails[l].push_back(RailOf(plan_.cluster_->source, rank));
      }
      order.emplace_back(std::set<int32_t>(rails[l].begin(), rails[l].end()).size(), l);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [choice, l] : order) {
      Load& load = plan_.loads_[l];
      for (size_t c = 0; c < load.candidates.size(); ++c) plan_.sent_[load.candidates[c]] += shares[l][c];
      for (const SenderStretch& stretch : PlaceSenders(parts[l], shares[l], rails[l])) {
        load.begins.push_back(stretch.begin);
        load.owners.push_back(stretch.candidate);
      }
      load.begins.push_back(load.bytes);
    }
  }

  void PlaceEntries() {
    std::vector<std::vector<RailRun>> senders(plan_.consumers_.size());
    for (const Aggregate& a : plan_.aggregates_) {
      const Load& load = plan_.loads_[a.load];
      std::vector<RailRun>& runs = senders[a.consumers];
      for (size_t s = load.StretchAt(a.load_begin); s < load.owners.size(); ++s) {
        const Index at = std::max<Index>(load.begins[s] - a.load_begin, 0);
        if (at >= a.bytes) break;
        const int32_t rail = RailOf(plan_.cluster_->source, load.candidates[load.owners[s]]);
        if (runs.empty() || runs.back().rail != rail) runs.push_back({a.consumers_begin + at, rail});
      }
    }
    for (size_t c = 0; c < senders.size(); ++c) plan_.consumers_[c].PlaceEntries(senders[c]);
  }

  // Which way each part of each aggregate goes.
  void FollowWays() {
    absl::flat_hash_map<std::tuple<int32_t, int32_t, int32_t>, int32_t> ways;  // by sender, consumers, door
    for (const Aggregate& a : plan_.aggregates_) {
      const Load& load = plan_.loads_[a.load];
      const ConsumerSet& set = plan_.consumers_[a.consumers];
      std::vector<WayRun>& runs = plan_.way_runs_.emplace_back();
      for (Index at = 0; at < a.bytes;) {
        const size_t stretch = load.StretchAt(a.load_begin + at);
        const size_t section = SectionAt(set, a.consumers_begin + at);
        Index end = std::min(a.bytes, load.begins[stretch + 1] - a.load_begin);
        if (section < set.borders().size()) end = std::min(end, set.borders()[section] - a.consumers_begin);
        const auto [way, fresh] =
            ways.try_emplace({load.candidates[load.owners[stretch]], a.consumers, set.doors()[section]},
                             static_cast<int32_t>(plan_.way_bytes_.size()));
        if (fresh) plan_.way_bytes_.push_back(0);
        Index& bytes = plan_.way_bytes_[way->second];
        runs.push_back({static_cast<int32_t>(stretch), static_cast<int32_t>(section), at, bytes, way->second});
        bytes += end - at;
        at = end;
      }
    }
  }

  ClusterPlan plan_;
  absl::flat_hash_map<std::vector<int32_t>, int32_t> loads_, consumers_;  // by ranks
  Index total_ = 0;
};

absl::StatusOr<ClusterPlan> PlanCluster(const Cluster& cluster, Policy policy) {
  return ClusterPlanner(cluster, policy).Run();
}

int32_t ClusterPlan::SourceOf(int unit, const InstanceGroup& group, int cell, int32_t sender) const {
  const std::vector<ShardBox>& sources = unit_plans_[unit].cells()[cell].sources;
  const RankGroup& ranks = cluster_->units[unit].source_groups[group.source_group];
  const auto it = std::find_if(sources.begin(), sources.end(), [&](const ShardBox& s) {
    return std::binary_search(ranks.shards[s.shard].begin(), ranks.shards[s.shard].end(), sender);
  });
  return static_cast<int32_t>(it - sources.begin());
}

void ClusterPlan::AppendStripes(int unit, const InstanceGroup& group, int32_t place, int c,
                                std::vector<ItemStripe>* out) const {
  const UnitCell& cell = unit_plans_[unit].cells()[c];
  const Aggregate& a = aggregate(group, cell.cell_class);
  const Index before = unit_plans_[unit].classes()[cell.cell_class].bytes * place + cell.class_offset;
  const Load& load = loads_[a.load];
  const ConsumerSet& set = consumers_[a.consumers];
  const Index in_load = a.load_begin + before, in_set = a.consumers_begin + before;
  auto cut_of = [&](Index border, Index begin) { return CutAt(border - begin, cell.bytes, cell.stripe_unit); };
  const size_t stretches = load.owners.size();
  size_t stretch = load.StretchAt(in_load), section = SectionAt(set, in_set);
  for (Index offset = 0; offset < cell.bytes;) {
    while (stretch + 1 < stretches && cut_of(load.begins[stretch + 1], in_load) <= offset) ++stretch;
    while (section < set.borders().size() && cut_of(set.borders()[section], in_set) <= offset) ++section;
    Index end = cell.bytes;
    if (stretch + 1 < stretches) end = std::min(end, cut_of(load.begins[stretch + 1], in_load));
    if (section < set.borders().size()) end = std::min(end, cut_of(set.borders()[section], in_set));
    const int32_t sender = load.candidates[load.owners[stretch]];
    // A stripe that was cut beside a line's border may begin outside of its run, or have none.
    const std::vector<WayRun>& runs = way_runs_[group.first_aggregate + cell.cell_class];
    const auto behind =
        std::upper_bound(runs.begin(), runs.end(), std::pair(stretch, section), [](const auto& key, const WayRun& run) {
          return key < std::pair(static_cast<size_t>(run.stretch), static_cast<size_t>(run.section));
        });
    const WayRun& run = behind == runs.begin() ? *behind : *std::prev(behind);
    const Index way_bytes = way_bytes_[run.way];
    const Index middle = run.before + std::max<Index>(before + offset - run.begin, 0) + (end - offset) / 2;
    const Index order = static_cast<Index>(static_cast<__int128>(std::min(middle, way_bytes)) * kOrderEnd / way_bytes);
    out->push_back({offset, end - offset, sender, SourceOf(unit, group, c, sender), set.doors()[section],
                    FirstDomain(sender, a.consumers), way_bytes, order});
    offset = end;
  }
}

CellAnswer ClusterPlan::DescribeCell(int unit, int c) const {
  const UnitPlan& plan = unit_plans_[unit];
  const UnitCell& cell = plan.cells()[c];
  const CellClass& cell_class = plan.classes()[cell.cell_class];
  return {cell.bytes, cell.tensor, plan.source_sets()[cell_class.source_set],
          plan.destination_sets()[cell_class.destination_set]};
}

void ClusterPlan::AppendCopies(int unit, int c, int source_shard, Index offset, Index bytes,
                               std::vector<Copy>* out) const {
  const UnitCell& cell = unit_plans_[unit].cells()[c];
  for (size_t s = 0; s < cell.sources.size(); ++s) {
    if (cell.sources[s].shard != source_shard) continue;
    unit_plans_[unit].AppendCopies(c, static_cast<int>(s), offset, bytes, 0, cell.wanted_by.size(), out);
  }
}

void ClusterPlan::Route(const ItemId& item, std::vector<StripeRoute>* out) const {
  const UnitIndex& index = indices_[item.unit];
  const InstanceGroup& group = index.groups[index.group_of[item.instance]];
  const UnitCell& cell = unit_plans_[item.unit].cells()[item.cell];
  const ConsumerSet& set = consumers_[aggregate(group, cell.cell_class).consumers];
  std::vector<ItemStripe> stripes;
  AppendStripes(item.unit, group, index.place_of[item.instance], item.cell, &stripes);
  out->resize(stripes.size());
  for (size_t s = 0; s < stripes.size(); ++s) {
    const ItemStripe& stripe = stripes[s];
    StripeRoute& route = (*out)[s];
    route.offset = stripe.offset;
    route.bytes = stripe.bytes;
    route.sender = stripe.sender;
    route.source_shard = cell.sources[stripe.source].shard;
    route.order = stripe.order;
    route.legs.clear();
    AppendLegs(set, stripe, &route.legs);
  }
}

void ClusterPlan::AppendLegs(const ConsumerSet& set, const ItemStripe& stripe, std::vector<Leg>* out) const {
  const int32_t first_node = cluster_->source.ranks;
  const size_t domains = set.domains().size();
  int32_t from = stripe.sender;
  out->reserve(out->size() + set.ranks().size());
  auto domain = static_cast<size_t>(stripe.first_domain);
  for (size_t n = 0; n < domains; ++n, domain = domain + 1 == domains ? 0 : domain + 1) {
    const ConsumerDomain& d = set.domains()[domain];
    const int32_t entry = set.Entry(static_cast<int>(domain), stripe.door);
    out->push_back({from, first_node + entry});
    from = first_node + entry;
    const auto begin = set.ranks().begin() + d.first;
    auto at = std::lower_bound(begin, begin + d.size, entry);
    for (int32_t step = 1; step < d.size; ++step) {
      const int32_t rank = *at;
      if (++at == begin + d.size) at = begin;
      out->push_back({first_node + rank, first_node + *at});
    }
  }
}

}  // namespace headrace
