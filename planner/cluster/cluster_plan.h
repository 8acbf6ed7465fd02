#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_PLAN_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_PLAN_H_

// The plan of a whole cluster, as rules: which bytes leave the trainer where, and how they spread.
//
// An *item* is a cell (unit_plan.h) of one instance. Its bytes leave the trainer once, from one of the source ranks
// that hold them, or from several in stripes, and reach all ranks that want them by a tree (consumers.h). Nothing is
// stored for an item; where it comes from and goes to follows from its place on two lines of bytes:
//
//   load      all items that the same source ranks can send. FairShares says how many bytes of it each rank sends, so
//             that the busiest sender is the least busy; it sends them in stretches of the line (sender_lines.h).
//   consumers all items that the same destination ranks want. Each rank is its domain's entry for a share of it, such
//             that each domain's busiest rank is the least busy (entry_shares.h), in stretches of the line
//             (consumers.h).
//
//   load line of the ranks 0, 1, 2   |--a0--|--b0--|--a1--|--b1--|     items of two instances
//   shares                           |    0    |    1    |   2   |     b0: a stripe of rank 0, a stripe of rank 1
//
// Stretches are laid so that as many bytes as these shares allow, or nearly, are sent and received on one rail
// (cluster.h).
//
// An item across the end of a stretch is cut there at the nearest multiple of its stripe unit, and not at all where a
// stripe would be shorter than that (unit_plan.h; at least kMinStripeBytes). So a sender gets more than its share by
// less than one such unit for each end of a stretch.
//
// Cost of PlanCluster: the units' plans; the instances; one *aggregate* for each (unit, source group, destination
// group, class of cells) that occurs, the ranks of the different candidate and consumer sets, and FairShares over the
// former (one max-flow for each level of load, within each connected part, such as a pipeline stage), and over the
// latter in domains that engines of different layouts share; and the ends of all stretches, at which bytes take another
// way. Nothing grows with instances x cells or with instances x ranks.
//
// Deterministic: every member that makes the plan from the same cluster gets the same one.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/cluster/cluster_answers.h"
#include "planner/cluster/consumers.h"
#include "planner/cluster/unit_plan.h"
#include "planner/plan.h"

namespace headrace {

// The instances of a unit that come from one source group and go to one destination group.
struct InstanceGroup {
  int32_t source_group = 0;
  int32_t destination_group = 0;
  int32_t first = 0;  // of UnitIndex::instances
  int32_t count = 0;
  int32_t first_aggregate = 0;  // one for each class of the unit's cells
};

struct UnitIndex {
  std::vector<int32_t> instances;  // by destination group, source group, number
  std::vector<InstanceGroup> groups;
  std::vector<std::vector<int32_t>> groups_of_source;       // by source group: indices into `groups`
  std::vector<std::vector<int32_t>> groups_of_destination;  // by destination group
  std::vector<int32_t> group_of;                            // by instance
  std::vector<int32_t> place_of;                            // by instance: how many of its group are before it
};

// Items that the same source ranks can send.
struct Load {
  std::vector<int32_t> candidates;  // source ranks, ascending
  Index bytes = 0;
  // Stretches of the line: where each begins, and one past the last; which candidate sends it.
  std::vector<Index> begins;
  std::vector<int32_t> owners;  // indices into candidates

  // The stretch in which byte `at` lies: the last one that begins there or before.
  size_t StretchAt(Index at) const {
    return std::upper_bound(begins.begin(), begins.end() - 1, at) - begins.begin() - 1;
  }
};

// The items of one class of an instance group, instance by instance.
struct Aggregate {
  int32_t load = 0;
  int32_t consumers = 0;
  Index bytes = 0;
  Index load_begin = 0;       // on the load's line
  Index consumers_begin = 0;  // on the consumers' line
};

// A part of an aggregate that goes one way. By stretch and section, which is by place on both lines.
struct WayRun {
  int32_t stretch = 0;  // of the load's line
  int32_t section = 0;  // of the consumers' line
  Index begin = 0;      // in the aggregate
  Index before = 0;     // of its way, in runs before this one
  int32_t way = 0;
};

inline constexpr Index kOrderEnd = Index{1} << 40;

struct Membership {
  int32_t unit = 0;
  int32_t group = 0;
  int32_t shard = 0;
};

struct ItemStripe {
  Index offset = 0;  // in the item; bytes of the cell's slices (stripe.h)
  Index bytes = 0;
  int32_t sender = 0;        // source rank
  int32_t source = 0;        // index into UnitCell::sources
  int32_t door = 0;          // of the consumers
  int32_t first_domain = 0;  // of the consumers' domains
  // All that the sender sends by the same way: to the same consumers, through the same door.
  Index way_bytes = 0;
  // StripeRoute::order: which part of its way's bytes goes before its middle, of kOrderEnd. So all ways are in step:
  // every rank sends to each of its receivers, and receives from each of its senders, all the time.
  Index order = 0;
};

class ClusterPlan final : public ClusterAnswers {
 public:
  const Cluster& cluster() const { return *cluster_; }
  Policy policy() const override { return policy_; }

