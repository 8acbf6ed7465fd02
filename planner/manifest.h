#ifndef HEADRACE_PLANNER_MANIFEST_H_
#define HEADRACE_PLANNER_MANIFEST_H_

// The boundary between adapters and planner: every buffer and piece of both sides and the topology. Pure data, no
// addresses. docs/manifest.md describes the JSON form field by field; manifest_json.h reads and writes it.
//
// All shapes, offsets and strides count elements, in 64-bit signed numbers. A Manifest that came from
// ParseManifest or that Validate accepted keeps the invariants stated beside each field.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/dtype.h"

namespace headrace {

using Index = int64_t;
using Extents = std::vector<Index>;

// A logical weight under its checkpoint name, with its global shape and the dtype that travels.
struct TensorSpec {
  std::string name;  // unique
  Extents shape;     // each >= 0; the product of extents and bytes is below 2^63
  Dtype dtype = Dtype::kBF16;
};

enum class PieceKind {
  kTensor,  // a box of a tensor
  kZero,    // padding that is zero after each generation (destinations only)
  kKeep,    // elements that are never written (destination) or not offered (source)
};

// A box laid at a place in a buffer. Axes of the *box* are the tensor's axes (or the view's, where one is given);
// for kZero and kKeep they are the buffer's.
struct Piece {
  PieceKind kind = PieceKind::kTensor;
  std::string tensor;           // kTensor only
  Extents tensor_offset;        // kTensor only: along the box's axes
  Extents shape;                // along the box's axes; as many as the buffer has
  Extents buffer_offset;        // along the buffer's axes
  std::vector<int> axes;        // axes[i] = the buffer axis along which box axis i runs; empty = same order
  std::optional<Extents> view;  // a row-major reshape of the tensor whose axes the box counts in
};

struct Storage {
  std::string id;  // same rank and id: same memory
  Index offset_bytes = 0;
};

// Memory on one rank.
struct Buffer {
  int64_t rank = 0;
  std::string name;  // unique within (side, rank)
  Dtype dtype = Dtype::kBF16;
  Extents shape;
  Extents strides;  // same length as shape; row-major when the manifest gave none. >= 0; 0 only in sources
  std::vector<Piece> pieces;
  std::optional<Storage> storage;
  std::optional<std::string> alias_of;  // another buffer of the same rank; then there are no pieces
  bool convert_rne = false;             // sources only: the publisher converts to the tensor's dtype
};

struct Placement {
  int64_t rank = 0;
  std::string host;    // "" = the one host
  std::string domain;  // network or NVLink domain; "" = the host
  std::string engine;  // destinations only; "" = the one engine
};

struct Topology {
  std::vector<Placement> source;
  std::vector<Placement> destination;
};

// A weight and its block scales, which travel and land together.
struct Coupling {
  std::string weight;
  std::string scale;
  Extents block;  // along the weight's axes; the scale's shape is ceil(weight shape / block)
};

struct Manifest {
  std::vector<TensorSpec> tensors;  // the order is part of the manifest
  std::vector<Buffer> source;
  std::vector<Buffer> destination;
  Topology topology;
  std::vector<std::string> ignore;  // tensors that may be offered without being wanted
  std::vector<Coupling> coupled;
};

// Row-major strides of a shape; extents below 1 count as 1. Strides past 2^63 - 1 (of an empty shape, or of one that
// Validate refuses) are 2^63 - 1.
Extents RowMajorStrides(const Extents& shape);

// a + b, both >= 0, or 2^63 - 1 where that is less: for sums over buffers, which have no limit of their own.
Index SaturatedSum(Index a, Index b);

// Elements between a buffer's first element and one past its last, gaps included (0 for an empty buffer): the
// length of the memory that the buffer spans.
Index SpanElements(const Buffer& buffer);
// The same in bytes, in the given dtype (a source's snapshot holds the tensor's dtype, not the buffer's).
Index SpanBytes(const Buffer& buffer, Dtype dtype);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MANIFEST_H_
