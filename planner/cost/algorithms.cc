#include "planner/cost/algorithms.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "planner/cost/shard_classes.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Into how many turns a broadcast over several lanes is cut: its time is that of equal turns within 1 / 64.
constexpr Index kBroadcastTurns = 64;

// NeMo RL's is_nccl_reshard_param: shared experts go the other way.
bool IsBulk(absl::string_view tensor) {
  if (absl::StrContains(tensor, "shared_expert")) return false;
  for (absl::string_view projection : {"gate_proj", "up_proj", "down_proj"}) {
    if (absl::StrContains(tensor, projection)) return true;
  }
  return false;
}

bool IsIn(TensorPart part, absl::string_view tensor) {
  return part == TensorPart::kAll || IsBulk(tensor) == (part == TensorPart::kBulk);
}

Traffic NodesOf(const Cluster& cluster) {
  Traffic traffic;
  traffic.source_ranks = cluster.source.ranks;
  int32_t hosts = 0, domains = 0;
  for (const SideShape& side : {cluster.source, cluster.destination}) {
    for (int32_t rank = 0; rank < side.ranks; ++rank) {
      traffic.host.push_back(hosts + rank / side.ranks_per_host);
      traffic.domain.push_back(domains + rank / side.ranks_per_domain);
      traffic.rail.push_back(RailOf(side, rank));
    }
    if (side.ranks > 0) {
      hosts = traffic.host.back() + 1;
      domains = traffic.domain.back() + 1;
    }
  }
  return traffic;
}

// Flows of a round: what takes the same way is one flow. In the end each source's flows stand in an order that begins
// elsewhere for each source, and the sources' flows alternate, as if all their tensors were sent in step.
class FlowSet {
 public:
  void Add(const std::vector<Hop>& hops, Index bytes, Index copies) {
    std::vector<int32_t> key;
    for (const Hop& hop : hops) key.insert(key.end(), {hop.from, hop.to, hop.after});
    const auto [place, is_new] = flow_of_.try_emplace(std::move(key), flows_.size());
    if (is_new) flows_.push_back({0, 0, hops});
    flows_[place->second].bytes += bytes;
    flows_[place->second].copies += copies;
  }

  std::vector<Flow> Take() {
    std::map<int32_t, std::vector<size_t>> by_source;
    for (size_t f = 0; f < flows_.size(); ++f) by_source[flows_[f].hops.front().from].push_back(f);
    std::vector<std::tuple<size_t, int32_t, size_t>> order;
    for (const auto& [source, own] : by_source) {
      for (size_t i = 0; i < own.size(); ++i) {
        order.emplace_back((i + static_cast<size_t>(source)) % own.size(), source, own[i]);
      }
    }
    std::sort(order.begin(), order.end());
    std::vector<Flow> sorted;
    for (const auto& [turn, source, f] : order) sorted.push_back(std::move(flows_[f]));
    return sorted;
  }

 private:
  std::map<std::vector<int32_t>, size_t> flow_of_;
  std::vector<Flow> flows_;
};

struct ReplicaRange {
  int begin = 0;
  int end = 0;
};

// Runs of `count` things for each of `owners`: the first ones have one more where they do not divide.
ReplicaRange EqualRun(int count, int owners, int owner) {
  const int each = count / owners;
  const int extra = count % owners;
  const int begin = owner * each + std::min(owner, extra);
  return {begin, begin + each + (owner < extra ? 1 : 0)};
}

// Which destination replicas a source replica serves. `domains` of the destination replicas, ascending.
ReplicaRange TargetsOf(int source, int sources, const std::vector<int32_t>& domains, bool node_aware) {
  const int destinations = static_cast<int>(domains.size());
  if (!node_aware) {
    if (sources <= destinations) return EqualRun(destinations, sources, source);
    for (int d = 0; d < destinations; ++d) {
      if (EqualRun(sources, destinations, d).begin == source) return {d, d + 1};
    }
    return {};
  }
  // Domain numbers between the first and the last count, used or not.
  const int nodes = domains.back() - domains.front() + 1;
  ReplicaRange served{source, source + 1};
  if (sources < nodes) served = EqualRun(nodes, sources, source);
  if (served.begin >= nodes) return {};
  const auto at = [&domains](int node) {
    return static_cast<int>(std::lower_bound(domains.begin(), domains.end(), domains.front() + node) - domains.begin());
  };
  return {at(served.begin), at(served.end)};
}

