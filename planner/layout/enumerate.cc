#include "planner/layout/enumerate.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace headrace {
namespace {

template <typename T>
T Valid(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::cerr << value.status() << "\n";
    std::abort();
  }
  return *std::move(value);
}

struct PlacementName {
  static absl::string_view Rule(ChunkRule rule) { return rule == ChunkRule::kCeil ? "ceil" : "even"; }
  std::string operator()(const Shard& s) const { return absl::StrCat("Shard(", s.axis, ", ", Rule(s.rule), ")"); }
  std::string operator()(const StridedShard& s) const {
    return absl::StrCat("StridedShard(", s.axis, ", ", s.split_factor, ", ", Rule(s.rule), ")");
  }
  std::string operator()(const Replicate&) const { return "Replicate"; }
};

Buffer MakeBuffer(Index rank, const std::string& name, Dtype dtype, LocalPieces local) {
  Buffer buffer;
  buffer.rank = rank;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.strides = RowMajorStrides(local.shape);
  buffer.shape = std::move(local.shape);
  buffer.pieces = std::move(local.pieces);
  return buffer;
}

}  // namespace

std::string Describe(const Layout& layout) {
  return absl::StrCat("mesh ", absl::StrJoin(layout.mesh.extents, "x"), " [",
                      absl::StrJoin(layout.placements, ", ",
                                    [](std::string* out, const MeshPlacement& p) {
                                      absl::StrAppend(out, std::visit(PlacementName{}, p));
                                    }),
                      "]");
}

std::vector<Mesh> SmallMeshes(const SmallBounds& bounds) {
  std::vector<Mesh> meshes;
  for (Index a = 1; a <= bounds.max_ranks; ++a) meshes.push_back({{a}, {}});
  for (Index a = 1; a <= bounds.max_ranks; ++a) {
    for (Index b = 1; a * b <= bounds.max_ranks; ++b) meshes.push_back({{a, b}, {}});
  }
  return meshes;
}

std::vector<Extents> SmallShapes(const SmallBounds& bounds) {
  std::vector<Extents> shapes;
  std::vector<Extents> shorter = {{}};
  for (int axes = 1; axes <= bounds.max_axes; ++axes) {
    std::vector<Extents> longer;
    for (const Extents& shape : shorter) {
      for (Index length = 0; length <= bounds.max_length; ++length) {
        longer.push_back(shape);
        longer.back().push_back(length);
      }
    }
    shapes.insert(shapes.end(), longer.begin(), longer.end());
    shorter = std::move(longer);
  }
  return shapes;
}

std::vector<MeshPlacement> SmallPlacements(int axes, const SmallBounds& bounds) {
  std::vector<MeshPlacement> placements = {Replicate{}};
  for (int axis = 0; axis < axes; ++axis) {
    for (ChunkRule rule : {ChunkRule::kCeil, ChunkRule::kEven}) {
      placements.push_back(Shard{axis, rule});
      for (Index split = 2; split <= bounds.max_split_factor; ++split) {
        placements.push_back(StridedShard{axis, split, rule});
      }
    }
  }
  return placements;
}

void ForEachLayout(int axes, const SmallBounds& bounds, const std::function<void(const Layout&)>& visit) {
  const std::vector<MeshPlacement> placements = SmallPlacements(axes, bounds);
  for (const Mesh& mesh : SmallMeshes(bounds)) {
    for (const MeshPlacement& first : placements) {
      if (mesh.extents.size() == 1) {
        visit({mesh, {first}});
        continue;
      }
      for (const MeshPlacement& second : placements) visit({mesh, {first, second}});
    }
  }
}

std::vector<Layout> DistinctLayouts(const Extents& shape, const SmallBounds& bounds) {
  std::vector<Layout> layouts;
  std::set<std::vector<std::string>> seen;
  ForEachLayout(static_cast<int>(shape.size()), bounds, [&](const Layout& layout) {
    std::vector<std::string> parts;
    for (const std::vector<Segments>& rank : SegmentsOfRanks(shape, layout)) {
      std::string& part = parts.emplace_back();
      // A rank without elements is the same however long its other axes are.
      if (std::any_of(rank.begin(), rank.end(), [](const Segments& axis) { return axis.empty(); })) continue;
      for (const Segments& axis : rank) {
        for (const Segment& s : axis) absl::StrAppend(&part, s.first, "+", s.count, " ");
        absl::StrAppend(&part, "| ");
      }
    }
    std::sort(parts.begin(), parts.end());
    if (seen.insert(std::move(parts)).second) layouts.push_back(layout);
  });
  return layouts;
}

std::vector<std::vector<Segments>> SegmentsOfRanks(const Extents& shape, const Layout& layout) {
  std::vector<std::vector<Segments>> ranks(Valid(MeshSize(layout.mesh)));
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r] = Valid(LocalSegments(shape, layout.mesh, layout.placements,
                                   Valid(MeshCoordinate(layout.mesh, static_cast<Index>(r)))));
  }
  return ranks;
}

std::vector<Buffer> BuffersOf(const std::string& name, const TensorSpec& tensor, const Layout& layout) {
  std::vector<Buffer> buffers;
  for (const std::vector<Segments>& segments : SegmentsOfRanks(tensor.shape, layout)) {
    buffers.push_back(
        MakeBuffer(static_cast<Index>(buffers.size()), name, tensor.dtype, Valid(PiecesOf(tensor.name, segments))));
  }
  return buffers;
}

std::vector<Buffer> FusedBuffersOf(const std::string& name, const RowMap& map, const Extents& columns, Dtype dtype,
                                   const Layout& layout) {
  Extents shape = {Valid(RowCount(map))};
  shape.insert(shape.end(), columns.begin(), columns.end());
  std::vector<Buffer> buffers;
  for (const std::vector<Segments>& segments : SegmentsOfRanks(shape, layout)) {
    buffers.push_back(
        MakeBuffer(static_cast<Index>(buffers.size()), name, dtype, Valid(FusedPieces(map, 0, segments))));
  }
  return buffers;
}

std::vector<Interleaving> SmallInterleavings(const SmallBounds& bounds) {
  std::vector<Interleaving> all;
  for (Index q = 1; q <= bounds.max_group; ++q) {
    for (Index g = 1; g <= bounds.max_group; ++g) {
      for (Index d = 1; d <= bounds.max_group; ++d) all.push_back({q, g, d});
    }
  }
  return all;
}

RowMap RowsOf(const Interleaving& i) {
  return Valid(
      GroupInterleavedRows({{"q", i.query_heads * i.head_dim}, {"k", i.head_dim}, {"v", i.head_dim}}, i.groups));
}

std::vector<TensorSpec> TensorsOf(const Interleaving& i, const Extents& columns, Dtype dtype) {
  std::vector<TensorSpec> tensors = {{"q", {i.groups * i.query_heads * i.head_dim}, dtype},
                                     {"k", {i.groups * i.head_dim}, dtype},
                                     {"v", {i.groups * i.head_dim}, dtype}};
  for (TensorSpec& t : tensors) t.shape.insert(t.shape.end(), columns.begin(), columns.end());
  return tensors;
}

}  // namespace headrace
