#include "planner/layout/piece_array.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

PieceArray Failed(ErrorCode code, absl::string_view message) { return {Error(code, message), {}, {}}; }

std::string ShapeName(const Extents& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

bool IsEmpty(const Extents& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

// nullopt for a negative extent or a product past 2^63 - 1; an extent of 0 makes any product 0.
std::optional<Index> ElementsOf(const Extents& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](Index n) { return n < 0; })) return std::nullopt;
  if (IsEmpty(shape)) return 0;
  Index elements = 1;
  for (Index n : shape) {
    if (__builtin_mul_overflow(elements, n, &elements)) return std::nullopt;
  }
  return elements;
}

std::vector<int> SameOrder(size_t axes) {
  std::vector<int> order(axes);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

bool HasAxis(const PieceArray& array, int axis) { return axis >= 0 && static_cast<size_t>(axis) < array.shape.size(); }

PieceArray NoAxis(const PieceArray& array, int axis) {
  return Failed(ErrorCode::kShapeMismatch,
                absl::StrCat("no axis ", axis, " in an array ", ShapeName(array.shape), ": count axes from 0"));
}

// The axis of the part's box that runs along an axis of the array.
size_t BoxAxis(const Piece& piece, int axis) {
  return std::find(piece.axes.begin(), piece.axes.end(), axis) - piece.axes.begin();
}

// Takes out an axis of the view along which the box has one element. False where what is left is no box.
bool DropViewAxis(Piece& piece, size_t i) {
  Extents& view = *piece.view;
  if (i + 1 < view.size()) {  // into the next one
    piece.tensor_offset[i + 1] += piece.tensor_offset[i] * view[i + 1];
    view[i + 1] *= view[i];
  } else if (view[i] != 1) {
    if (i == 0 || piece.shape[i - 1] != 1) return false;
    piece.tensor_offset[i - 1] = piece.tensor_offset[i - 1] * view[i] + piece.tensor_offset[i];
    view[i - 1] *= view[i];
  }
  view.erase(view.begin() + i);
  piece.tensor_offset.erase(piece.tensor_offset.begin() + i);
  return true;
}

}  // namespace

PieceArray Whole(const TensorSpec& tensor) { return Whole(tensor, tensor.shape); }

PieceArray Whole(const TensorSpec& tensor, const Extents& view) {
  const std::optional<Index> elements = ElementsOf(tensor.shape);
  const std::optional<Index> viewed = ElementsOf(view);
  if (!elements || !viewed) {
    return Failed(ErrorCode::kOutOfBounds,
                  absl::StrCat("tensor ", tensor.name, " ", ShapeName(tensor.shape), " seen as ", ShapeName(view),
                               ": extents must not be negative and have a product below 2^63"));
  }
  if (*elements != *viewed) {
    return Failed(ErrorCode::kShapeMismatch,
                  absl::StrCat("tensor ", tensor.name, " ", ShapeName(tensor.shape), " has ", *elements,
                               " elements, seen as ", ShapeName(view), " ", *viewed));
  }
  PieceArray array{absl::OkStatus(), view, {}};
  if (*elements == 0) return array;
  ArrayPart& part = array.parts.emplace_back();
  part.tensor_shape = tensor.shape;
  part.piece.tensor = tensor.name;
  part.piece.tensor_offset = Extents(view.size());
  part.piece.shape = view;
  part.piece.buffer_offset = Extents(view.size());
  part.piece.axes = SameOrder(view.size());
  part.piece.view = view;
  return array;
}

PieceArray Padding(PieceKind kind, const Extents& shape) {
  if (kind == PieceKind::kTensor) return Failed(ErrorCode::kInvalidOption, "padding is zero or keep, not a tensor");
  if (std::any_of(shape.begin(), shape.end(), [](Index n) { return n < 0; })) {
    return Failed(ErrorCode::kOutOfBounds, absl::StrCat("padding ", ShapeName(shape), " has a negative extent"));
  }
  PieceArray array{absl::OkStatus(), shape, {}};
  if (IsEmpty(shape)) return array;
  ArrayPart& part = array.parts.emplace_back();
  part.piece.kind = kind;
  part.piece.shape = shape;
  part.piece.buffer_offset = Extents(shape.size());
  part.piece.axes = SameOrder(shape.size());
  return array;
}