// The tree below the leaders: `replicas` are destination nodes, `position` of `contributors` is the sender's place
// among the sources of this destination shard.
std::vector<Hop> RingHops(int32_t from, const std::vector<int32_t>& replicas, const std::vector<int32_t>& domains,
                          int position, int contributors) {
  std::vector<Hop> hops;
  int32_t last_leader = from;
  int32_t last_hop = -1;
  int slot = -1;
  for (size_t begin = 0; begin < replicas.size();) {
    size_t end = begin;
    while (end < replicas.size() && domains[end] == domains[begin]) ++end;
    const int local = static_cast<int>(end - begin);
    if (slot < 0) {
      slot = 0;
      while (EqualRun(contributors, local, slot).end <= position) ++slot;
    }
    slot = std::min(slot, local - 1);  // slots that a smaller domain has joined stay so
    const int32_t leader = replicas[begin + static_cast<size_t>(slot)];
    hops.push_back({last_leader, leader, last_hop});
    last_hop = static_cast<int32_t>(hops.size()) - 1;
    for (size_t r = begin; r < end; ++r) {
      if (replicas[r] != leader) hops.push_back({leader, replicas[r], last_hop});
    }
    last_leader = leader;
    begin = end;
  }
  return hops;
}

// Sources of one destination shard's tensor: `from` are replicas of the same bytes.
struct Contribution {
  std::vector<int32_t> from;
  Index bytes = 0;
  Index copies = 0;
};

// How many stripes the replicas of some bytes have sent, by their ranks.
using SourceUses = std::map<std::vector<int32_t>, size_t>;

void AddStripes(const Contribution& part, const std::vector<int32_t>& replicas, size_t* uses, FlowSet* flows) {
  const int stripes = static_cast<int>(replicas.size());
  for (int stripe = 0; stripe < stripes; ++stripe) {
    std::vector<Hop> hops = {{part.from[(*uses)++ % part.from.size()], replicas[stripe], -1}};
    for (int i = 1; i < stripes; ++i) {
      hops.push_back({hops.back().to, replicas[(stripe + i) % stripes], i - 1});
    }
    flows->Add(hops, part.bytes / stripes + (stripe < part.bytes % stripes ? 1 : 0),
               part.copies / stripes + (stripe < part.copies % stripes ? 1 : 0));
  }
}

void AddContributions(const std::vector<Contribution>& contributions, const std::vector<int32_t>& to,
                      const Traffic& nodes, const ReshardOptions& options, SourceUses* uses, FlowSet* flows) {
  std::vector<int32_t> replicas, domains;
  for (int32_t rank : to) {
    replicas.push_back(nodes.source_ranks + rank);
    domains.push_back(nodes.domain[replicas.back()]);
  }
  for (size_t c = 0; c < contributions.size(); ++c) {
    const Contribution& part = contributions[c];
    if (options.way == ReshardWay::kStriped) {
      AddStripes(part, replicas, &(*uses)[part.from], flows);
      continue;
    }
    for (size_t s = 0; s < part.from.size(); ++s) {
      const ReplicaRange range =
          TargetsOf(static_cast<int>(s), static_cast<int>(part.from.size()), domains, options.node_aware);
      if (range.begin >= range.end) continue;
      if (options.way == ReshardWay::kRing) {
        flows->Add(RingHops(part.from[s], {replicas.begin() + range.begin, replicas.begin() + range.end},
                            {domains.begin() + range.begin, domains.begin() + range.end}, static_cast<int>(c),
                            static_cast<int>(contributions.size())),
                   part.bytes, part.copies);
      } else {
        for (int r = range.begin; r < range.end; ++r) {
          flows->Add({{part.from[s], replicas[r], -1}}, part.bytes, part.copies);
        }
      }
    }
  }
}

