#ifndef HEADRACE_PLANNER_INTERSECT_H_
#define HEADRACE_PLANNER_INTERSECT_H_

// Which source can fill which part of which destination.
//
// The inputs are a validated manifest; the guarantee: the cells of one destination buffer are disjoint, together they
// are exactly its tensor pieces, and each cell lies wholly in one box of every source that is listed for it. Work
// grows with the boxes' boundaries, never with elements.

#include <vector>

#include "absl/status/statusor.h"
#include "planner/lower.h"
#include "planner/manifest.h"

namespace headrace {

// A box of one tensor that goes to one place, with every source box that holds it.
struct Cell {
  int tensor = 0;            // index into manifest.tensors
  Box box;                   // on the tensor's common axes
  int destination_box = 0;   // index into TensorCells::destination
  std::vector<int> sources;  // indices into TensorCells::source; not empty
};

// One tensor, cut.
struct TensorCells {
  Extents axes;          // the common axes
  Extents axis_strides;  // their row-major strides, in elements
  std::vector<PlacedBox> source;
  std::vector<PlacedBox> destination;
  std::vector<Cell> cells;  // in the order of destination boxes, then of position
};

struct PieceRef {
  int buffer = 0;  // index into the side's list of buffers
  int piece = 0;   // index into the buffer's pieces
};

// The pieces of both sides by tensor. Refers to a validated manifest, which outlives it.
class TensorPieces {
 public:
  explicit TensorPieces(const Manifest& manifest);

  // The boxes of one tensor (an index into manifest.tensors) on its common axes, sources in the order of buffers and
  // pieces; cells are left out. Everything is empty where the tensor is, or where it has no piece.
  // kOutOfMemory: see CommonAxes::Place.
  absl::StatusOr<TensorCells> Place(int tensor) const;

 private:
  const Manifest& manifest_;
  std::vector<std::vector<PieceRef>> offered_, wanted_;  // by tensor
};

// One entry per tensor, in the manifest's order (empty tensors have no cells).
//   kUncovered: a destination element is in no piece, or no source offers it. Names all tensors and unfilled buffers
//     (up to 300 names or 8 KiB of each), then the first places with their first missing boxes, and how many elements
//     are missing in all; also lists what is offered and unwanted.
//   kOutOfMemory: see CommonAxes::Place.
//   kUnwanted: a source offers elements that no destination wants, of a tensor that is not in `ignore`.
absl::StatusOr<std::vector<TensorCells>> Intersect(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_INTERSECT_H_
