#ifndef HEADRACE_PLANNER_LAYOUT_ROW_MAP_H_
#define HEADRACE_PLANNER_LAYOUT_ROW_MAP_H_

// Buffers whose rows come from several tensors, or from none: fused projections and padded vocabularies.
//
// A row map lists the rows of a fused buffer in order. It is cut like any other axis, wherever the cut falls, and the
// other axes may be cut too. So each fused layout is a few lines on top of it:
//
//   Megatron's linear_qkv     LocalSegments on the shape of GroupInterleavedRows' map, then FusedPieces
//   a gate_up projection      CutRows on gate and on up, each on its own; the two results one after the other
//   an engine's qkv_proj      CutRows on q by its heads, on k and v by KvHeadsOf; the three one after the other
//   a padded vocabulary       the tensor's rows and then a run of padding, cut as a whole
//
// "Row" means index along the fused axis, which need not be axis 0. Pure and thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/layout/placement.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

// Rows first, ..., first + count - 1 of a tensor, or `count` rows of padding.
struct RowRun {
  PieceKind kind = PieceKind::kTensor;  // kZero or kKeep: padding, tensor and first mean nothing
  std::string tensor;
  Index first = 0;
  Index count = 0;  // >= 0

  friend bool operator==(const RowRun&, const RowRun&) = default;
};

using RowMap = std::vector<RowRun>;

// All rows of one tensor.
RowMap WholeRows(std::string tensor, Index rows);

// Padding: zero in a destination (kZero), not offered by a source (kKeep).
RowRun PaddingRows(PieceKind kind, Index rows);

// The rows of `tail` after those of `map`.
void AppendRows(RowMap& map, RowMap tail);

// A tensor of groups * rows rows that gives `rows` of them to each group.
struct GroupPart {
  std::string tensor;
  Index rows = 0;
};

// Per group the rows of each part in turn. Megatron's linear_qkv of `groups` KV heads with n query heads each:
// parts {q, n * head_dim}, {k, head_dim}, {v, head_dim}. In numpy:
//
//   np.concatenate([x.reshape(groups, -1, columns) for x in (q, k, v)], axis=1).reshape(-1, columns)
//
//   parts {q, 2} {k, 1} {v, 1}, 2 groups: q0 q1 k0 v0 q2 q3 k1 v1
//   out_of_bounds  a negative count; more than 2^63 - 1 rows
absl::StatusOr<RowMap> GroupInterleavedRows(const std::vector<GroupPart>& parts, Index groups);

// The number of rows.
//   out_of_bounds  a negative count or first, or more than 2^63 - 1 rows
absl::StatusOr<Index> RowCount(const RowMap& map);

// The rows at the given positions (canonical), runs that continue each other joined, no empty run.
//   q0 q1 k0 v0 q2 q3 k1 v1, positions {{1, 4}}: {q, 1, 1} {k, 0, 1} {v, 0, 1} {q, 2, 1}
//   what RowCount refuses; out_of_bounds for a position that is not in the map
absl::StatusOr<RowMap> CutRows(const RowMap& map, const Segments& positions);

// What a rank holds of a fused buffer, as pieces. `segments` is the product form of LocalSegments on the fused
// buffer's whole shape (the fused axis is RowCount(map) long); along the other axes the buffer, and every tensor in it,
// has the same indices. A run of padding is one piece however the other axes are cut.
//   what CutRows refuses; shape_mismatch for a fused axis that `segments` does not have
absl::StatusOr<LocalPieces> FusedPieces(const RowMap& map, int fused_axis, const std::vector<Segments>& segments);

// Which of `units` (heads, groups) a rank of a tensor-parallel engine holds, as vLLM and SGLang deal them out: with at
// least as many units as ranks an equal part, otherwise each unit on tp / units ranks in a row. `what` names the units
// in errors.
//   8 units over TP 2: {0, 4} {4, 4}     2 units over TP 4: {0, 1} {0, 1} {1, 1} {1, 1}
//   invalid_option  units or tp below 1, a rank outside [0, tp)
//   shape_mismatch  neither number divides the other
absl::StatusOr<Segment> UnitsOf(Index units, Index tp, Index rank, absl::string_view what);

// UnitsOf of KV heads.
absl::StatusOr<Segment> KvHeadsOf(Index kv_heads, Index tp, Index rank);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_ROW_MAP_H_
