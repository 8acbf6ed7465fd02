#ifndef HEADRACE_PLANNER_CLUSTER_UNIT_PLAN_H_
#define HEADRACE_PLANNER_CLUSTER_UNIT_PLAN_H_

// How one instance of a unit gets from source shards to destination shards: the boxes into which both sides cut its
// tensors, and the copies of each box, made once for all instances.
//
//   tensor [4, 2]; source shards 0, 1: two rows each; destination shard 0: column 0, shard 1: column 1
//   cells: rows 0:2 x column 0, from shard 0 to shard 0;   rows 0:2 x column 1, from shard 0 to shard 1;   ...
//
// Cost: that of Intersect and ShareCells for the unit's manifest, and a copy for each (cell, source shard, destination
// shard) that can meet.

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/cluster/cluster.h"
#include "planner/intersect.h"
#include "planner/plan.h"
#include "planner/stripe.h"

namespace headrace {

struct ShardBox {
  int shard = 0;
  int box = 0;  // index into TensorCells::source or TensorCells::destination
};

// A box of one tensor that the same source shards hold and the same destination shards want.
struct UnitCell {
  int tensor = 0;  // index into the unit's manifest.tensors
  Box box;         // on the tensor's common axes
  Index bytes = 0;
  Slicing slicing;                             // where it may be cut into stripes
  Index stripe_unit = 0;                       // stripes are multiples of it, except for the last one
  std::vector<ShardBox> sources;               // ascending by shard, each shard once
  absl::InlinedVector<ShardBox, 2> wanted_by;  // ascending by shard; a shard twice where it has the bytes twice
  int cell_class = 0;                          // index into UnitPlan::classes()
  Index class_offset = 0;                      // bytes of its class before it
  int first_template = 0;                      // one per source
};

// Cells that come from the same source shards and go to the same destination shards.
struct CellClass {
  int source_set = 0;       // index into UnitPlan::source_sets()
  int destination_set = 0;  // index into UnitPlan::destination_sets()
  Index bytes = 0;
  std::vector<int> cells;
};

class UnitPlan {
 public:
  // `unit` outlives this; its manifest is validated. With Policy::kHybrid the cells of a tensor that it broadcasts go
  // to all shards that hold any of the tensor. Errors: those of Intersect.
  static absl::StatusOr<UnitPlan> Make(const ClusterUnit& unit, Policy policy);

  const std::vector<UnitCell>& cells() const { return cells_; }  // by tensor
  const std::vector<CellClass>& classes() const { return classes_; }
  // Different lists of shards, each ascending.
  const std::vector<std::vector<int>>& source_sets() const { return source_sets_; }
  const std::vector<std::vector<int>>& destination_sets() const { return destination_sets_; }
  const std::vector<ZeroFill>& zero_fills() const { return zero_fills_; }  // by destination buffer

  // Appends the copies of bytes [offset, offset + bytes) of a cell, a stripe, from its source-th source to the boxes
  // [first, first + count) of UnitCell::wanted_by, by part, then by box: Copy::part counts the parts of the stripe from
  // 0 on (plan.h, Part: the source side, the same for all boxes). Offsets are those of one expert's buffer.
  void AppendCopies(int cell, int source, Index offset, Index bytes, size_t first, size_t count,
                    std::vector<Copy>* out) const;
  // The number of parts of the whole cell.
  Index Parts(int cell, int source) const;

 private:
  explicit UnitPlan(const ClusterUnit& unit) : unit_(&unit) {}
  void AddTensor(int tensor, bool broadcast);
  void Classify();
  std::vector<Copy> Lower(const UnitCell& cell, int source, const Box& box) const;

  const ClusterUnit* unit_;
  std::vector<TensorCells> tensors_;  // their cells are left out
  std::vector<UnitCell> cells_;
  std::vector<absl::InlinedVector<int, 2>> goes_to_;  // by cell, while they are classified
  std::vector<CellClass> classes_;
  std::vector<std::vector<int>> source_sets_, destination_sets_;
  std::vector<std::vector<Copy>> templates_;  // by part, then box
  std::vector<ZeroFill> zero_fills_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_UNIT_PLAN_H_
