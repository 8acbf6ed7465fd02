#include "planner/cluster/rank_proof.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "planner/cluster/route_check.h"
#include "planner/coverage.h"
#include "planner/status.h"

namespace headrace {
namespace {

bool SamePart(const Copy& a, const Copy& b) {
  if (std::tie(a.tensor, a.source, a.source_offset, a.position, a.run_bytes) !=
          std::tie(b.tensor, b.source, b.source_offset, b.position, b.run_bytes) ||
      a.loops.size() != b.loops.size()) {
    return false;
  }
  return std::equal(a.loops.begin(), a.loops.end(), b.loops.begin(), [](const CopyLoop& x, const CopyLoop& y) {
    return std::tie(x.extent, x.source_stride, x.position_stride) ==
           std::tie(y.extent, y.source_stride, y.position_stride);
  });
}

// The bytes of a copy; -1 where that is no number.
Index BytesOf(const Copy& copy) {
  Index bytes = copy.run_bytes;
  for (const CopyLoop& l : copy.loops) {
    if (l.extent <= 0 || __builtin_mul_overflow(bytes, l.extent, &bytes)) return -1;
  }
  return bytes > 0 ? bytes : -1;
}

void Write(Index number, std::string* out) { out->append(reinterpret_cast<const char*>(&number), sizeof(number)); }

class RankProof {
 public:
  RankProof(const Cluster& cluster, const ClusterAnswers& answers, const RankPlan& plan, bool receiver)
      : cluster_(cluster),
        answers_(answers),
        plan_(plan),
        receiver_(receiver),
        rank_(plan.node - (receiver ? cluster.source.ranks : 0)),
        routes_(cluster, answers) {}

  absl::Status Run() {
    if (rank_ < 0 || rank_ >= (receiver_ ? cluster_.destination.ranks : cluster_.source.ranks)) {
      return Invalid("the node is none of this side");
    }
    HR_RETURN_IF_ERROR(CheckPassages());
    HR_RETURN_IF_ERROR(CheckComplete());
    if (receiver_) return CheckMemory();
    return plan_.fills.empty() ? absl::OkStatus() : Invalid("a sender fills nothing");
  }

 private:
  absl::Status Invalid(const std::string& what) const {
    return Error(ErrorCode::kPlanInvalid,
                 absl::StrCat(receiver_ ? "plan of receiver " : "plan of sender ", rank_, ": ", what));
  }
  absl::Status InvalidAt(const ItemId& item, const std::string& what) const {
    return Invalid(absl::StrCat(DescribeItem(cluster_, answers_, item), ": ", what));
  }

  bool HasInstance(int32_t unit, int32_t instance) const {
    return unit >= 0 && unit < static_cast<int32_t>(cluster_.units.size()) && instance >= 0 &&
           instance < static_cast<int32_t>(cluster_.units[unit].instances.size());
  }
  bool Exists(const ItemId& item) const {
    return HasInstance(item.unit, item.instance) && item.cell >= 0 && item.cell < answers_.CellCount(item.unit);
  }

  absl::Status CheckPassages() {
    std::vector<bool> used(plan_.copies.size(), false);
    const Passage* last = nullptr;
    for (const Passage& p : plan_.passages) {
      if (!Exists(p.item)) return Invalid("a passage of an item that does not exist");
      auto key = [](const Passage& x) { return std::tie(x.order, x.sender, x.item, x.offset); };
      if (last != nullptr && !(key(*last) < key(p))) return InvalidAt(p.item, "it is out of order, or there twice");
      last = &p;
      HR_RETURN_IF_ERROR(CheckWay(p));
      if (p.first_copy > plan_.copies.size() || p.copies > plan_.copies.size() - p.first_copy) {
        return InvalidAt(p.item, "its copies do not exist");
      }
      for (uint32_t n = 0; n < p.copies; ++n) {
        if (used[p.first_copy + n]) return InvalidAt(p.item, "a copy is another passage's, too");
        used[p.first_copy + n] = true;
      }
      HR_RETURN_IF_ERROR(CheckParts(p));
    }
    if (std::find(used.begin(), used.end(), false) != used.end()) return Invalid("a copy is of no passage");
    return absl::OkStatus();
  }

