#include "planner/layout/row_map.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Adds a run at the end, where it joins the last one if it continues it.
void AppendRun(RowMap& map, RowRun run) {
  if (run.count == 0) return;
  if (!map.empty() && map.back().kind == run.kind &&
      (run.kind != PieceKind::kTensor ||
       (map.back().tensor == run.tensor && map.back().first + map.back().count == run.first))) {
    map.back().count += run.count;
  } else {
    map.push_back(std::move(run));
  }
}

}  // namespace

RowMap WholeRows(std::string tensor, Index rows) { return {{PieceKind::kTensor, std::move(tensor), 0, rows}}; }

RowRun PaddingRows(PieceKind kind, Index rows) { return {kind, "", 0, rows}; }

void AppendRows(RowMap& map, RowMap tail) {
  map.insert(map.end(), std::make_move_iterator(tail.begin()), std::make_move_iterator(tail.end()));
}

absl::StatusOr<RowMap> GroupInterleavedRows(const std::vector<GroupPart>& parts, Index groups) {
  Index per_group = 0;
  for (const GroupPart& part : parts) {
    if (part.rows < 0 || __builtin_add_overflow(per_group, part.rows, &per_group)) {
      return Error(ErrorCode::kOutOfBounds,
                   absl::StrCat("tensor ", part.tensor, " gives ", part.rows, " rows to each group"));
    }
  }
  Index rows = 0;
  if (groups < 0 || __builtin_mul_overflow(per_group, groups, &rows)) {
    return Error(ErrorCode::kOutOfBounds, absl::StrCat(groups, " groups of ", per_group, " rows"));
  }
  RowMap map;
  if (rows == 0) return map;
  for (Index group = 0; group < groups; ++group) {
    for (const GroupPart& part : parts) {
      AppendRun(map, {PieceKind::kTensor, part.tensor, group * part.rows, part.rows});
    }
  }
  return map;
}

absl::StatusOr<Index> RowCount(const RowMap& map) {
  Index rows = 0;
  for (const RowRun& run : map) {
    Index end = 0;
    if (run.first < 0 || run.count < 0 || __builtin_add_overflow(run.first, run.count, &end) ||
        __builtin_add_overflow(rows, run.count, &rows)) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat("a fused buffer takes ", run.count, " rows from row ",
                                                         run.first, " on of tensor '", run.tensor, "'"));
    }
  }
  return rows;
}

absl::StatusOr<RowMap> CutRows(const RowMap& map, const Segments& positions) {
  HR_ASSIGN_OR_RETURN(const Index rows, RowCount(map));
  RowMap cut;
  size_t at = 0;
  Index before = 0;  // rows before map[at]
  for (Segment want : positions) {
    if (want.first < before || want.count < 0 || want.first > rows || want.count > rows - want.first) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat("rows ", want.first, " + ", want.count,
                                                         " of a fused buffer of ", rows, " rows, in ascending order"));
    }
    while (want.count > 0) {
      while (want.first >= before + map[at].count) before += map[at++].count;
      const Index skip = want.first - before;
      const Index count = std::min(want.count, map[at].count - skip);
      const bool tensor = map[at].kind == PieceKind::kTensor;
      AppendRun(cut, {map[at].kind, map[at].tensor, tensor ? map[at].first + skip : 0, count});
      want.first += count;
      want.count -= count;
    }
  }
  return cut;
}

absl::StatusOr<LocalPieces> FusedPieces(const RowMap& map, int fused_axis, const std::vector<Segments>& segments) {
  if (fused_axis < 0 || static_cast<size_t>(fused_axis) >= segments.size()) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("fused axis ", fused_axis, " of a buffer of ", segments.size(), " axes"));
  }
  HR_ASSIGN_OR_RETURN(const RowMap rows, CutRows(map, segments[fused_axis]));
  LocalPieces fused;
  for (const Segments& axis : segments) fused.shape.push_back(CountOf(axis));
  Extents offset(segments.size());
  for (const RowRun& run : rows) {
    std::vector<Segments> box = segments;
    if (run.kind != PieceKind::kTensor) {  // fills run along the buffer's axes
      for (size_t a = 0; a < box.size(); ++a) {
        box[a].clear();
        Append(box[a], {0, fused.shape[a]});
      }
    }
    box[fused_axis] = {{run.first, run.count}};
    HR_ASSIGN_OR_RETURN(LocalPieces part, PiecesOf(run.tensor, box, offset));
    for (Piece& piece : part.pieces) {
      if (run.kind != PieceKind::kTensor) {
        piece.kind = run.kind;
        piece.tensor_offset.clear();
      }
      fused.pieces.push_back(std::move(piece));
    }
    offset[fused_axis] += run.count;
  }
  return fused;
}

absl::StatusOr<Segment> UnitsOf(Index units, Index tp, Index rank, absl::string_view what) {
  if (units < 1 || tp < 1 || rank < 0 || rank >= tp) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("rank ", rank, " of TP ", tp, " with ", units, " ", what,
                                                         ": each must be at least 1, the rank below TP"));
  }
  if (units % tp == 0) return Segment{rank * (units / tp), units / tp};
  if (tp % units == 0) return Segment{rank / (tp / units), 1};
  return Error(ErrorCode::kShapeMismatch, absl::StrCat("TP ", tp, " and ", units, " ", what,
                                                       ": use a TP size that divides them, or that is a multiple of "
                                                       "them"));
}

absl::StatusOr<Segment> KvHeadsOf(Index kv_heads, Index tp, Index rank) {
  return UnitsOf(kv_heads, tp, rank, "KV heads");
}

}  // namespace headrace
