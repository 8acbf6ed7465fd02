#ifndef HEADRACE_PLANNER_LAYOUT_PLACEMENT_H_
#define HEADRACE_PLANNER_LAYOUT_PLACEMENT_H_

// From (tensor, mesh, placements) to what one rank holds, with the meaning of torch.distributed.tensor: FSDP2, HSDP,
// tensor parallelism and their combinations.
//
// One placement per mesh dimension, applied from left to right, each to what the ones before it left:
//
//   def local(x, mesh, placements, coordinate):              # x: the whole tensor, a numpy array
//     for parts, placement, part in zip(mesh, placements, coordinate):
//       match placement:
//         case Shard(a):           x = chunk(x, parts, a)[part]
//         case StridedShard(a, f): x = concatenate([chunk(y, parts, a)[part] for y in chunk(x, f, a)], a)
//         case Replicate():        pass
//     return x
//
// where chunk follows the placement's ChunkRule and gives empty arrays once nothing is left.
//
//   FSDP over 4 ranks, 50 rows       mesh {4}     [Shard(0)]                        13, 13, 13, 11 rows
//   HSDP                             mesh {2, 2}  [Replicate, Shard(0)]
//   FSDP over row-wise TP            mesh {2, 2}  [Shard(0), Shard(1)]
//   FSDP over column-wise TP         mesh {2, 2}  [StridedShard(0, 2), Shard(0)]    TP cuts first, FSDP cuts each cut:
//     38 rows: coordinates (0,0) (0,1) (1,0) (1,1) hold 10, 10, 9, 9 rows from 0, 19, 10, 29
//
// Pure and thread-safe. Extents, offsets and counts are in elements.

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

// A grid of ranks. Rank r has the row-major coordinate of r, as numpy.arange(size).reshape(extents) has it.
struct Mesh {
  Extents extents;                 // each >= 1; the product is below 2^63
  std::vector<std::string> names;  // for messages: empty, or one per extent ("dp", "tp")
};

struct Shard {
  int axis = 0;
  ChunkRule rule = ChunkRule::kCeil;
};

// torch's _StridedShard: a shard of a tensor that a mesh dimension further right has already cut into split_factor.
struct StridedShard {
  int axis = 0;
  Index split_factor = 1;  // >= 1; 1 is a Shard
  ChunkRule rule = ChunkRule::kCeil;
};

struct Replicate {};

// What one mesh dimension does to a tensor. (manifest.h's Placement says where a rank runs.)
using MeshPlacement = std::variant<Shard, StridedShard, Replicate>;

// The number of ranks.
//   invalid_option  an extent below 1
//   shape_mismatch  names that are not one per extent
//   out_of_bounds   the product reaches 2^63
absl::StatusOr<Index> MeshSize(const Mesh& mesh);

// The coordinate of a rank, one number per mesh dimension. Mesh {2, 3}: rank 4 is at {1, 1}.
//   what MeshSize refuses; out_of_bounds when rank is not in [0, size)
absl::StatusOr<Extents> MeshCoordinate(const Mesh& mesh, Index rank);

// What the rank at `coordinate` holds of a tensor of the given shape: its indices along each axis, in local order. The
// local tensor is the product: numpy's x[np.ix_(*segments)]. A rank that holds nothing of an axis has an empty list.
//   what MeshSize refuses
//   shape_mismatch  not one placement or coordinate per mesh dimension; an axis that the shape does not have
//   out_of_bounds   a negative extent; a coordinate outside the mesh
//   invalid_option  a split factor below 1
absl::StatusOr<std::vector<Segments>> LocalSegments(const Extents& shape, const Mesh& mesh,
                                                    const std::vector<MeshPlacement>& placements,
                                                    const Extents& coordinate);

// A box of a buffer's index space and the pieces that fill it. Without pieces when an extent is 0.
struct LocalPieces {
  Extents shape;
  std::vector<Piece> pieces;
};

// The product of one segment list per axis as boxes of `tensor`, laid from `buffer_offset` on (empty: from the
// buffer's first element) in a buffer with the tensor's axes. As many pieces as the product of the lists' lengths,
// row-major; with canonical lists no two of them could be joined to one box.
//   rows {0, 2} {4, 1}, columns {3, 5}:
//     tensor [0, 3] shape [2, 5] at [0, 0];  tensor [4, 3] shape [1, 5] at [2, 0];  local shape [3, 5]
// No axes (a scalar): one piece without axes.
//   shape_mismatch  a buffer_offset that has not one number per axis
//   out_of_bounds   a negative buffer_offset
absl::StatusOr<LocalPieces> PiecesOf(absl::string_view tensor, const std::vector<Segments>& segments,
                                     const Extents& buffer_offset = {});

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_PLACEMENT_H_
