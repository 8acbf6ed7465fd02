#include "planner/layout/row_parts.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr Index kMaxSegments = Index{1} << 22;

absl::Status CheckGroups(const std::vector<RowPart>& parts, Index groups) {
  HR_RETURN_IF_ERROR(TotalRows(parts).status());
  for (const RowPart& part : parts) {
    if (groups >= 1 && part.units % groups == 0) continue;
    return Error(ErrorCode::kShapeMismatch, absl::StrCat(part.units, " units do not divide into ", groups,
                                                         " groups: each group has as many units of a part"));
  }
  if (!parts.empty() && groups > kMaxSegments / static_cast<Index>(parts.size())) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat(groups, " groups of ", parts.size(), " parts are more than ", kMaxSegments, " segments"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Index> TotalRows(const std::vector<RowPart>& parts) {
  Index total = 0;
  for (const RowPart& part : parts) {
    if (part.units < 1 || part.rows < 0) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat("a part of ", part.units, " units of ", part.rows,
                                                           " rows: give at least 1 unit, and no negative rows"));
    }
    Index rows = 0;
    if (__builtin_mul_overflow(part.units, part.rows, &rows) || __builtin_add_overflow(total, rows, &total)) {
      return Error(ErrorCode::kOutOfBounds, "the parts have 2^63 rows or more: check their sizes");
    }
  }
  return total;
}

absl::StatusOr<Segments> CutParts(const std::vector<RowPart>& parts, Index tp, Index rank) {
  HR_RETURN_IF_ERROR(TotalRows(parts).status());
  Segments mine;
  Index first = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    HR_ASSIGN_OR_RETURN(const Segment units, UnitsOf(parts[p].units, tp, rank, absl::StrCat("units of part ", p)));
    Append(mine, {first + units.first * parts[p].rows, units.count * parts[p].rows});
    first += parts[p].units * parts[p].rows;
  }
  return mine;
}

absl::StatusOr<Segments> ByGroups(const std::vector<RowPart>& parts, Index groups) {
  HR_RETURN_IF_ERROR(CheckGroups(parts, groups));
  Segments order;
  for (Index g = 0; g < groups; ++g) {
    Index first = 0;
    for (const RowPart& part : parts) {
      const Index per_group = part.units / groups * part.rows;
      Append(order, {first + g * per_group, per_group});
      first += part.units * part.rows;
    }
  }
  return order;
}

absl::StatusOr<Segments> ByParts(const std::vector<RowPart>& parts, Index groups, Segment mine) {
  HR_RETURN_IF_ERROR(CheckGroups(parts, groups));
  if (mine.first < 0 || mine.count < 0 || mine.first > groups || mine.count > groups - mine.first) {
    return Error(ErrorCode::kOutOfBounds, absl::StrCat("groups ", mine.first, " + ", mine.count, " of ", groups));
  }
  HR_ASSIGN_OR_RETURN(const Index rows, TotalRows(parts));
  Segments order;
  Index first = 0;  // of the part in a group
  for (const RowPart& part : parts) {
    const Index per_group = part.units / groups * part.rows;
    for (Index g = mine.first; g < mine.first + mine.count; ++g) {
      Append(order, {g * (rows / groups) + first, per_group});
    }
    first += per_group;
  }
  return order;
}

}  // namespace headrace