  // The item's stripes are what the cluster's plan says, and right; this is one of them, from and to the right nodes.
  absl::Status CheckWay(const Passage& p) {
    const CellAnswer cell = answers_.DescribeCell(p.item.unit, p.item.cell);
    answers_.Route(p.item, &stripes_);
    HR_RETURN_IF_ERROR(routes_.Check(p.item, cell, stripes_));
    const auto stripe =
        std::find_if(stripes_.begin(), stripes_.end(), [&](const StripeRoute& s) { return s.offset == p.offset; });
    if (stripe == stripes_.end() || std::tie(stripe->bytes, stripe->sender, stripe->source_shard, stripe->order) !=
                                        std::tie(p.bytes, p.sender, p.source_shard, p.order)) {
      return InvalidAt(p.item, absl::StrCat("the plan has no stripe of ", p.bytes, " bytes at ", p.offset,
                                            " of sender ", p.sender, ", shard ", p.source_shard));
    }
    if (!receiver_ && stripe->sender != rank_) return InvalidAt(p.item, "another one sends it");
    int32_t from = -1, next_domain = -1, next_inside = -1;
    for (const Leg& leg : stripe->legs) {
      if (leg.to == plan_.node) from = leg.from;
      if (leg.from == plan_.node) (Inside(leg) ? next_inside : next_domain) = leg.to;
    }
    if (receiver_ && from < 0) return InvalidAt(p.item, "it does not come here");
    int32_t legs = 0, behind = plan_.node;
    for (auto leg = stripe->legs.rbegin(); leg != stripe->legs.rend(); ++leg) {
      if (leg->to == behind) behind = leg->from, ++legs;
    }
    if (legs != p.legs) {
      return InvalidAt(p.item, absl::StrCat("it is ", p.legs, " legs from its sender instead of ", legs));
    }
    if (std::tie(from, next_domain, next_inside) == std::tie(p.from, p.next_domain, p.next_inside)) {
      ++passed_[p.item];
      if (receiver_ && passed_[p.item] > stripes_.size()) return InvalidAt(p.item, "it comes twice");
      return absl::OkStatus();
    }
    return InvalidAt(
        p.item, absl::StrCat("it comes from node ", p.from, " and goes on to ", p.next_domain, " and ", p.next_inside,
                             " instead of ", from, ", ", next_domain, " and ", next_inside));
  }

  bool Inside(const Leg& leg) const {
    const int32_t first = cluster_.source.ranks, size = cluster_.destination.ranks_per_domain;
    return leg.from >= first && (leg.from - first) / size == (leg.to - first) / size;
  }

  // The parts are those that the cluster's plan makes of the stripe; copies of one part have one source side. A sender
  // has each part once.
  absl::Status CheckParts(const Passage& p) {
    if (receiver_ && p.copies == 0) return absl::OkStatus();
    const ClusterUnit& unit = cluster_.units[p.item.unit];
    wanted_.clear();
    answers_.AppendCopies(p.item.unit, p.item.cell, p.source_shard, p.offset, p.bytes, &wanted_);
    std::erase_if(wanted_, [part = 0](const Copy& c) mutable { return c.part != part || (++part, false); });
    Index bytes = 0;
    size_t parts = 0;
    for (uint32_t n = 0; n < p.copies; ++n) {
      const Copy& copy = plan_.copies[p.first_copy + n];
      if (!receiver_ && !HasSourceAlone(copy)) return InvalidAt(p.item, "a sender's part goes to a buffer");
      const bool again = receiver_ && n > 0 && copy.part == plan_.copies[p.first_copy + n - 1].part;
      if (!again && (parts == wanted_.size() || copy.part != static_cast<int>(parts))) {
        return InvalidAt(p.item, "a part is out of order, or there is one too many");
      }
      if (!again) {
        Copy& wanted = wanted_[parts++];
        wanted.source_offset += ExpertOffset(unit.manifest.source[wanted.source], unit.source_stacked, wanted.tensor,
                                             unit, SourcePlace(unit, unit.instances[p.item.instance], p.source_shard));
        const Index more = BytesOf(copy);
        if (more < 0 || __builtin_add_overflow(bytes, more, &bytes)) return InvalidAt(p.item, "a copy without bytes");
      }
      if (!SamePart(wanted_[parts - 1], copy)) return InvalidAt(p.item, "a copy takes other bytes than the stripe's");
    }
    if (parts == wanted_.size() && bytes == p.bytes) return absl::OkStatus();
    return InvalidAt(p.item, absl::StrCat("its copies take ", bytes, " of ", p.bytes, " bytes"));
  }

