#ifndef HEADRACE_PLANNER_LAYOUT_BLOCK_SCALES_H_
#define HEADRACE_PLANNER_LAYOUT_BLOCK_SCALES_H_

// Weights with one scale per block of elements (FP8 128 x 128, MX 1 x 32), cut so that a block stays with its scale.
//
// The scale's extent along an axis is ceil(length / block); the last block may be a partial one. A rank's part of the
// scale is that of the weight, counted in blocks: the same expression, with BlocksOf of the weight's segments. Coupling
// in manifest.h says which scale is whose. Pure and thread-safe; all numbers count along one axis.

#include "absl/status/statusor.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

// Part number `part` of `length` elements, where blocks are dealt out by `rule` and stay whole.
//   300 elements, block 128, 2 parts, kCeil: {0, 256} {256, 44}
//   invalid_option  a block or parts below 1, a part outside [0, parts), a negative length
absl::StatusOr<Segment> BlockChunkOf(Index length, Index block, Index parts, Index part, ChunkRule rule);

// The blocks that the segments (ascending) of `length` elements hold, for the scale of what they cut.
//   300 elements, block 128: {256, 44} -> {2, 1}
//   invalid_option    a block below 1
//   out_of_bounds     a segment outside of the length
//   misaligned_block  a segment that begins inside a block, or ends inside one that is not the last
absl::StatusOr<Segments> BlocksOf(const Segments& segments, Index length, Index block);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_BLOCK_SCALES_H_
