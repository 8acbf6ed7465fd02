#ifndef HEADRACE_PLANNER_LAYOUT_FLAT_H_
#define HEADRACE_PLANNER_LAYOUT_FLAT_H_

// Flat shards: tensors (or a rank's tensor-parallel parts of them) written out one after the other, padded, and the
// whole dealt to the ranks in equal runs that cross rows and tensors.
//
//   FSDP1's FlatParameter, DeepSpeed ZeRO    FlatBucket(arrays, 1, ranks), then FlatShard(bucket, ranks, rank)
//   ZeRO 3, one tensor at a time             the same of one array
//   Megatron's distributed optimizer         FlatBucket(arrays, 64, lcm(dp, 128)); the arrays are the rank's TP parts
//     (https://github.com/NVIDIA/Megatron-LM, core/distributed/param_and_grad_buffer.py)
//
// As a buffer has as many axes as its pieces, a flat buffer has one, and holds each contiguous run of a tensor as a
// piece of the view [elements]. A whole tensor, or a part that is cut along its first axis alone, is one run; a part
// that is cut along another axis is a run per row. Pure and thread-safe.

#include <vector>

#include "planner/layout/piece_array.h"
#include "planner/manifest.h"

namespace headrace {

// numpy.ravel(array). Runs that continue each other are joined.
//   out_of_bounds  2^63 elements or more
//   out_of_memory  more than 2^22 runs (a transposed array has a run per element)
PieceArray Flatten(const PieceArray& array);

// The arrays, flattened, one after the other. Each begins at a multiple of `start_multiple`, and the bucket ends at a
// multiple of `end_multiple`; what is between is `padding`.
//
//   start_multiple 2, end_multiple 4, arrays of 3 and 4 elements: a0 a1 a2 - b0 b1 b2 b3
//                                                   5 and 1:     a0 a1 a2 a3 a4 - b0 -
//   what Flatten and PadToMultiple refuse
PieceArray FlatBucket(const std::vector<PieceArray>& arrays, Index start_multiple, Index end_multiple,
                      PieceKind padding = PieceKind::kKeep);

// Part number `part` of `parts` of a bucket, by ceil chunks: equal ones when the bucket's length is a multiple of
// `parts`.
//   shape_mismatch  an array that is not flat
//   invalid_option  parts below 1, a part outside [0, parts)
PieceArray FlatShard(const PieceArray& bucket, Index parts, Index part);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_FLAT_H_