  static bool HasSourceAlone(const Copy& copy) {
    return copy.destination == -1 && copy.destination_offset == 0 &&
           std::all_of(copy.loops.begin(), copy.loops.end(),
                       [](const CopyLoop& l) { return l.destination_stride == 0; });
  }

  static Index ExpertOffset(const Buffer& buffer, bool stacked, int tensor, const ClusterUnit& unit, Index place) {
    if (!stacked) return 0;
    Index elements = place;
    for (Index e : buffer.shape) elements *= e;
    return DtypeBytes(elements, unit.manifest.tensors[tensor].dtype);
  }

  // Every item that comes here, or leaves from here, is in the plan, with all its stripes.
  absl::Status CheckComplete() {
    size_t items = 0;
    for (int32_t u = 0; u < static_cast<int32_t>(cluster_.units.size()); ++u) {
      const ClusterUnit& unit = cluster_.units[u];
      std::vector<CellAnswer> cells;
      for (int c = 0; c < answers_.CellCount(u); ++c) cells.push_back(answers_.DescribeCell(u, c));
      const std::vector<int> shard_in = ShardIn(receiver_ ? unit.destination_groups : unit.source_groups);
      for (int32_t i = 0; i < static_cast<int32_t>(unit.instances.size()); ++i) {
        const int shard = shard_in[receiver_ ? unit.instances[i].destination_group : unit.instances[i].source_group];
        if (shard < 0) continue;
        for (int32_t c = 0; c < static_cast<int32_t>(cells.size()); ++c) {
          const std::vector<int>& shards = receiver_ ? cells[c].goes_to : cells[c].source_shards;
          if (std::find(shards.begin(), shards.end(), shard) == shards.end()) continue;
          const ItemId item{u, i, c};
          const size_t stripes = StripesHere(item);
          const auto passed = passed_.find(item);
          if (stripes != (passed == passed_.end() ? 0 : passed->second)) {
            return InvalidAt(item, absl::StrCat("it has not all of the item's ", stripes, " stripes"));
          }
          items += stripes > 0;
        }
      }
    }
    return items == passed_.size() ? absl::OkStatus() : Invalid("it has items that are not its own");
  }

  size_t StripesHere(const ItemId& item) {
    answers_.Route(item, &stripes_);
    if (receiver_) return stripes_.size();
    return static_cast<size_t>(
        std::count_if(stripes_.begin(), stripes_.end(), [&](const StripeRoute& s) { return s.sender == rank_; }));
  }

  // By group: which of its shards the rank is; -1: none.
  std::vector<int> ShardIn(const std::vector<RankGroup>& groups) const {
    std::vector<int> out(groups.size(), -1);
    for (size_t g = 0; g < groups.size(); ++g) {
      for (size_t s = 0; s < groups[g].shards.size(); ++s) {
        if (std::binary_search(groups[g].shards[s].begin(), groups[g].shards[s].end(), rank_)) {
          out[g] = static_cast<int>(s);
        }
      }
    }
    return out;
  }

