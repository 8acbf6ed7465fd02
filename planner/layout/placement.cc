#include "planner/layout/placement.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

std::string DimensionName(const Mesh& mesh, size_t dimension) {
  if (mesh.names.empty()) return absl::StrCat("mesh dimension ", dimension);
  return absl::StrCat("mesh dimension ", dimension, " (", mesh.names[dimension], ")");
}

absl::Status CheckAxis(const Mesh& mesh, size_t dimension, int axis, size_t axes) {
  if (axis >= 0 && static_cast<size_t>(axis) < axes) return absl::OkStatus();
  return Error(ErrorCode::kShapeMismatch, absl::StrCat(DimensionName(mesh, dimension), " shards axis ", axis, " of ",
                                                       axes, ": count axes from 0, negative ones are not understood"));
}

}  // namespace

absl::StatusOr<Index> MeshSize(const Mesh& mesh) {
  if (!mesh.names.empty() && mesh.names.size() != mesh.extents.size()) {
    return Error(ErrorCode::kShapeMismatch, absl::StrCat("the mesh has ", mesh.extents.size(), " dimensions and ",
                                                         mesh.names.size(), " names: name all dimensions or none"));
  }
  Index size = 1;
  for (size_t d = 0; d < mesh.extents.size(); ++d) {
    if (mesh.extents[d] < 1) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat(DimensionName(mesh, d), " has extent ", mesh.extents[d],
                                                           ": give each dimension at least 1 rank"));
    }
    if (__builtin_mul_overflow(size, mesh.extents[d], &size)) {
      return Error(ErrorCode::kOutOfBounds, "the mesh has 2^63 ranks or more: check its extents");
    }
  }
  return size;
}

absl::StatusOr<Extents> MeshCoordinate(const Mesh& mesh, Index rank) {
  HR_ASSIGN_OR_RETURN(const Index size, MeshSize(mesh));
  if (rank < 0 || rank >= size) {
    return Error(ErrorCode::kOutOfBounds,
                 absl::StrCat("rank ", rank, " is not in the mesh: use a rank from 0 to ", size - 1));
  }
  Extents coordinate(mesh.extents.size());
  for (size_t d = mesh.extents.size(); d-- > 0; rank /= mesh.extents[d]) coordinate[d] = rank % mesh.extents[d];
  return coordinate;
}

absl::StatusOr<std::vector<Segments>> LocalSegments(const Extents& shape, const Mesh& mesh,
                                                    const std::vector<MeshPlacement>& placements,
                                                    const Extents& coordinate) {
  HR_RETURN_IF_ERROR(MeshSize(mesh).status());
  const size_t dimensions = mesh.extents.size();
  if (placements.size() != dimensions || coordinate.size() != dimensions) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat(placements.size(), " placements and ", coordinate.size(), " coordinates for a mesh of ",
                              dimensions, " dimensions: give one of each per mesh dimension"));
  }
  std::vector<Segments> held(shape.size());
  for (size_t a = 0; a < shape.size(); ++a) {
    if (shape[a] < 0) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat("axis ", a, " has the negative extent ", shape[a]));
    }
    Append(held[a], {0, shape[a]});
  }
  for (size_t d = 0; d < dimensions; ++d) {
    const Index parts = mesh.extents[d];
    const Index part = coordinate[d];
    if (part < 0 || part >= parts) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat("coordinate ", part, " along ", DimensionName(mesh, d),
                                                         " is not from 0 to ", parts - 1));
    }
    if (const auto* shard = std::get_if<Shard>(&placements[d])) {
      HR_RETURN_IF_ERROR(CheckAxis(mesh, d, shard->axis, shape.size()));
      Segments& axis = held[shard->axis];
      Segments mine;
      Append(mine, ChunkOf(CountOf(axis), parts, part, shard->rule));
      axis = Select(axis, mine);
    } else if (const auto* strided = std::get_if<StridedShard>(&placements[d])) {
      HR_RETURN_IF_ERROR(CheckAxis(mesh, d, strided->axis, shape.size()));
      if (strided->split_factor < 1) {
        return Error(ErrorCode::kInvalidOption,
                     absl::StrCat(DimensionName(mesh, d), " has split factor ", strided->split_factor,
                                  ": give the number of parts that the dimensions further right cut, at least 1"));
      }
      Segments& axis = held[strided->axis];
      axis = Select(axis, StridedChunkOf(CountOf(axis), parts, part, strided->split_factor, strided->rule));
    }
  }
  return held;
}

absl::StatusOr<LocalPieces> PiecesOf(absl::string_view tensor, const std::vector<Segments>& segments,
                                     const Extents& buffer_offset) {
  const size_t axes = segments.size();
  if (!buffer_offset.empty() && buffer_offset.size() != axes) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("tensor ", tensor, " is laid at an offset of ", buffer_offset.size(),
                              " axes in a buffer of ", axes, ": give one offset per axis"));
  }
  LocalPieces local;
  bool empty = false;
  for (const Segments& axis : segments) {
    local.shape.push_back(CountOf(axis));
    empty = empty || axis.empty();
  }
  for (size_t a = 0; a < buffer_offset.size(); ++a) {
    if (buffer_offset[a] < 0) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat("tensor ", tensor, " is laid at the negative offset ",
                                                         buffer_offset[a], " along axis ", a));
    }
  }
  if (empty) return local;
  Piece piece;
  piece.tensor = std::string(tensor);
  piece.buffer_offset = buffer_offset.empty() ? Extents(axes) : buffer_offset;
  for (const Segments& axis : segments) {
    piece.tensor_offset.push_back(axis[0].first);
    piece.shape.push_back(axis[0].count);
  }
  std::vector<size_t> at(axes);
  while (true) {  // an odometer over the product, the last axis fastest
    local.pieces.push_back(piece);
    size_t a = axes;
    for (; a-- > 0;) {
      piece.buffer_offset[a] += piece.shape[a];
      if (++at[a] == segments[a].size()) {
        at[a] = 0;
        piece.buffer_offset[a] -= local.shape[a];
      }
      piece.tensor_offset[a] = segments[a][at[a]].first;
      piece.shape[a] = segments[a][at[a]].count;
      if (at[a] != 0) break;
    }
    if (a == static_cast<size_t>(-1)) return local;
  }
}

}  // namespace headrace