PieceArray Take(const PieceArray& array, int axis, const absl::StatusOr<Segments>& segments) {
  if (!array.status.ok()) return array;
  if (!segments.ok()) return {segments.status(), {}, {}};
  if (!HasAxis(array, axis)) return NoAxis(array, axis);
  PieceArray taken{absl::OkStatus(), array.shape, {}};
  Index at = 0;  // elements taken so far
  for (const Segment& s : *segments) {
    if (s.first < 0 || s.count < 0 || s.first > array.shape[axis] || s.count > array.shape[axis] - s.first) {
      return Failed(ErrorCode::kOutOfBounds, absl::StrCat("elements ", s.first, " + ", s.count, " of axis ", axis,
                                                          " of an array ", ShapeName(array.shape)));
    }
    if (s.count == 0) continue;
    for (const ArrayPart& part : array.parts) {
      const size_t box_axis = BoxAxis(part.piece, axis);
      const Index begin = part.piece.buffer_offset[axis];
      const Index first = std::max(begin, s.first);
      const Index end = std::min(begin + part.piece.shape[box_axis], s.first + s.count);
      if (first >= end) continue;
      Piece& piece = taken.parts.emplace_back(part).piece;
      piece.shape[box_axis] = end - first;
      piece.buffer_offset[axis] = at + (first - s.first);
      if (piece.kind == PieceKind::kTensor) piece.tensor_offset[box_axis] += first - begin;
    }
    if (__builtin_add_overflow(at, s.count, &at)) {
      return Failed(ErrorCode::kOutOfBounds, "an axis of 2^63 elements or more: check the segments");
    }
  }
  taken.shape[axis] = at;
  if (IsEmpty(taken.shape)) taken.parts.clear();
  return taken;
}

PieceArray Take(const PieceArray& array, int axis, Segment segment) {
  return Take(array, axis, absl::StatusOr<Segments>(Segments{segment}));
}

PieceArray Concatenate(const std::vector<PieceArray>& arrays, int axis) {
  for (const PieceArray& array : arrays) {
    if (!array.status.ok()) return array;
  }
  if (arrays.empty()) return Failed(ErrorCode::kShapeMismatch, "no arrays to join: give at least one");
  if (!HasAxis(arrays[0], axis)) return NoAxis(arrays[0], axis);
  PieceArray joined{absl::OkStatus(), arrays[0].shape, {}};
  joined.shape[axis] = 0;
  for (const PieceArray& array : arrays) {
    Extents other = array.shape;
    if (other.size() == joined.shape.size()) other[axis] = joined.shape[axis];
    if (other != joined.shape) {
      return Failed(ErrorCode::kShapeMismatch,
                    absl::StrCat("arrays ", ShapeName(arrays[0].shape), " and ", ShapeName(array.shape),
                                 " cannot be joined along axis ", axis, ": all other extents must agree"));
    }
    for (const ArrayPart& part : array.parts) {
      joined.parts.push_back(part);
      joined.parts.back().piece.buffer_offset[axis] += joined.shape[axis];
    }
    if (__builtin_add_overflow(joined.shape[axis], array.shape[axis], &joined.shape[axis])) {
      return Failed(ErrorCode::kOutOfBounds, "an axis of 2^63 elements or more: check the arrays");
    }
  }
  return joined;
}

PieceArray Unsqueeze(const PieceArray& array, int axis) {
  if (!array.status.ok()) return array;
  if (axis < 0 || static_cast<size_t>(axis) > array.shape.size()) return NoAxis(array, axis);
  PieceArray result = array;
  result.shape.insert(result.shape.begin() + axis, 1);
  for (ArrayPart& part : result.parts) {
    Piece& p = part.piece;
    for (int& along : p.axes) along += along >= axis ? 1 : 0;
    // Where the new axis of one element stands in the view does not matter; here plain boxes stay plain.
    p.axes.insert(p.axes.begin() + axis, axis);
    p.shape.insert(p.shape.begin() + axis, 1);
    p.buffer_offset.insert(p.buffer_offset.begin() + axis, 0);
    if (p.kind != PieceKind::kTensor) continue;
    p.tensor_offset.insert(p.tensor_offset.begin() + axis, 0);
    p.view->insert(p.view->begin() + axis, 1);
  }
  return result;
}