  // What of each instance is written, one instance at a time, in the numbers of the unit's manifest.
  absl::Status CheckMemory() {
    struct Written {
      std::vector<std::pair<int, const Copy*>> copies;  // with their source shard
      std::vector<const ZeroFill*> fills;
    };
    std::map<std::pair<int32_t, int32_t>, Written> instances;
    for (const Passage& p : plan_.passages) {
      for (uint32_t n = 0; n < p.copies; ++n) {
        instances[{p.item.unit, p.item.instance}].copies.push_back({p.source_shard, &plan_.copies[p.first_copy + n]});
      }
    }
    for (const RankFill& f : plan_.fills) {
      if (!HasInstance(f.unit, f.instance)) return Invalid("a fill of an instance that does not exist");
      instances[{f.unit, f.instance}].fills.push_back(&f.fill);
    }
    for (int32_t u = 0; u < static_cast<int32_t>(cluster_.units.size()); ++u) {
      const ClusterUnit& unit = cluster_.units[u];
      const std::vector<int> shard_in = ShardIn(unit.destination_groups);
      std::map<int, Manifest> manifests;  // by shard
      absl::flat_hash_set<std::string> proven;
      for (int32_t i = 0; i < static_cast<int32_t>(unit.instances.size()); ++i) {
        const int shard = shard_in[unit.instances[i].destination_group];
        const auto written = instances.find({u, i});
        if (shard < 0) {
          if (written != instances.end()) return Invalid("it writes an instance that is not its own");
          continue;
        }
        if (!manifests.contains(shard)) manifests.emplace(shard, OnlyShard(unit.manifest, shard));
        Written nothing;
        const Written& what = written == instances.end() ? nothing : written->second;
        HR_RETURN_IF_ERROR(CheckInstance(u, i, shard, what.copies, what.fills, manifests.at(shard), &proven));
      }
    }
    return absl::OkStatus();
  }

  static Manifest OnlyShard(const Manifest& manifest, int shard) {
    Manifest out = manifest;
    std::erase_if(out.destination, [&](const Buffer& b) { return b.rank != shard; });
    return out;
  }

  absl::Status CheckInstance(int32_t u, int32_t i, int shard, const std::vector<std::pair<int, const Copy*>>& copies,
                             const std::vector<const ZeroFill*>& fills, const Manifest& manifest,
                             absl::flat_hash_set<std::string>* proven) const {
    const ClusterUnit& unit = cluster_.units[u];
    const UnitInstance& instance = unit.instances[i];
    auto invalid = [&](const std::string& what) {
      return Invalid(absl::StrCat("unit \"", unit.unit.name, "\", instance ", i, " (layer ", instance.layer,
                                  ", expert ", instance.expert, "): ", what));
    };
    // The manifest of the shard has the buffers of this rank alone.
    std::vector<int> number(unit.manifest.destination.size(), -1);
    int next = 0;
    for (size_t b = 0; b < number.size(); ++b) {
      if (unit.manifest.destination[b].rank == shard) number[b] = next++;
    }
    auto owns = [&](int buffer) {
      return buffer >= 0 && buffer < static_cast<int>(number.size()) && number[buffer] >= 0;
    };
    Plan plan;
    plan.decisions.resize(manifest.tensors.size());
    for (const auto& [source_shard, copy] : copies) {
      if (!owns(copy->destination) || copy->tensor < 0 || copy->tensor >= static_cast<int>(manifest.tensors.size()) ||
          copy->source < 0 || copy->source >= static_cast<int>(manifest.source.size()) ||
          manifest.source[copy->source].rank != source_shard) {
        return invalid("a copy of a tensor or buffer that it does not have");
      }
      Copy& mine = plan.copies.emplace_back(*copy);
      mine.part = -1;
      mine.source_offset -= ExpertOffset(manifest.source[copy->source], unit.source_stacked, copy->tensor, unit,
                                         SourcePlace(unit, instance, source_shard));
      mine.destination_offset -= ExpertOffset(unit.manifest.destination[copy->destination], unit.destination_stacked,
                                              copy->tensor, unit, DestinationPlace(unit, instance, shard));
      mine.destination = number[copy->destination];
    }
    std::stable_sort(plan.copies.begin(), plan.copies.end(), [&](const Copy& a, const Copy& b) {
      auto key = [&](const Copy& c) {
        return std::make_tuple(manifest.source[c.source].rank, c.destination, c.destination_offset);
      };
      return key(a) < key(b);
    });
    std::string content;
    for (size_t n = 0; n < plan.copies.size(); ++n) {
      const Copy& c = plan.copies[n];
      const int64_t from = manifest.source[c.source].rank;
      if (plan.edges.empty() || plan.edges.back().source_rank != from) plan.edges.push_back({from, shard, n, 0});
      ++plan.edges.back().count;
      for (Index x : {Index{c.tensor}, Index{c.source}, Index{c.destination}, c.source_offset, c.destination_offset,
                      c.position, c.run_bytes, static_cast<Index>(c.loops.size())}) {
        Write(x, &content);
      }
      for (const CopyLoop& l : c.loops) {
        for (Index x : {l.extent, l.source_stride, l.destination_stride, l.position_stride}) Write(x, &content);
      }
    }
    for (const ZeroFill* fill : fills) {
      if (!owns(fill->destination)) return invalid("a fill of a buffer that it does not have");
      const Buffer& buffer = unit.manifest.destination[fill->destination];
      ZeroFill& mine = plan.zero_fills.emplace_back(*fill);
      if (unit.destination_stacked) {
        Index elements = DestinationPlace(unit, instance, shard);
        for (Index e : buffer.shape) elements *= e;
        mine.destination_offset -= DtypeBytes(elements, buffer.dtype);
      }
      mine.destination = number[fill->destination];
      for (Index x : {Index{-1}, Index{mine.destination}, mine.destination_offset, mine.run_bytes,
                      static_cast<Index>(mine.loops.size())}) {
        Write(x, &content);
      }
      for (const CopyLoop& l : mine.loops) {
        for (Index x : {l.extent, l.destination_stride}) Write(x, &content);
      }
    }
    Write(shard, &content);
    if (!proven->insert(std::move(content)).second) return absl::OkStatus();
    const absl::Status status = ProveCoverage(manifest, plan);
    return status.ok() ? status : WithMessage(status, invalid(std::string(status.message())).message());
  }

