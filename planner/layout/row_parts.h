#ifndef HEADRACE_PLANNER_LAYOUT_ROW_PARTS_H_
#define HEADRACE_PLANNER_LAYOUT_ROW_PARTS_H_

// Rows that are made of parts, each cut on its own over tensor-parallel ranks, and two orders of them.
//
// A part is `units` (heads, groups, single rows) of `rows` each. Its units are dealt out in equal numbers, or, where
// there are fewer units than ranks, each to several ranks in a row (UnitsOf in row_map.h). So one rule has:
//
//   attention qkv           {heads, head_dim} {kv_heads, head_dim} {kv_heads, head_dim}
//   gate and up             {intermediate, 1} {intermediate, 1}
//   Mamba2 in_proj          z {heads, head_dim}  x {heads, head_dim}  B {groups, state}  C {groups, state}  dt {heads,
//   1} Mamba2 conv1d           x B C;  A_log, D, dt_bias {heads, 1};  norm {heads, head_dim} gated delta net         q
//   {k_heads, k_dim}  k {k_heads, k_dim}  v {v_heads, v_dim}  z {v_heads, v_dim}
//                           b {v_heads, 1}  a {v_heads, 1};  conv1d q k v
//   MLA                     q_b {heads, nope + rope}  kv_b {heads, nope + v}
//
// The functions give segments for Take (piece_array.h) along the axis of all parts one after the other, whether these
// are one tensor or Concatenate made them of several. Pure and thread-safe.

#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/row_map.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

struct RowPart {
  Index units = 0;  // >= 1
  Index rows = 0;   // of one unit, >= 0
};

// The rows of all parts.
//   invalid_option  units below 1, negative rows
//   out_of_bounds   2^63 rows or more
absl::StatusOr<Index> TotalRows(const std::vector<RowPart>& parts);

// What a rank holds: its units of the first part, then of the second one, and so on. In numpy, where units divide:
//
//   np.concatenate([chunk(part, tp)[rank] for part in np.split(array, boundaries)])
//
//   parts {4, 2} {1, 3}, TP 2, rank 0: {0, 4} {8, 3}
//   what TotalRows and UnitsOf refuse
absl::StatusOr<Segments> CutParts(const std::vector<RowPart>& parts, Index tp, Index rank);

// From parts one after the other to group by group, each part's units / groups in turn:
//
//   np.concatenate([part.reshape(groups, -1, columns) for part in parts], axis=1).reshape(-1, columns)
//
// Megatron's linear_qkv of q, k, v by KV heads; Qwen3-Next's in_proj_qkvz and in_proj_ba of q, k, v, z (b, a) by key
// heads; two matrices in turns of 64 rows ({n / 64, 64} {n / 64, 64}, n / 64 groups).
//   parts {2, 2} {2, 1}, 2 groups: {0, 2} {4, 1} {2, 2} {5, 1}
//   what TotalRows refuses
//   shape_mismatch  groups that do not divide the units of a part
//   out_of_memory   more than 2^22 segments
absl::StatusOr<Segments> ByGroups(const std::vector<RowPart>& parts, Index groups);

// The inverse: from group by group to parts one after the other, of the groups from `mine.first` on.
//   parts {2, 2} {2, 1}, 2 groups, all of them: {0, 2} {3, 2} {2, 1} {5, 1}
//   what ByGroups refuses; out_of_bounds for groups that there are not
absl::StatusOr<Segments> ByParts(const std::vector<RowPart>& parts, Index groups, Segment mine);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_ROW_PARTS_H_
