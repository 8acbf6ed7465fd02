#ifndef HEADRACE_PLANNER_BOX_H_
#define HEADRACE_PLANNER_BOX_H_

// Boxes: products of half-open index ranges, one per axis, and how a set of boxes cuts another one.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace {

using Coords = absl::InlinedVector<Index, 6>;

// { x : start[i] <= x[i] < start[i] + extent[i] }. With zero axes: one point.
struct Box {
  Coords start;
  Coords extent;

  bool operator==(const Box&) const = default;
};

Box WholeBox(const Extents& shape);

// Elements of the box; the caller has checked that the product fits.
Index Volume(const Box& box);

// The common part; nullopt when it is empty.
std::optional<Box> Intersection(const Box& a, const Box& b);
bool Contains(const Box& outer, const Box& inner);

// Appends a box, joined to the last one where together they are a box, and that to the one before it.
void AppendJoined(Box box, std::vector<Box>* boxes);

// "[0:3, 4:8]"
std::string ToString(const Box& box);

// Cuts `box` into disjoint cells such that each candidate either holds a cell wholly or does not touch it, and calls
// `cell` for each with the indices of the candidates that hold it (ascending; empty where there are none). Cells
// together are exactly `box`. The number of cells grows with the candidates' boundaries inside the box, not with its
// elements; the order is deterministic. All boxes have the same number of axes.
void Partition(const Box& box, absl::Span<const Box> candidates,
               const std::function<void(const Box& cell, absl::Span<const int> holders)>& cell);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_BOX_H_
