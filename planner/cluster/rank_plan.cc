#include "planner/cluster/rank_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/status.h"

namespace headrace {
namespace {

int32_t Node(const ClusterPlan& plan, int32_t destination_rank) {
  return destination_rank < 0 ? -1 : plan.cluster().source.ranks + destination_rank;
}

// Where the expert at `place` begins in a buffer that has the like of `buffer` for each expert, one behind the other.
Index ExpertOffset(const Buffer& buffer, Dtype dtype, Index place) {
  Index elements = place;
  for (Index extent : buffer.shape) elements *= extent;
  return DtypeBytes(elements, dtype);
}

// By small keys: passages are large.
void SortPassages(std::vector<Passage>* passages) {
  std::vector<std::pair<Index, uint32_t>> keys;
  keys.reserve(passages->size());
  for (const Passage& p : *passages) keys.emplace_back(p.order, static_cast<uint32_t>(keys.size()));
  std::sort(keys.begin(), keys.end(), [&](const auto& x, const auto& y) {
    if (x.first != y.first) return x.first < y.first;
    const Passage& a = (*passages)[x.second];
    const Passage& b = (*passages)[y.second];
    return std::tie(a.sender, a.item, a.offset) < std::tie(b.sender, b.item, b.offset);
  });
  std::vector<Passage> sorted;
  sorted.reserve(keys.size());
  for (const auto& [order, index] : keys) sorted.push_back((*passages)[index]);
  *passages = std::move(sorted);
}

absl::Status NoSuchRank(const char* side, int32_t rank, int32_t ranks) {
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat("there is no ", side, " rank ", rank, ": give one of 0 to ", ranks - 1));
}

// About 1.5 GB of passages and copies.
constexpr size_t kMostItems = size_t{1} << 23;

class ReceiverPlanner {
 public:
  ReceiverPlanner(const ClusterPlan& plan, int32_t rank) : plan_(plan), rank_(rank) { out_.node = Node(plan, rank); }

  absl::StatusOr<RankPlan> Run() && {
    const size_t items = CountItems();
    if (items > kMostItems) {
      return Error(
          ErrorCode::kOutOfMemory,
          absl::StrCat(
              "destination rank ", rank_, " would get its tensors in ", items, " parts, above ", kMostItems,
              ": the trainer's layout cuts them too finely (FSDP over many ranks, of many experts or with rows "
              "that the engine cuts again); give it fewer shards, and replicas"));
    }
    out_.passages.reserve(items);
    out_.copies.reserve(items);
    for (const Membership& member : plan_.destination_memberships(rank_)) {
      const UnitIndex& index = plan_.unit_index(member.unit);
      for (int32_t g : index.groups_of_destination[member.group]) AddGroup(member, index.groups[g]);
    }
    SortPassages(&out_.passages);
    return std::move(out_);
  }

 private:
  size_t CountItems() const {
    size_t items = 0;
    for (const Membership& member : plan_.destination_memberships(rank_)) {
      const UnitPlan& unit_plan = plan_.unit_plan(member.unit);
      size_t cells = 0;
      for (const CellClass& c : unit_plan.classes()) {
        const std::vector<int>& to = unit_plan.destination_sets()[c.destination_set];
        if (std::binary_search(to.begin(), to.end(), member.shard)) cells += c.cells.size();
      }
      const UnitIndex& index = plan_.unit_index(member.unit);
      for (int32_t g : index.groups_of_destination[member.group]) items += cells * index.groups[g].count;
    }
    return items;
  }

  void AddGroup(const Membership& member, const InstanceGroup& group) {
    const UnitPlan& unit_plan = plan_.unit_plan(member.unit);
    for (size_t c = 0; c < unit_plan.classes().size(); ++c) {
      const std::vector<int>& to = unit_plan.destination_sets()[unit_plan.classes()[c].destination_set];
      if (std::binary_search(to.begin(), to.end(), member.shard)) AddClass(member, group, static_cast<int>(c));
    }
    const ClusterUnit& unit = plan_.cluster().units[member.unit];
    for (const ZeroFill& fill : unit_plan.zero_fills()) {
      const Buffer& buffer = unit.manifest.destination[fill.destination];
      if (buffer.rank != member.shard) continue;
      for (int32_t place = 0; place < group.count; ++place) {
        const int32_t instance = plan_.unit_index(member.unit).instances[group.first + place];
        out_.fills.push_back({member.unit, instance, fill});
        if (!unit.destination_stacked) continue;
        out_.fills.back().fill.destination_offset +=
            ExpertOffset(buffer, buffer.dtype, DestinationPlace(unit, unit.instances[instance], buffer.rank));
      }
    }
  }

