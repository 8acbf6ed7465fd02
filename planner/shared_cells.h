#ifndef HEADRACE_PLANNER_SHARED_CELLS_H_
#define HEADRACE_PLANNER_SHARED_CELLS_H_

// Which bytes do several destinations want?
//
// Two engines that want the upper and the lower two thirds of a matrix of three rows:
//
//   cells [0:2] of A, [1:3] of B   ->   [0:1] of A;  [1:2] of A and B;  [2:3] of B

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "planner/intersect.h"

namespace headrace {

// A box of one tensor with every destination box that wants it and every source box that holds it.
struct SharedCell {
  Box box;
  absl::InlinedVector<int, 2> destinations;  // indices into TensorCells::destination, ascending
  std::vector<int> sources;                  // indices into TensorCells::source
};

// Cuts the listed cells of a tensor so that two of the results are either the same box, and then one cell, or disjoint.
// Together they are the cells. Equal boxes, as replicas want them, are found without cutting; the rest grows with the
// cells' boundaries inside of each other. The order is deterministic.
std::vector<SharedCell> ShareCells(const TensorCells& cut, absl::Span<const int> cells);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_SHARED_CELLS_H_
