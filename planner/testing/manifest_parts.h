#ifndef HEADRACE_PLANNER_TESTING_MANIFEST_PARTS_H_
#define HEADRACE_PLANNER_TESTING_MANIFEST_PARTS_H_

// Test only. Short spellings of a manifest's parts.

#include <string>
#include <utility>
#include <vector>

#include "planner/manifest.h"

namespace headrace {

inline Piece PieceOf(std::string tensor, Extents tensor_offset, Extents shape, Extents buffer_offset) {
  Piece p;
  p.tensor = std::move(tensor);
  p.tensor_offset = std::move(tensor_offset);
  p.shape = std::move(shape);
  p.buffer_offset = std::move(buffer_offset);
  return p;
}

inline Piece ViewPiece(std::string tensor, Extents view, Extents tensor_offset, Extents shape, Extents buffer_offset) {
  Piece p = PieceOf(std::move(tensor), std::move(tensor_offset), std::move(shape), std::move(buffer_offset));
  p.view = std::move(view);
  return p;
}

inline Piece FillOf(PieceKind kind, Extents shape, Extents buffer_offset) {
  Piece p;
  p.kind = kind;
  p.shape = std::move(shape);
  p.buffer_offset = std::move(buffer_offset);
  return p;
}

// Row-major.
inline Buffer BufferOf(int64_t rank, std::string name, Dtype dtype, Extents shape, std::vector<Piece> pieces) {
  Buffer b;
  b.rank = rank;
  b.name = std::move(name);
  b.dtype = dtype;
  b.strides = RowMajorStrides(shape);
  b.shape = std::move(shape);
  b.pieces = std::move(pieces);
  return b;
}

// A buffer that is a whole tensor, under the tensor's name.
inline Buffer WholeBuffer(int64_t rank, const TensorSpec& t) {
  const Extents origin(t.shape.size(), 0);
  return BufferOf(rank, t.name, t.dtype, t.shape, {PieceOf(t.name, origin, t.shape, origin)});
}

// Each tensor whole on source rank 0 and destination rank 0.
inline Manifest WholeManifest(std::vector<TensorSpec> tensors) {
  Manifest m;
  for (const TensorSpec& t : tensors) {
    m.source.push_back(WholeBuffer(0, t));
    m.destination.push_back(WholeBuffer(0, t));
  }
  m.tensors = std::move(tensors);
  return m;
}

}  // namespace headrace

#endif  // HEADRACE_PLANNER_TESTING_MANIFEST_PARTS_H_
