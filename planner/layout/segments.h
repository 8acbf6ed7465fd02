#ifndef HEADRACE_PLANNER_LAYOUT_SEGMENTS_H_
#define HEADRACE_PLANNER_LAYOUT_SEGMENTS_H_

// Runs of indices along one axis: what one rank holds of that axis, in the order in which it holds it.
//
// A layout is a product of such lists, one per axis, and never a list of elements: a rank's part of a
// [49152, 576] tensor is a handful of numbers. Pure and thread-safe; all numbers count indices of one axis.

#include <vector>

#include "planner/manifest.h"

namespace headrace {

// Indices first, first + 1, ..., first + count - 1.
struct Segment {
  Index first = 0;  // >= 0
  Index count = 0;  // >= 0

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Local index i is the i-th index of the segments written one after the other. Every list that this package makes is
// canonical: ascending, disjoint, no segment is empty, and no segment begins where the one before it ends.
// {{0, 2}, {3, 1}} holds indices 0, 1, 3. The empty list holds nothing.
using Segments = std::vector<Segment>;

// How a length that does not divide is dealt out to `parts` parts, in order.
enum class ChunkRule {
  // torch.chunk, torch.distributed.tensor.Shard: every part is ceil(length / parts) long until nothing is left.
  //   50 over 4: 13 13 13 11     5 over 4: 2 2 1 0     3 over 4: 1 1 1 0
  kCeil,
  // numpy.array_split, torch.tensor_split: the first length % parts parts are one longer than the others.
  //   50 over 4: 13 13 12 12     5 over 4: 2 1 1 1     3 over 4: 1 1 1 0
  kEven,
};

// Part number `part` of `length` indices. Empty parts come last and begin at `length`.
// Needs length >= 0, parts >= 1, 0 <= part < parts; cannot overflow.
Segment ChunkOf(Index length, Index parts, Index part, ChunkRule rule);

// What StridedShard leaves to part number `part`: the length is cut into `split_factor` pieces, each piece into `parts`
// parts, and part number `part` of every piece is kept. In numpy:
//
//   np.concatenate([chunk(piece, parts)[part] for piece in chunk(np.arange(length), split_factor)])
//
//   length 38, parts 2, split_factor 2:  part 0 = {0, 10} {19, 10}   part 1 = {10, 9} {29, 9}
//
// Needs split_factor >= 1 and what ChunkOf needs. Takes min(split_factor, length) steps.
Segments StridedChunkOf(Index length, Index parts, Index part, Index split_factor, ChunkRule rule);

// The number of indices held.
Index CountOf(const Segments& segments);

// Adds a segment at the end, where it joins the last one if it continues it. An empty segment adds nothing.
void Append(Segments& segments, Segment segment);

// The held indices at the given positions, in numpy: held[positions]. `positions` is canonical and stays below
// CountOf(held). One pass over both lists; the result is canonical.
//   held {{0, 10}, {19, 10}}, positions {{5, 10}}: {{5, 5}, {19, 5}}
Segments Select(const Segments& held, const Segments& positions);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_SEGMENTS_H_