// The part of a unit that is in `part` and comes from stages [first, last]; returns the operations of the stage that
// has the most. Experts of a layer are one tensor.
absl::StatusOr<Index> AddUnit(const Cluster& cluster, const ClusterUnit& unit, const ReshardOptions& options,
                              int32_t first_stage, int32_t last_stage, const Traffic& nodes, FlowSet* flows,
                              std::vector<Index>* rank_tensors) {
  HR_ASSIGN_OR_RETURN(const std::vector<ShardClass> classes, ShardClasses(unit.manifest));
  // What one destination shard gets of one tensor from one stage.
  struct Key {
    int32_t destination_group;
    int32_t stage;
    int tensor;
    std::vector<int> consumers;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<Contribution>> wanted;
  Index tensors = 0;
  for (const TensorSpec& tensor : unit.manifest.tensors) tensors += IsIn(options.part, tensor.name) ? 1 : 0;
  SourceUses uses;
  std::map<int32_t, Index> layers;  // by stage: the most of any pair of groups
  for (const GroupPair& pair : GroupPairs(unit)) {
    const RankGroup& group = unit.source_groups[pair.source_group];
    const int32_t stage = cluster.source_stage[group.shards.front().front()];
    if (stage < first_stage || stage > last_stage) continue;
    layers[stage] = std::max(layers[stage], pair.layers);
    std::vector<int> shards(group.shards.size());
    std::iota(shards.begin(), shards.end(), 0);
    for (int32_t rank : RanksOfShards(group, shards)) (*rank_tensors)[rank] += tensors * pair.instances;
    for (const ShardClass& shared : classes) {
      if (!IsIn(options.part, unit.manifest.tensors[shared.tensor].name)) continue;
      wanted[{pair.destination_group, stage, shared.tensor, shared.consumers}].push_back(
          {RanksOfShards(group, shared.holders), shared.bytes * pair.instances, shared.boxes * pair.instances});
    }
  }
  for (const auto& [key, contributions] : wanted) {
    AddContributions(contributions, RanksOfShards(unit.destination_groups[key.destination_group], key.consumers), nodes,
                     options, &uses, flows);
  }
  Index most = 0;
  for (const auto& [stage, count] : layers) most = std::max(most, count * tensors);
  return most;
}

// From `from` to all of `nodes` of one side, which begins at node `first` and has domains of `domain_ranks`: over the
// domains' ranks at place `place`, and from there round each domain. `after`: the hop that brings the bytes to `from`.
void AddRing(int32_t from, int32_t after, int32_t first, const SideShape& side, int32_t first_domain, int32_t place,
             std::vector<Hop>* hops) {
  const int32_t domains = (side.ranks + side.ranks_per_domain - 1) / side.ranks_per_domain;
  int32_t entry = from;
  for (int32_t d = 0; d < domains; ++d) {
    const int32_t begin = (first_domain + d) % domains * side.ranks_per_domain;
    const int32_t size = std::min(side.ranks_per_domain, side.ranks - begin);
    const int32_t enters_at = first + begin + place % size;
    if (enters_at != from) {
      hops->push_back({entry, enters_at, after});
      after = static_cast<int32_t>(hops->size()) - 1;
    }
    entry = enters_at;
    int32_t previous = entry;
    int32_t previous_hop = after;
    for (int32_t i = 1; i < size; ++i) {
      const int32_t next = first + begin + (place + i) % size;
      hops->push_back({previous, next, previous_hop});
      previous = next;
      previous_hop = static_cast<int32_t>(hops->size()) - 1;
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<Round>> Reshard(const Cluster& cluster, const ReshardOptions& options) {
  int32_t stages = 0;
  for (int32_t stage : cluster.source_stage) stages = std::max(stages, stage + 1);
  std::vector<Round> rounds;
  for (int32_t first = 0; first < stages; first += options.streams) {
    Round round;
    round.traffic = NodesOf(cluster);
    FlowSet flows;
    std::vector<Index> rank_tensors(cluster.source.ranks);
    for (const ClusterUnit& unit : cluster.units) {
      HR_ASSIGN_OR_RETURN(const Index operations, AddUnit(cluster, unit, options, first, first + options.streams - 1,
                                                          round.traffic, &flows, &rank_tensors));
      round.operations += operations;
    }
    round.rank_tensors = *std::max_element(rank_tensors.begin(), rank_tensors.end());
    round.traffic.flows = flows.Take();
    rounds.push_back(std::move(round));
  }
  return rounds;
}

absl::StatusOr<std::vector<Round>> GatherBroadcast(const Cluster& cluster, TensorPart part) {
  Round gather, broadcast;
  gather.traffic = broadcast.traffic = NodesOf(cluster);
  std::map<int32_t, std::pair<Index, Index>> held;  // bytes and copies by the rank that offers them
  Index total_bytes = 0;
  for (const ClusterUnit& unit : cluster.units) {
    HR_ASSIGN_OR_RETURN(const std::vector<ShardClass> classes, ShardClasses(unit.manifest));
    for (const GroupPair& pair : GroupPairs(unit)) {
      for (const ShardClass& shared : classes) {
        if (!IsIn(part, unit.manifest.tensors[shared.tensor].name)) continue;
        auto& [bytes, copies] = held[RanksOfShards(unit.source_groups[pair.source_group], shared.holders).front()];
        bytes += shared.bytes * pair.instances;
        copies += shared.boxes * pair.instances;
        total_bytes += shared.bytes * pair.instances;
      }
    }
    for (const TensorSpec& tensor : unit.manifest.tensors) {
      if (!IsIn(part, tensor.name)) continue;
      gather.operations += static_cast<Index>(unit.instances.size());
      gather.rank_tensors = gather.operations;
    }
  }
  const SideShape& trainer = cluster.source;
  for (const auto& [rank, amount] : held) {
    Flow flow{amount.first, amount.second, {}};
    AddRing(rank, -1, 0, trainer, rank / trainer.ranks_per_domain, rank % trainer.ranks_per_domain, &flow.hops);
    if (!flow.hops.empty()) gather.traffic.flows.push_back(std::move(flow));
  }
  // The root's bytes leave by every rank of its domain, in turns.
  const int32_t lanes = std::min(trainer.ranks_per_domain, trainer.ranks);
  const Index parts = kBroadcastTurns * lanes;
  for (Index part_number = 0; part_number < parts; ++part_number) {
    const int32_t lane = static_cast<int32_t>(part_number % lanes);
    Flow flow{total_bytes / parts + (part_number < total_bytes % parts ? 1 : 0), 0, {}};
    if (lane > 0) flow.hops.push_back({0, lane, -1});
    AddRing(lane, lane > 0 ? 0 : -1, trainer.ranks, cluster.destination, 0, lane, &flow.hops);
    if (flow.bytes > 0) broadcast.traffic.flows.push_back(std::move(flow));
  }
  std::vector<Round> rounds;
  rounds.push_back(std::move(gather));
  rounds.push_back(std::move(broadcast));
  return rounds;
}

absl::StatusOr<Index> PartBytes(const Cluster& cluster, TensorPart part) {
  Index bytes = 0;
  for (const ClusterUnit& unit : cluster.units) {
    HR_ASSIGN_OR_RETURN(const std::vector<ShardClass> classes, ShardClasses(unit.manifest));
    for (const ShardClass& shared : classes) {
      if (IsIn(part, unit.manifest.tensors[shared.tensor].name)) {
        bytes += shared.bytes * static_cast<Index>(unit.instances.size());
      }
    }
  }
  return bytes;
}

}  // namespace headrace
