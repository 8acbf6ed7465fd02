#ifndef HEADRACE_PLANNER_LAYOUT_ENUMERATE_H_
#define HEADRACE_PLANNER_LAYOUT_ENUMERATE_H_

// Test only. Every small (shape, mesh, placements) of one side, so that a test can check each, or cross the layouts of
// a source with those of a destination. All functions need valid input and abort otherwise.

#include <functional>
#include <string>
#include <vector>

#include "planner/layout/placement.h"
#include "planner/layout/row_map.h"
#include "planner/manifest.h"

namespace headrace {

struct SmallBounds {
  Index max_ranks = 6;
  int max_axes = 3;
  Index max_length = 5;        // extents are 0 to max_length
  Index max_split_factor = 3;  // split factors are 2 to this (1 is Shard)
  Index max_group = 3;         // query heads per group, groups and head_dim are 1 to this
};

// One side's way of laying out a tensor.
struct Layout {
  Mesh mesh;
  std::vector<MeshPlacement> placements;
};

// "mesh 2x3 [StridedShard(0, 2, ceil), Replicate]".
std::string Describe(const Layout& layout);

// All meshes of one dimension and all of two whose sizes are at most max_ranks: 6 + 14 by default.
std::vector<Mesh> SmallMeshes(const SmallBounds& bounds = {});

// All shapes of 1 to max_axes axes: 6 + 36 + 216 by default.
std::vector<Extents> SmallShapes(const SmallBounds& bounds = {});

// What one mesh dimension can do to a tensor of that many axes: Replicate, and per axis and chunk rule Shard and
// StridedShard by each split factor. 1 + 6 * axes by default.
std::vector<MeshPlacement> SmallPlacements(int axes, const SmallBounds& bounds = {});

// Every mesh with every combination of placements: 728, 2444 and 5168 for 1, 2 and 3 axes by default.
void ForEachLayout(int axes, const SmallBounds& bounds, const std::function<void(const Layout&)>& visit);

// Layouts of `shape` of which no two hand out the same parts (counted, in any order of ranks): what a test needs that
// crosses two sides. The first layout of each kind stands for the others: about 200 of 5168 for three axes of 5,
// 1.6 million pairs over all of SmallShapes.
std::vector<Layout> DistinctLayouts(const Extents& shape, const SmallBounds& bounds = {});

// Per rank what it holds.
std::vector<std::vector<Segments>> SegmentsOfRanks(const Extents& shape, const Layout& layout);

// One buffer per rank (0 to mesh size - 1), called `name`, with the rank's part of `tensor`.
std::vector<Buffer> BuffersOf(const std::string& name, const TensorSpec& tensor, const Layout& layout);

// The same for a buffer fused along axis 0, whose other axes are `columns` long.
std::vector<Buffer> FusedBuffersOf(const std::string& name, const RowMap& map, const Extents& columns, Dtype dtype,
                                   const Layout& layout);

// Group-interleaved QKV: `groups` times (query_heads * head_dim rows of "q", head_dim of "k", head_dim of "v").
struct Interleaving {
  Index query_heads = 1;  // per group
  Index groups = 1;
  Index head_dim = 1;
};

// All of them: 27 by default.
std::vector<Interleaving> SmallInterleavings(const SmallBounds& bounds = {});

RowMap RowsOf(const Interleaving& interleaving);
// q, k and v with the given further extents.
std::vector<TensorSpec> TensorsOf(const Interleaving& interleaving, const Extents& columns, Dtype dtype);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_ENUMERATE_H_
