#include "planner/shared_cells.h"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/box_index.h"

namespace headrace {

std::vector<SharedCell> ShareCells(const TensorCells& cut, absl::Span<const int> cells) {
  std::vector<SharedCell> distinct;
  std::map<std::pair<Coords, Coords>, size_t> known;
  for (int c : cells) {
    const Cell& cell = cut.cells[c];
    const auto [it, fresh] = known.try_emplace({cell.box.start, cell.box.extent}, distinct.size());
    if (fresh) distinct.push_back({cell.box, {}, cell.sources});
    distinct[it->second].destinations.push_back(cell.destination_box);
  }
  const BoxIndex index(distinct.size(), cut.axis_strides, [&](size_t i) -> const Box& { return distinct[i].box; });
  std::vector<SharedCell> out;
  for (size_t i = 0; i < distinct.size(); ++i) {
    const std::vector<int> near = index.Near(distinct[i].box);
    std::vector<Box> boxes;
    for (int n : near) boxes.push_back(distinct[n].box);
    Partition(distinct[i].box, boxes, [&](const Box& part, absl::Span<const int> holders) {
      // A part that several boxes hold is the first one's. All of them have the same sources, since a source that holds
      // a part of a cell holds the cell.
      SharedCell cell{part, {}, distinct[i].sources};
      for (int h : holders) {
        if (static_cast<size_t>(near[h]) < i) return;
        const auto& wanted = distinct[near[h]].destinations;
        cell.destinations.insert(cell.destinations.end(), wanted.begin(), wanted.end());
      }
      std::sort(cell.destinations.begin(), cell.destinations.end());
      out.push_back(std::move(cell));
    });
  }
  return out;
}

}  // namespace headrace
