#include "planner/box_index.h"

#include <algorithm>
#include <tuple>

namespace headrace {

Index BoxIndex::Begin(const Box& box) const {
  Index flat = 0;
  for (size_t i = 0; i < strides_.size(); ++i) flat += box.start[i] * strides_[i];
  return flat;
}

Index BoxIndex::End(const Box& box) const {
  Index flat = 1;
  for (size_t i = 0; i < strides_.size(); ++i) flat += (box.start[i] + box.extent[i] - 1) * strides_[i];
  return flat;
}

void BoxIndex::Seal() {
  std::sort(spans_.begin(), spans_.end(),
            [](const FlatSpan& a, const FlatSpan& b) { return std::tie(a.begin, a.box) < std::tie(b.begin, b.box); });
  Index furthest = 0;
  for (const FlatSpan& s : spans_) furthest_.push_back(furthest = std::max(furthest, s.end));
}

std::vector<int> BoxIndex::Near(const Box& box) const {
  const Index begin = Begin(box), end = End(box);
  std::vector<int> near;
  const size_t first = std::upper_bound(furthest_.begin(), furthest_.end(), begin) - furthest_.begin();
  for (size_t i = first; i < spans_.size() && spans_[i].begin < end; ++i) near.push_back(spans_[i].box);
  return near;
}

}  // namespace headrace
