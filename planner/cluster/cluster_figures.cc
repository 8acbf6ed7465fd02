#include "planner/cluster/cluster_figures.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "planner/cluster/item_runs.h"

namespace headrace {
namespace {

double MaxOverMean(Index most, Index total, Index ranks) {
  return total == 0 ? 1.0 : static_cast<double>(most) * static_cast<double>(ranks) / static_cast<double>(total);
}

class Measuring {
 public:
  explicit Measuring(const ClusterPlan& plan)
      : plan_(plan),
        sent_(plan.cluster().source.ranks, 0),
        entered_(plan.cluster().destination.ranks, 0),
        copies_(plan.cluster().destination.ranks, 0),
        operations_(plan.cluster().source.ranks + plan.cluster().destination.ranks, 0) {
    for (const ClusterUnit& unit : plan.cluster().units) {
      shard_copies_.emplace_back();
      for (const RankGroup& g : unit.destination_groups) shard_copies_.back().emplace_back(g.shards.size(), 0);
    }
  }

  ClusterFigures Run() && {
    for (size_t u = 0; u < plan_.cluster().units.size(); ++u) MeasureUnit(static_cast<int>(u));
    ForEachItemRun(plan_, std::numeric_limits<Index>::max(), [&](const ItemRun& run) { AddRun(run); });
    SumCopies();
    SumSenders();
    Index most = 0, total = 0, ranks = 0;
    for (int32_t r = 0; r < plan_.cluster().destination.ranks; ++r) {
      ranks += !plan_.destination_memberships(r).empty();
      total += entered_[r];
      most = std::max(most, entered_[r]);
    }
    out_.receiver_max_over_mean = MaxOverMean(most, total, ranks);
    const auto busiest = std::max_element(operations_.begin(), operations_.end());
    out_.operations_max = *busiest;
    out_.busiest_node = static_cast<int32_t>(busiest - operations_.begin());
    return out_;
  }

 private:
  // What follows from the units and the groups alone.
  void MeasureUnit(int u) {
    const ClusterUnit& unit = plan_.cluster().units[u];
    std::set<int32_t> layers;
    std::vector<Index> instances(unit.destination_groups.size(), 0);
    for (const UnitInstance& i : unit.instances) {
      layers.insert(i.layer);
      ++instances[i.destination_group];
    }
    const size_t times = unit.unit.stacked ? layers.size() : unit.instances.size();
    out_.tensors += static_cast<Index>(times * unit.manifest.tensors.size());
    // Bytes of an instance by the list of boxes that want them.
    std::map<std::vector<int>, Index> wanted;
    for (const UnitCell& cell : plan_.unit_plan(u).cells()) {
      std::vector<int> shards;
      for (const ShardBox& b : cell.wanted_by) shards.push_back(b.shard);
      wanted[std::move(shards)] += cell.bytes;
    }
    for (size_t g = 0; g < unit.destination_groups.size(); ++g) {
      for (const auto& [shards, bytes] : wanted) {
        std::set<int32_t> domains;
        Index ranks = 0;
        for (int s : shards) {
          for (int32_t rank : unit.destination_groups[g].shards[s]) {
            domains.insert(rank / plan_.cluster().destination.ranks_per_domain);
            ++ranks;
          }
        }
        out_.needed_bytes += instances[g] * bytes * ranks;
        out_.domain_needed_bytes += instances[g] * bytes * static_cast<Index>(domains.size());
      }
    }
  }

  void AddRun(const ItemRun& run) {
    sent_[run.first.sender] += run.bytes;
    const ConsumerSet& set = plan_.consumers()[run.consumers];
    const int domains = static_cast<int>(set.domains().size());
    int32_t rail = RailOf(plan_.cluster().source, run.first.sender);
    for (int n = 0; n < domains; ++n) {
      const int32_t entry = set.Entry((run.first.first_domain + n) % domains, run.first.door);
      entered_[entry] += run.bytes;
      const int32_t next = RailOf(plan_.cluster().destination, entry);
      out_.cross_rail_bytes += next == std::exchange(rail, next) ? 0 : run.bytes;
    }
    out_.domain_wire_bytes += run.bytes * domains;
    out_.wire_bytes += run.bytes * static_cast<Index>(set.ranks().size());
    const UnitPlan& unit = plan_.unit_plan(run.unit);
    const Index stripes =
        run.cell >= 0 ? 1 : run.instances * static_cast<Index>(unit.classes()[run.cell_class].cells.size());
    legs_.clear();
    plan_.AppendLegs(set, run.first, &legs_);
    for (const Leg& leg : legs_) {
      operations_[leg.from] += stripes;
      operations_[leg.to] += stripes;
    }
    std::vector<Index>& copies = shard_copies_[run.unit][run.group->destination_group];
    if (run.cell >= 0) {
      const UnitCell& cell = unit.cells()[run.cell];
      made_.clear();
      unit.AppendCopies(run.cell, run.first.source, run.first.offset, run.bytes, 0, 1, &made_);
      for (const ShardBox& b : cell.wanted_by) copies[b.shard] += static_cast<Index>(made_.size());
      return;
    }
    for (int c : unit.classes()[run.cell_class].cells) {
      const Index parts = unit.Parts(c, run.first.source) * run.instances;
      for (const ShardBox& b : unit.cells()[c].wanted_by) copies[b.shard] += parts;
    }
  }

  void SumCopies() {
    for (size_t u = 0; u < shard_copies_.size(); ++u) {
      for (size_t g = 0; g < shard_copies_[u].size(); ++g) {
        for (size_t s = 0; s < shard_copies_[u][g].size(); ++s) {
          for (int32_t rank : plan_.cluster().units[u].destination_groups[g].shards[s]) {
            copies_[rank] += shard_copies_[u][g][s];
          }
        }
      }
    }
    for (Index copies : copies_) {
      out_.copies += copies;
      out_.busiest_receiver_copies = std::max(out_.busiest_receiver_copies, copies);
    }
  }

  void SumSenders() {
    struct Sum {
      Index most = 0, total = 0, ranks = 0;
    };
    Sum all;
    std::map<int32_t, Sum> stages;
    for (int32_t r = 0; r < plan_.cluster().source.ranks; ++r) {
      if (plan_.source_memberships(r).empty()) continue;
      for (Sum* sum : {&all, &stages[plan_.cluster().source_stage[r]]}) {
        sum->most = std::max(sum->most, sent_[r]);
        sum->total += sent_[r];
        ++sum->ranks;
      }
    }
    out_.busiest_sender_bytes = all.most;
    out_.sender_max_over_mean = MaxOverMean(all.most, all.total, all.ranks);
    for (const auto& [stage, sum] : stages) {
      out_.worst_stage_max_over_mean =
          std::max(out_.worst_stage_max_over_mean, MaxOverMean(sum.most, sum.total, sum.ranks));
    }
  }

  const ClusterPlan& plan_;
  ClusterFigures out_;
  std::vector<Index> sent_, entered_, copies_;                 // by rank
  std::vector<std::vector<std::vector<Index>>> shard_copies_;  // by unit, destination group, shard
  std::vector<Index> operations_;                              // by node
  std::vector<Copy> made_;
  std::vector<Leg> legs_;
};

}  // namespace

ClusterFigures MeasureCluster(const ClusterPlan& plan) { return Measuring(plan).Run(); }

}  // namespace headrace
