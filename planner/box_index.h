#ifndef HEADRACE_PLANNER_BOX_INDEX_H_
#define HEADRACE_PLANNER_BOX_INDEX_H_

// Finds the boxes that may touch a box, without looking at all of them.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "planner/box.h"
#include "planner/manifest.h"

namespace headrace {

// Boxes sorted by their first flat element, with the furthest end of each prefix: those that may touch a flat range
// are a contiguous part of the list. `strides` are the row-major strides of the boxes' axes and outlive the index.
class BoxIndex {
 public:
  // box_of(i) is the i-th of `count` boxes, none of them empty.
  template <typename BoxOf>
  BoxIndex(size_t count, const Extents& strides, BoxOf&& box_of) : strides_(strides) {
    for (size_t i = 0; i < count; ++i) spans_.push_back({Begin(box_of(i)), End(box_of(i)), static_cast<int>(i)});
    Seal();
  }

  // Indices of the boxes that may touch `box`, by position.
  std::vector<int> Near(const Box& box) const;

 private:
  struct FlatSpan {
    Index begin, end;
    int box;
  };
  Index Begin(const Box& box) const;
  Index End(const Box& box) const;
  void Seal();

  const Extents& strides_;
  std::vector<FlatSpan> spans_;
  std::vector<Index> furthest_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_BOX_INDEX_H_