  void AddClass(const Membership& member, const InstanceGroup& group, int cell_class) {
    const UnitPlan& unit_plan = plan_.unit_plan(member.unit);
    const ConsumerSet& set = plan_.consumers()[plan_.aggregate(group, cell_class).consumers];
    const auto index =
        static_cast<int32_t>(std::lower_bound(set.ranks().begin(), set.ranks().end(), rank_) - set.ranks().begin());
    const int domain = set.DomainOf(index);
    for (int c : unit_plan.classes()[cell_class].cells) {
      const UnitCell& cell = unit_plan.cells()[c];
      const auto wanted = std::equal_range(cell.wanted_by.begin(), cell.wanted_by.end(), ShardBox{member.shard, 0},
                                           [](const ShardBox& a, const ShardBox& b) { return a.shard < b.shard; });
      const auto first = static_cast<size_t>(wanted.first - cell.wanted_by.begin());
      const auto count = static_cast<size_t>(wanted.second - wanted.first);
      for (int32_t place = 0; place < group.count; ++place) {
        stripes_.clear();
        plan_.AppendStripes(member.unit, group, place, c, &stripes_);
        const int32_t instance = plan_.unit_index(member.unit).instances[group.first + place];
        for (const ItemStripe& stripe : stripes_) {
          const TreePlace tree = set.PlaceOf(index, domain, stripe.first_domain, stripe.door);
          Passage passage{{member.unit, instance, c}, stripe.offset, stripe.bytes, stripe.order};
          passage.sender = stripe.sender;
          passage.source_shard = cell.sources[stripe.source].shard;
          passage.from = tree.from < 0 ? stripe.sender : Node(plan_, tree.from);
          passage.next_domain = Node(plan_, tree.next_domain);
          passage.next_inside = Node(plan_, tree.next_inside);
          passage.legs = tree.legs;
          passage.first_copy = static_cast<uint32_t>(out_.copies.size());
          if (count > 0) {
            unit_plan.AppendCopies(c, stripe.source, stripe.offset, stripe.bytes, first, count, &out_.copies);
            Displace(member.unit, instance, passage.first_copy);
          }
          passage.copies = static_cast<uint32_t>(out_.copies.size()) - passage.first_copy;
          out_.passages.push_back(passage);
        }
      }
    }
  }

  // Moves the copies from `first` on to their expert's place in stacked buffers.
  void Displace(int32_t unit_number, int32_t instance_number, size_t first) {
    const ClusterUnit& unit = plan_.cluster().units[unit_number];
    if (!unit.source_stacked && !unit.destination_stacked) return;
    const UnitInstance& instance = unit.instances[instance_number];
    for (size_t i = first; i < out_.copies.size(); ++i) {
      Copy& copy = out_.copies[i];
      const Dtype dtype = unit.manifest.tensors[copy.tensor].dtype;  // a source's snapshot has it, too
      if (unit.source_stacked) {
        const Buffer& from = unit.manifest.source[copy.source];
        copy.source_offset += ExpertOffset(from, dtype, SourcePlace(unit, instance, from.rank));
      }
      if (unit.destination_stacked) {
        const Buffer& to = unit.manifest.destination[copy.destination];
        copy.destination_offset += ExpertOffset(to, dtype, DestinationPlace(unit, instance, to.rank));
      }
    }
  }

  const ClusterPlan& plan_;
  const int32_t rank_;
  RankPlan out_;
  std::vector<ItemStripe> stripes_;
};

class SenderPlanner {
 public:
  SenderPlanner(const ClusterPlan& plan, int32_t rank) : plan_(plan), rank_(rank) { out_.node = rank; }

  RankPlan Run() && {
    for (const Membership& member : plan_.source_memberships(rank_)) {
      const UnitIndex& index = plan_.unit_index(member.unit);
      const UnitPlan& unit_plan = plan_.unit_plan(member.unit);
      for (int32_t g : index.groups_of_source[member.group]) {
        for (size_t c = 0; c < unit_plan.classes().size(); ++c) {
          const std::vector<int>& from = unit_plan.source_sets()[unit_plan.classes()[c].source_set];
          if (std::binary_search(from.begin(), from.end(), member.shard)) {
            AddClass(member, index.groups[g], static_cast<int>(c));
          }
        }
      }
    }
    SortPassages(&out_.passages);
    return std::move(out_);
  }

