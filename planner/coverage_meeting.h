#ifndef HEADRACE_PLANNER_COVERAGE_MEETING_H_
#define HEADRACE_PLANNER_COVERAGE_MEETING_H_

// Part of the coverage proof (coverage.h): whether sets of points that are written down as loops share a point.
//
// A set is a product of one progression per axis. Two bytes out of each 8, in 3 rows that lie 100 apart, from 4 on:
//
//   one axis:  first 4, terms (step 1, extent 2), (step 8, extent n), (step 100, extent 3)
//
// Each axis is counted in a mixed radix made of the sets' own steps, in which a set is a box of digits, or a few boxes
// where it carries from one digit into the next. Boxes are compared by cutting space until they fall apart.
//
// Cost: with n boxes about n log n for boxes that tile a space; the extents do not matter. Steps of which neither
// divides the other (8 and 100 above) share no radix: one of them is then written out, point by point of its extent.

#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace {

struct Term {
  Index step = 0;    // >= 1
  Index extent = 0;  // >= 1
};

// { first + the sum of step[k] * j[k] : 0 <= j[k] < extent[k] }, first >= 0, all below 2^63. Terms in any order.
struct Progression {
  Index first = 0;
  absl::InlinedVector<Term, 2> terms;
};

using PointSet = absl::InlinedVector<Progression, 3>;  // one per axis

struct Meeting {
  size_t one = 0, other = 0;  // indices of sets; the same one when it holds a point twice
  Extents at;                 // the point, one coordinate per axis
};

// The most boxes of one search, and the most parts into which the proof cuts the copies of one buffer.
inline constexpr Index kMaxProofParts = Index{1} << 24;

// A point that two of the sets hold, or one of them twice; nullopt when there is none. All sets have the same number of
// axes; without axes each is one point, the same. kOutOfMemory past kMaxProofParts boxes.
absl::StatusOr<std::optional<Meeting>> FindMeeting(absl::Span<const PointSet> sets);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COVERAGE_MEETING_H_
