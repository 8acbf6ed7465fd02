#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_ANSWERS_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_ANSWERS_H_

// What a plan of a cluster says, item by item: all that its proof (cluster_proof.h) asks. Types only, so that the proof
// shares no code with the builder.
//
// Nodes are numbered as in cost/flow.h: source ranks first, then destination ranks.

#include <cstdint>
#include <vector>

#include "planner/plan.h"

namespace headrace {

// A cell of one instance.
struct ItemId {
  int32_t unit = 0;
  int32_t instance = 0;
  int32_t cell = 0;

  auto operator<=>(const ItemId&) const = default;
};

// From one node to another.
struct Leg {
  int32_t from = 0;
  int32_t to = 0;

  bool operator==(const Leg&) const = default;
};

// Bytes [offset, offset + bytes) of an item, in the order of the cell's slices.
struct StripeRoute {
  Index offset = 0;
  Index bytes = 0;
  int32_t sender = 0;  // source rank
  int32_t source_shard = 0;
  // Every node handles its stripes in ascending (order, sender, unit, instance, cell, offset), so that a stripe's turn
  // comes at all nodes of its tree in one order, and nobody waits in a circle.
  Index order = 0;
  std::vector<Leg> legs;  // a leg comes behind the one that brings the bytes to its `from`
};

// One cell of a unit, the same for all instances.
struct CellAnswer {
  Index bytes = 0;
  int tensor = 0;                  // index into the unit's manifest.tensors
  std::vector<int> source_shards;  // which of them may send it
  std::vector<int> goes_to;        // destination shards, ascending
};

class ClusterAnswers {
 public:
  virtual ~ClusterAnswers() = default;

  virtual Policy policy() const = 0;
  virtual int CellCount(int unit) const = 0;
  virtual CellAnswer DescribeCell(int unit, int cell) const = 0;
  // Appends the copies that bring a stripe of a cell from a source shard to all destination shards that want it, by
  // part (numbered from 0 on for each stripe), then by shard. Offsets are those of one expert's buffer.
  virtual void AppendCopies(int unit, int cell, int source_shard, Index offset, Index bytes,
                            std::vector<Copy>* out) const = 0;
  virtual const std::vector<ZeroFill>& ZeroFills(int unit) const = 0;
  // Replaces *out by the item's stripes, ascending.
  virtual void Route(const ItemId& item, std::vector<StripeRoute>* out) const = 0;

 protected:
  ClusterAnswers() = default;
  ClusterAnswers(const ClusterAnswers&) = default;
  ClusterAnswers& operator=(const ClusterAnswers&) = default;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_ANSWERS_H_