  const UnitPlan& unit_plan(int unit) const { return unit_plans_[unit]; }
  const UnitIndex& unit_index(int unit) const { return indices_[unit]; }
  const Aggregate& aggregate(const InstanceGroup& group, int cell_class) const {
    return aggregates_[group.first_aggregate + cell_class];
  }
  const std::vector<Aggregate>& aggregates() const { return aggregates_; }
  const std::vector<Load>& loads() const { return loads_; }
  const std::vector<ConsumerSet>& consumers() const { return consumers_; }
  // What a source rank sends.
  const std::vector<Index>& sent() const { return sent_; }
  // The groups and shards that a rank is in.
  const std::vector<Membership>& source_memberships(int32_t rank) const { return source_memberships_[rank]; }
  const std::vector<Membership>& destination_memberships(int32_t rank) const { return destination_memberships_[rank]; }

  // Appends the stripes of a cell of the instance at place `place` of `group`, by offset.
  void AppendStripes(int unit, const InstanceGroup& group, int32_t place, int cell, std::vector<ItemStripe>* out) const;
  // Appends the tree of a stripe that goes to `set`.
  void AppendLegs(const ConsumerSet& set, const ItemStripe& stripe, std::vector<Leg>* out) const;
  // The domain at which a sender's chains to a set begin: another one for each set, and each sender of a rail or host.
  int FirstDomain(int32_t sender, int32_t consumers) const {
    const SideShape& side = cluster_->source;
    const int32_t hosts = (side.ranks + side.ranks_per_host - 1) / side.ranks_per_host;
    const int64_t place = int64_t{RailOf(side, sender)} * hosts + sender / side.ranks_per_host;
    return static_cast<int>((place + consumers) % static_cast<int64_t>(consumers_[consumers].domains().size()));
  }

  // ClusterAnswers.
  int CellCount(int unit) const override { return static_cast<int>(unit_plans_[unit].cells().size()); }
  CellAnswer DescribeCell(int unit, int cell) const override;
  void AppendCopies(int unit, int cell, int source_shard, Index offset, Index bytes,
                    std::vector<Copy>* out) const override;
  const std::vector<ZeroFill>& ZeroFills(int unit) const override { return unit_plans_[unit].zero_fills(); }
  void Route(const ItemId& item, std::vector<StripeRoute>* out) const override;

 private:
  friend class ClusterPlanner;

  int32_t SourceOf(int unit, const InstanceGroup& group, int cell, int32_t sender) const;

  const Cluster* cluster_ = nullptr;
  Policy policy_ = Policy::kAuto;
  std::vector<UnitPlan> unit_plans_;
  std::vector<UnitIndex> indices_;
  std::vector<Aggregate> aggregates_;
  std::vector<std::vector<WayRun>> way_runs_;  // by aggregate
  std::vector<Index> way_bytes_;               // by way
  std::vector<Load> loads_;
  std::vector<ConsumerSet> consumers_;
  std::vector<Index> sent_;
  std::vector<std::vector<Membership>> source_memberships_, destination_memberships_;
};

// `cluster` outlives the plan. The plan is not proven: cluster_proof.h.
//   those of CheckCluster, Validate and Intersect, with the unit's name
//   kOutOfBounds: all items together have 2^61 bytes or more
absl::StatusOr<ClusterPlan> PlanCluster(const Cluster& cluster, Policy policy);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_PLAN_H_
