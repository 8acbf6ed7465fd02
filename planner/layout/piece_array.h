#ifndef HEADRACE_PLANNER_LAYOUT_PIECE_ARRAY_H_
#define HEADRACE_PLANNER_LAYOUT_PIECE_ARRAY_H_

// Layouts as array expressions: what a framework does to tensors, done to pieces instead of elements.
//
// A PieceArray stands for a row-major array whose elements are elements of tensors or padding. It starts as a whole
// tensor and is cut, joined, turned and padded by functions with numpy's meaning; ToBuffer makes a manifest's buffer of
// the result. Work and memory are in proportion to the pieces, never to the elements. docs/layouts.md has the layouts
// of frameworks as such expressions. For instance rank 1 of 2 of an engine's stacked w13 of two experts:
//
//   stack([concatenate([w1[e][2:4], w3[e][2:4]]) for e in (0, 1)])           w1, w3: [4, K]
//
//   gate = Take(Stack({Whole(w1[0]), Whole(w1[1])}, 0), 1, {{2, 2}})         [2, 2, K]
//   up   = Take(Stack({Whole(w3[0]), Whole(w3[1])}, 0), 1, {{2, 2}})
//   ToBuffer(rank, "w13_weight", dtype, Concatenate({gate, up}, 1))          [2, 4, K]: 4 pieces
//
// A buffer's shape is a way to count its memory: [I, 2, K] is the same memory as [2 * I, K]. Where a layout is a box in
// the first form (rows of two tensors in turn) and a piece per row in the second one, these functions give the first.
//
// An error stays in the array, and every function of a failed array fails the same way, so that expressions need no
// checks between; ToBuffer returns it. Pure and thread-safe. Shapes, offsets and lengths count elements.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/dtype.h"
#include "planner/layout/placement.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

// A piece of which nothing is left out: `axes` has all axes, and a tensor's piece has its `view`. Fills have axes too.
struct ArrayPart {
  Piece piece;           // no extent is 0; buffer_offset runs along the array's axes
  Extents tensor_shape;  // kTensor only
};

struct PieceArray {
  absl::Status status;           // not OK: shape and parts mean nothing
  Extents shape;                 // each >= 0
  std::vector<ArrayPart> parts;  // disjoint boxes of the array that together are all of it
};

// The tensor itself. With `view`: numpy's tensor.reshape(view).
//   out_of_bounds   a negative extent, a product past 2^63 - 1
//   shape_mismatch  a view of another number of elements
PieceArray Whole(const TensorSpec& tensor);
PieceArray Whole(const TensorSpec& tensor, const Extents& view);

// An array of padding: kZero or kKeep, see manifest.h.
//   invalid_option  kTensor
//   out_of_bounds   a negative extent
PieceArray Padding(PieceKind kind, const Extents& shape);

// numpy.take(array, indices, axis), where the indices are those of the segments, one segment after the other: in any
// order, also repeated.
//   shape_mismatch  no such axis
//   out_of_bounds   an index that the axis does not have
//   what `segments` holds, when that is an error
PieceArray Take(const PieceArray& array, int axis, const absl::StatusOr<Segments>& segments);
// array[..., segment.first : segment.first + segment.count, ...]
PieceArray Take(const PieceArray& array, int axis, Segment segment);

// numpy.concatenate(arrays, axis).
//   shape_mismatch  no arrays; no such axis; arrays that differ in another axis
//   out_of_bounds   an extent past 2^63 - 1
PieceArray Concatenate(const std::vector<PieceArray>& arrays, int axis);

// numpy.expand_dims(array, axis): an axis of one element before `axis`.
//   shape_mismatch  an axis that is not from 0 to the number of axes
PieceArray Unsqueeze(const PieceArray& array, int axis);

// numpy.squeeze(array, axis).
//   shape_mismatch  no such axis; an axis that is not of one element; elements that without it are no box of the tensor
//                   in any shape (a column of a matrix): keep the axis then, the memory is the same
PieceArray Squeeze(const PieceArray& array, int axis);

// numpy.stack(arrays, axis). Stack({gate, up}, 1) of two [I, K] is [I, 2, K]: rows of both in turn.
//   what Unsqueeze and Concatenate refuse
PieceArray Stack(const std::vector<PieceArray>& arrays, int axis);

// numpy.transpose(array, axes): axis i of the result is axis axes[i] of the array.
//   shape_mismatch  axes that are no permutation
PieceArray Transpose(const PieceArray& array, const std::vector<int>& axes);

// The array with padding behind it along `axis`, up to the next multiple of `multiple`. A vocabulary is padded and then
// cut, a kernel's shard cut and then padded.
//   invalid_option  a multiple below 1, kTensor
//   what Concatenate refuses
PieceArray PadToMultiple(const PieceArray& array, int axis, Index multiple, PieceKind kind);

// What the rank at `coordinate` holds of the array, by the meaning of torch's placements (placement.h).
//   what LocalSegments refuses
PieceArray LocalPart(const PieceArray& array, const Mesh& mesh, const std::vector<MeshPlacement>& placements,
                     const Extents& coordinate);

// The array as a row-major buffer, in the parts' order; what needs neither axes nor a view has none.
//   what the array holds, with the buffer's name before it
absl::StatusOr<Buffer> ToBuffer(int64_t rank, std::string name, Dtype dtype, const PieceArray& array);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_PIECE_ARRAY_H_
