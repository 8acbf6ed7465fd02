#ifndef HEADRACE_PLANNER_LAYOUT_BLOCK_SCALES_H_
#define HEADRACE_PLANNER_LAYOUT_BLOCK_SCALES_H_

// Weights with one scale per block of elements (FP8 128 x 128, MX 1 x 32), cut so that a block stays with its scale.
//
// The scale's extent along an axis is ceil(length / block); the last block may be a partial one. A rank's part of the
// scale is that of the weight, counted in blocks. A ScaledArray goes through the expressions of piece_array.h with
// both:
//
//   Take(Scaled(w, &w_scale, {128, 128}), 0, BlockChunkOf(rows, 128, tp, rank, kCeil))
//
// Coupling in manifest.h says which scale is whose. Pure and thread-safe.

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/piece_array.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

// Along one axis: part number `part` of `length` elements, where blocks are dealt out by `rule` and stay whole.
//   300 elements, block 128, 2 parts, kCeil: {0, 256} {256, 44}
//   invalid_option  a block or parts below 1, a part outside [0, parts), a negative length
absl::StatusOr<Segment> BlockChunkOf(Index length, Index block, Index parts, Index part, ChunkRule rule);

// Along one axis: the blocks that the segments (in any order) of `length` elements hold, for the scale of what they
// cut.
//   300 elements, block 128: {256, 44} -> {2, 1}
//   invalid_option    a block below 1
//   out_of_bounds     a segment outside of the length
//   misaligned_block  a segment that begins inside a block, or ends inside one that is not the last
absl::StatusOr<Segments> BlocksOf(const Segments& segments, Index length, Index block);

// A weight and its scales, or a weight that has none. Every block lies in the weight as it does in its tensor: along
// each axis the blocks begin at multiples of `block`, so that only the last one can be a partial one.
struct ScaledArray {
  PieceArray weight;                // holds the first error of both
  std::optional<PieceArray> scale;  // as many axes as the weight
  Extents block;                    // along the weight's axes; each >= 1
};

// `scale` may be null: no scales, and cuts fall anywhere.
//   invalid_option  a block below 1
//   shape_mismatch  a scale whose shape is not ceil(weight / block)
//   what Whole refuses
ScaledArray Scaled(const TensorSpec& weight, const TensorSpec* scale, const Extents& block);

// The functions of piece_array.h on both. Beside what these refuse:
//   misaligned_block  Take: what BlocksOf refuses. Concatenate: an array before the last one that ends in a partial
//                     block, or arrays of different blocks, or of which only some have scales. Squeeze: an axis along
//                     which a block is longer than one
ScaledArray Take(const ScaledArray& array, int axis, const absl::StatusOr<Segments>& segments);
ScaledArray Take(const ScaledArray& array, int axis, Segment segment);
ScaledArray Concatenate(const std::vector<ScaledArray>& arrays, int axis);
ScaledArray Unsqueeze(const ScaledArray& array, int axis);
ScaledArray Squeeze(const ScaledArray& array, int axis);
ScaledArray Stack(const std::vector<ScaledArray>& arrays, int axis);
ScaledArray Transpose(const ScaledArray& array, const std::vector<int>& axes);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_BLOCK_SCALES_H_