PieceArray Squeeze(const PieceArray& array, int axis) {
  if (!array.status.ok()) return array;
  if (!HasAxis(array, axis)) return NoAxis(array, axis);
  if (array.shape[axis] != 1) {
    return Failed(ErrorCode::kShapeMismatch,
                  absl::StrCat("axis ", axis, " of an array ", ShapeName(array.shape), " has not one element"));
  }
  PieceArray result = array;
  result.shape.erase(result.shape.begin() + axis);
  for (ArrayPart& part : result.parts) {
    Piece& p = part.piece;
    const size_t i = BoxAxis(p, axis);
    if (p.kind == PieceKind::kTensor && !DropViewAxis(p, i)) {
      return Failed(ErrorCode::kShapeMismatch,
                    absl::StrCat("tensor ", p.tensor, " seen as ", ShapeName(*p.view), ": element ", p.tensor_offset[i],
                                 " along axis ", i, " is no box without that axis; keep it, the memory is the same"));
    }
    p.axes.erase(p.axes.begin() + i);
    p.shape.erase(p.shape.begin() + i);
    p.buffer_offset.erase(p.buffer_offset.begin() + axis);
    for (int& along : p.axes) along -= along > axis ? 1 : 0;
  }
  return result;
}

PieceArray Stack(const std::vector<PieceArray>& arrays, int axis) {
  std::vector<PieceArray> deeper;
  deeper.reserve(arrays.size());
  for (const PieceArray& array : arrays) deeper.push_back(Unsqueeze(array, axis));
  return Concatenate(deeper, axis);
}

PieceArray Transpose(const PieceArray& array, const std::vector<int>& axes) {
  if (!array.status.ok()) return array;
  if (axes.size() != array.shape.size() ||
      !std::is_permutation(axes.begin(), axes.end(), SameOrder(axes.size()).begin())) {
    return Failed(ErrorCode::kShapeMismatch,
                  absl::StrCat("axes [", absl::StrJoin(axes, ", "), "] are no order of the axes of an array ",
                               ShapeName(array.shape)));
  }
  PieceArray result = array;
  std::vector<int> now(axes.size());  // where an axis of the array goes
  for (size_t i = 0; i < axes.size(); ++i) {
    result.shape[i] = array.shape[axes[i]];
    now[axes[i]] = static_cast<int>(i);
  }
  for (size_t n = 0; n < result.parts.size(); ++n) {
    Piece& p = result.parts[n].piece;
    for (size_t i = 0; i < axes.size(); ++i) p.buffer_offset[i] = array.parts[n].piece.buffer_offset[axes[i]];
    for (int& along : p.axes) along = now[along];
  }
  return result;
}

PieceArray PadToMultiple(const PieceArray& array, int axis, Index multiple, PieceKind kind) {
  if (!array.status.ok()) return array;
  if (!HasAxis(array, axis)) return NoAxis(array, axis);
  if (multiple < 1) {
    return Failed(ErrorCode::kInvalidOption, absl::StrCat("padding to a multiple of ", multiple, ": give at least 1"));
  }
  Extents missing = array.shape;
  missing[axis] = (multiple - array.shape[axis] % multiple) % multiple;
  return Concatenate({array, Padding(kind, missing)}, axis);
}

PieceArray LocalPart(const PieceArray& array, const Mesh& mesh, const std::vector<MeshPlacement>& placements,
                     const Extents& coordinate) {
  if (!array.status.ok()) return array;
  const absl::StatusOr<std::vector<Segments>> held = LocalSegments(array.shape, mesh, placements, coordinate);
  if (!held.ok()) return {held.status(), {}, {}};
  PieceArray local = array;
  for (size_t a = 0; a < held->size(); ++a) local = Take(local, static_cast<int>(a), (*held)[a]);
  return local;
}

absl::StatusOr<Buffer> ToBuffer(int64_t rank, std::string name, Dtype dtype, const PieceArray& array) {
  if (!array.status.ok()) {
    return WithMessage(array.status, absl::StrCat("rank ", rank, ", buffer \"", name, "\": ", array.status.message()));
  }
  Buffer buffer;
  buffer.rank = rank;
  buffer.name = std::move(name);
  buffer.dtype = dtype;
  buffer.shape = array.shape;
  buffer.strides = RowMajorStrides(array.shape);
  buffer.pieces.reserve(array.parts.size());
  for (const ArrayPart& part : array.parts) {
    Piece& p = buffer.pieces.emplace_back(part.piece);
    if (p.kind != PieceKind::kTensor) {  // fills run along the buffer's axes
      for (size_t i = 0; i < p.axes.size(); ++i) p.shape[p.axes[i]] = part.piece.shape[i];
      p.axes.clear();
      continue;
    }
    if (std::is_sorted(p.axes.begin(), p.axes.end())) p.axes.clear();
    if (*p.view == part.tensor_shape) p.view.reset();
  }
  return buffer;
}

}  // namespace headrace
