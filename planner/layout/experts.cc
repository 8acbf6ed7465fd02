#include "planner/layout/experts.h"

namespace headrace {

PieceArray StackExperts(const std::vector<TensorSpec>& experts) {
  std::vector<PieceArray> arrays;
  arrays.reserve(experts.size());
  for (const TensorSpec& expert : experts) arrays.push_back(Whole(expert));
  return Stack(arrays, 0);
}

PieceArray OneExpert(const PieceArray& experts, Index local) { return Squeeze(Take(experts, 0, Segment{local, 1}), 0); }

PieceArray FuseGateUp(const PieceArray& gate, const PieceArray& up, int axis, GateUpOrder order, GateUpRows rows) {
  const bool gate_first = order == GateUpOrder::kGateFirst;
  const std::vector<PieceArray> both = {gate_first ? gate : up, gate_first ? up : gate};
  return rows == GateUpRows::kStacked ? Concatenate(both, axis) : Stack(both, axis + 1);
}

}  // namespace headrace