  const Cluster& cluster_;
  const ClusterAnswers& answers_;
  const RankPlan& plan_;
  const bool receiver_;
  const int32_t rank_;
  RouteCheck routes_;
  std::map<ItemId, size_t> passed_;  // stripes of each item
  std::vector<StripeRoute> stripes_;
  std::vector<Copy> wanted_;
};

// A node's passages to or from another one, in order.
template <typename F>
std::vector<const Passage*> Between(const RankPlan& plan, F&& concerns) {
  std::vector<const Passage*> out;
  for (const Passage& p : plan.passages) {
    if (concerns(p)) out.push_back(&p);
  }
  return out;
}

// The first copy of each part.
std::vector<const Copy*> PartsOf(const RankPlan& plan, const Passage& p) {
  std::vector<const Copy*> out;
  for (uint32_t n = 0; n < p.copies; ++n) {
    const Copy& copy = plan.copies[p.first_copy + n];
    if (out.empty() || copy.part != out.back()->part) out.push_back(&copy);
  }
  return out;
}

}  // namespace

absl::Status ProveReceiver(const Cluster& cluster, const ClusterAnswers& answers, const RankPlan& plan) {
  return RankProof(cluster, answers, plan, true).Run();
}

absl::Status ProveSender(const Cluster& cluster, const ClusterAnswers& answers, const RankPlan& plan) {
  return RankProof(cluster, answers, plan, false).Run();
}

absl::Status ProveHandover(const RankPlan& from, const RankPlan& to) {
  const std::vector<const Passage*> sent =
      Between(from, [&](const Passage& p) { return p.next_domain == to.node || p.next_inside == to.node; });
  const std::vector<const Passage*> got = Between(to, [&](const Passage& p) { return p.from == from.node; });
  auto invalid = [&](const std::string& what) {
    return Error(ErrorCode::kPlanInvalid, absl::StrCat("from node ", from.node, " to node ", to.node, ": ", what));
  };
  if (sent.size() != got.size()) {
    return invalid(absl::StrCat(sent.size(), " stripes are handed over, ", got.size(), " are expected"));
  }
  for (size_t n = 0; n < sent.size(); ++n) {
    const Passage& a = *sent[n];
    const Passage& b = *got[n];
    const std::string where =
        absl::StrCat("stripe ", n, " (unit ", a.item.unit, ", instance ", a.item.instance, ", cell ", a.item.cell, ")");
    if (std::tie(a.item, a.offset, a.bytes, a.order, a.sender, a.source_shard) !=
        std::tie(b.item, b.offset, b.bytes, b.order, b.sender, b.source_shard)) {
      return invalid(absl::StrCat(where, " is not what is expected"));
    }
    if (a.copies == 0 || b.copies == 0) continue;
    const std::vector<const Copy*> left = PartsOf(from, a), right = PartsOf(to, b);
    if (!std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const Copy* x, const Copy* y) { return SamePart(*x, *y); })) {
      return invalid(absl::StrCat(where, " is not made of the parts that are expected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace headrace
