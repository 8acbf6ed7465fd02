#ifndef HEADRACE_PLANNER_LAYOUT_EXPERTS_H_
#define HEADRACE_PLANNER_LAYOUT_EXPERTS_H_

// Expert weights: one tensor per expert or stacked, gate and up fused in either order, one after the other or in turns.
//
// Everything is an array of three axes, [experts, out, in], wherever it comes from: StackExperts of one tensor per
// expert, Whole of a stacked tensor, Transpose of one that is stored [E, in, out], Take of the halves of a fused one.
// From there on both sides are the same expressions:
//
//   mine   Take(experts, 0, ExpertsOf(E, ep, index))                    the rank's experts
//   cut    Take(mine, 1, ChunkOf(I, etp, index, kEven)) of gate and up; Take(mine, 2, ...) of down
//   fused  FuseGateUp(gate, up, 1, order, rows)
//   form   as it is, one buffer [E', 2 * I', K]; Transpose(.., {0, 2, 1}), one buffer [E', K, 2 * I']; or OneExpert for
//          each local expert, one buffer [2 * I', K] each
//
// Columns of gate and up in turns in a tensor [E, K, 2 * I] (gpt-oss) are no box of three axes. There the axis of two
// stays: Transpose(Whole(tensor, {E, K, I, 2}), {0, 3, 2, 1}) is [E, 2, I, K], in memory the stacked form; cut it along
// axis 2, take axis 1 in either order, and Transpose(.., {0, 2, 1, 3}) is the form in turns again.
//
// Pure and thread-safe.

#include <vector>

#include "planner/layout/piece_array.h"
#include "planner/manifest.h"

namespace headrace {

// Tensors of one shape, expert by expert, as [experts, ...]: Stack of all Whole.
PieceArray StackExperts(const std::vector<TensorSpec>& experts);

// Expert `local` of [experts, ...] as [...]: numpy's array[local]. Array is PieceArray or ScaledArray (block_scales.h).
//   what Take and Squeeze refuse
template <typename Array>
Array OneExpert(const Array& experts, Index local) {
  return Squeeze(Take(experts, 0, Segment{local, 1}), 0);
}

enum class GateUpOrder {
  kGateFirst,  // w13: Mixtral's w1 (gate), then w3 (up)
  kUpFirst,    // w31: FlashInfer's and TensorRT-LLM's kernels
};

enum class GateUpRows {
  kStacked,      // concatenate([gate, up], axis)
  kInterleaved,  // stack([gate, up], axis + 1): g0 u0 g1 u1 ... in memory (gpt-oss); the result has one axis more
};

// Gate and up of one shape, joined along their intermediate axis. Array is PieceArray or ScaledArray.
//   what Concatenate and Stack refuse
template <typename Array>
Array FuseGateUp(const Array& gate, const Array& up, int axis, GateUpOrder order, GateUpRows rows) {
  const bool gate_first = order == GateUpOrder::kGateFirst;
  const std::vector<Array> both = {gate_first ? gate : up, gate_first ? up : gate};
  return rows == GateUpRows::kStacked ? Concatenate(both, axis) : Stack(both, axis + 1);
}

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_EXPERTS_H_
