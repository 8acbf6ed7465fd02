#ifndef HEADRACE_PLANNER_LOWER_H_
#define HEADRACE_PLANNER_LOWER_H_

// From pieces to boxes on common axes.
//
// Pieces count in the tensor's axes or in a view of them (a row-major reshape: heads, groups, a flat run). To
// intersect two pieces both must be boxes on the same axes. CommonAxes is the coarsest row-major reshape of the tensor
// in which every axis of the tensor and of its views is a run of whole axes:
//
//   tensor [24, 2], view [6, 4, 2]   -> common axes [6, 4, 2]
//   tensor [5, 3],  view [15]        -> common axes [5, 3]
//
// A range of a coarse axis is up to 2k-1 boxes on its k fine axes: flat elements 4..10 of [5, 3] are row 1 from
// column 1, row 2, and row 3 up to column 2. Views whose boundaries do not divide each other ([6, 4] beside [4, 6])
// have no common reshape; the later one's pieces are then laid down run by run.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/box.h"
#include "planner/manifest.h"

namespace headrace {

// A box on the common axes of its tensor, laid affinely in a buffer: element x of the box lies `offset` +
// sum((x[i] - box.start[i]) * strides[i]) elements behind the buffer's first element.
struct PlacedBox {
  Box box;
  Index offset = 0;
  Coords strides;
  int buffer = 0;  // index into the side's list of buffers
};

class CommonAxes {
 public:
  // `shape` has no zero extent. Views have as many elements as the shape.
  CommonAxes(const Extents& shape, const std::vector<Extents>& views);

  const Extents& extents() const { return extents_; }

  // Boxes of a validated tensor piece of `buffer`, in row-major order; none when the piece is empty.
  // kOutOfMemory when a view without common axes would cut the piece into more than 2^22 boxes.
  absl::StatusOr<std::vector<PlacedBox>> Place(const TensorSpec& tensor, const Buffer& buffer, int buffer_index,
                                               const Piece& piece) const;

  // Row-major strides of the common axes, in elements of the tensor.
  const Extents& strides() const { return strides_; }

 private:
  Extents extents_;
  Extents strides_;
};

// A box on axes of the given row-major strides, as people count it: on the axes of `shape`, which has as many
// elements, "[0:1, 9:17]"; or, where it is no box there, by its flat elements, "elements 9:17 and 2 more such runs".
std::string DescribeBox(const Extents& shape, const Box& box, const Extents& strides);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LOWER_H_