 private:
  void AddClass(const Membership& member, const InstanceGroup& group, int cell_class) {
    const UnitPlan& unit_plan = plan_.unit_plan(member.unit);
    const CellClass& cells = unit_plan.classes()[cell_class];
    const Aggregate& aggregate = plan_.aggregate(group, cell_class);
    const Load& load = plan_.loads()[aggregate.load];
    const auto candidate = std::lower_bound(load.candidates.begin(), load.candidates.end(), rank_);
    const auto owner = static_cast<int32_t>(candidate - load.candidates.begin());
    Index added = 0;  // items before that
    for (size_t s = load.StretchAt(aggregate.load_begin); s < load.owners.size(); ++s) {
      // A stretch of the aggregate's part of the line; items that touch it.
      const Index begin = std::max(load.begins[s] - aggregate.load_begin, added);
      const Index end = std::min(load.begins[s + 1] - aggregate.load_begin, aggregate.bytes);
      if (load.begins[s] - aggregate.load_begin >= aggregate.bytes) break;
      if (load.owners[s] != owner) continue;
      for (Index place = begin / cells.bytes; place * cells.bytes < end; ++place) {
        for (int cell : cells.cells) {
          const Index at = place * cells.bytes + unit_plan.cells()[cell].class_offset;
          if (at >= end || at + unit_plan.cells()[cell].bytes <= begin) continue;
          AddItem(member, group, static_cast<int32_t>(place), cell, aggregate.consumers);
          added = at + unit_plan.cells()[cell].bytes;
        }
      }
    }
  }

  void AddItem(const Membership& member, const InstanceGroup& group, int32_t place, int c, int32_t consumers) {
    const ClusterUnit& unit = plan_.cluster().units[member.unit];
    const UnitPlan& unit_plan = plan_.unit_plan(member.unit);
    const ConsumerSet& set = plan_.consumers()[consumers];
    const int32_t instance = plan_.unit_index(member.unit).instances[group.first + place];
    stripes_.clear();
    plan_.AppendStripes(member.unit, group, place, c, &stripes_);
    for (const ItemStripe& stripe : stripes_) {
      if (stripe.sender != rank_) continue;
      Passage passage{{member.unit, instance, c}, stripe.offset, stripe.bytes, stripe.order};
      passage.sender = rank_;
      passage.source_shard = member.shard;
      passage.next_domain = Node(plan_, set.Entry(stripe.first_domain, stripe.door));
      passage.first_copy = static_cast<uint32_t>(out_.copies.size());
      unit_plan.AppendCopies(c, stripe.source, stripe.offset, stripe.bytes, 0, 1, &out_.copies);
      for (size_t i = passage.first_copy; i < out_.copies.size(); ++i) {
        Copy& part = out_.copies[i];
        part.destination = -1;
        part.destination_offset = 0;
        for (CopyLoop& loop : part.loops) loop.destination_stride = 0;
        if (!unit.source_stacked) continue;
        part.source_offset += ExpertOffset(unit.manifest.source[part.source], unit.manifest.tensors[part.tensor].dtype,
                                           SourcePlace(unit, unit.instances[instance], member.shard));
      }
      passage.copies = static_cast<uint32_t>(out_.copies.size()) - passage.first_copy;
      out_.passages.push_back(passage);
    }
  }

  const ClusterPlan& plan_;
  const int32_t rank_;
  RankPlan out_;
  std::vector<ItemStripe> stripes_;
};

}  // namespace

absl::StatusOr<RankPlan> ReceiverPlan(const ClusterPlan& plan, int32_t rank) {
  if (rank < 0 || rank >= plan.cluster().destination.ranks) {
    return NoSuchRank("destination", rank, plan.cluster().destination.ranks);
  }
  return ReceiverPlanner(plan, rank).Run();
}

absl::StatusOr<RankPlan> SenderPlan(const ClusterPlan& plan, int32_t rank) {
  if (rank < 0 || rank >= plan.cluster().source.ranks) {
    return NoSuchRank("source", rank, plan.cluster().source.ranks);
  }
  return SenderPlanner(plan, rank).Run();
}

}  // namespace headrace
