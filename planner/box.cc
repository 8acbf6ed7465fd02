#include "planner/box.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

// A boundary of `candidate` strictly inside `box`: (axis, position).
std::optional<std::pair<size_t, Index>> Boundary(const Box& box, const Box& candidate) {
  for (size_t i = 0; i < box.start.size(); ++i) {
    const Index begin = box.start[i], end = begin + box.extent[i];
    for (Index cut : {candidate.start[i], candidate.start[i] + candidate.extent[i]}) {
      if (begin < cut && cut < end) return std::make_pair(i, cut);
    }
  }
  return std::nullopt;
}

void PartitionInto(const Box& box, absl::Span<const Box> candidates, absl::Span<const int> near,
                   const std::function<void(const Box&, absl::Span<const int>)>& cell) {
  std::vector<int> touching;
  std::vector<int> partial;  // those that have a boundary inside the box
  for (int c : near) {
    if (!Intersection(box, candidates[c])) continue;
    touching.push_back(c);
    if (!Contains(candidates[c], box)) partial.push_back(c);
  }
  if (partial.empty()) return cell(box, touching);
  // The middle candidate: boxes come sorted by position, so halving keeps the recursion shallow.
  auto [axis, cut] = *Boundary(box, candidates[partial[partial.size() / 2]]);
  Box low = box, high = box;
  low.extent[axis] = cut - box.start[axis];
  high.start[axis] = cut;
  high.extent[axis] = box.extent[axis] - low.extent[axis];
  PartitionInto(low, candidates, touching, cell);
  PartitionInto(high, candidates, touching, cell);
}

// Joins `next` to `box` when together they are a box.
bool Join(Box* box, const Box& next) {
  int axis = -1;
  for (size_t i = 0; i < box->start.size(); ++i) {
    if (box->start[i] == next.start[i] && box->extent[i] == next.extent[i]) continue;
    if (axis >= 0 || box->start[i] + box->extent[i] != next.start[i]) return false;
    axis = static_cast<int>(i);
  }
  if (axis < 0) return false;
  box->extent[axis] += next.extent[axis];
  return true;
}

}  // namespace

Box WholeBox(const Extents& shape) { return Box{Coords(shape.size(), 0), Coords(shape.begin(), shape.end())}; }

Index Volume(const Box& box) {
  if (std::find(box.extent.begin(), box.extent.end(), 0) != box.extent.end()) return 0;  // however long the others
  Index volume = 1;
  for (Index e : box.extent) volume *= e;
  return volume;
}

std::optional<Box> Intersection(const Box& a, const Box& b) {
  Box out = a;
  for (size_t i = 0; i < a.start.size(); ++i) {
    const Index begin = std::max(a.start[i], b.start[i]);
    const Index end = std::min(a.start[i] + a.extent[i], b.start[i] + b.extent[i]);
    if (begin >= end) return std::nullopt;
    out.start[i] = begin;
    out.extent[i] = end - begin;
  }
  return out;
}

bool Contains(const Box& outer, const Box& inner) {
  for (size_t i = 0; i < outer.start.size(); ++i) {
    if (inner.start[i] < outer.start[i]) return false;
    if (inner.start[i] + inner.extent[i] > outer.start[i] + outer.extent[i]) return false;
  }
  return true;
}

void AppendJoined(Box box, std::vector<Box>* boxes) {
  boxes->push_back(std::move(box));
  while (boxes->size() > 1 && Join(&(*boxes)[boxes->size() - 2], boxes->back())) boxes->pop_back();
}

std::string ToString(const Box& box) {
  std::string out = "[";
  for (size_t i = 0; i < box.start.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ", ", box.start[i], ":", box.start[i] + box.extent[i]);
  }
  return out + "]";
}

void Partition(const Box& box, absl::Span<const Box> candidates,
               const std::function<void(const Box& cell, absl::Span<const int> holders)>& cell) {
  if (Volume(box) == 0) return;
  std::vector<int> all(candidates.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  PartitionInto(box, candidates, all, cell);
}

}  // namespace headrace
