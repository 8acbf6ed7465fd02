#include "planner/replicas.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "planner/box.h"
#include "planner/box_index.h"
#include "planner/copy_nest.h"
#include "planner/intersect.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Indices into TensorCells::source, ascending, and their buffers.
using Holders = std::vector<int>;
// What is offered by the same buffers; the boxes by the source boxes that hold them, which come in the buffers' order.
using Groups = std::map<std::vector<int>, std::map<Holders, std::vector<Box>>>;

BoxIndex IndexOf(const std::vector<PlacedBox>& boxes, const Extents& strides) {
  return BoxIndex(boxes.size(), strides, [&](size_t i) -> const Box& { return boxes[i].box; });
}

std::vector<Box> BoxesOf(const std::vector<PlacedBox>& placed, const std::vector<int>& which) {
  std::vector<Box> boxes;
  for (int i : which) boxes.push_back(placed[i].box);
  return boxes;
}

// Whether the rank holds anything of the tensor that somebody else, or it, a second time, holds too.
bool HasReplicas(const Manifest& m, const TensorCells& cut, const BoxIndex& by_source, int64_t rank) {
  for (size_t i = 0; i < cut.source.size(); ++i) {
    if (m.source[cut.source[i].buffer].rank != rank) continue;
    for (int other : by_source.Near(cut.source[i].box)) {
      if (other != static_cast<int>(i) && Intersection(cut.source[i].box, cut.source[other].box)) return true;
    }
  }
  return false;
}

// All that two or more source boxes hold and that is wanted.
Groups FindGroups(const TensorCells& cut, const BoxIndex& by_source, bool all_wanted) {
  const BoxIndex by_destination = IndexOf(all_wanted ? std::vector<PlacedBox>() : cut.destination, cut.axis_strides);
  Groups groups;
  const auto add = [&](const Holders& holders, const Box& box) {
    std::vector<int> buffers;
    for (int h : holders) buffers.push_back(cut.source[h].buffer);
    AppendJoined(box, &groups[std::move(buffers)][holders]);
  };
  for (size_t i = 0; i < cut.source.size(); ++i) {
    const Box& box = cut.source[i].box;
    std::vector<int> near = by_source.Near(box);
    std::sort(near.begin(), near.end());
    // The first one that holds a cell lists it.
    const bool listed = std::any_of(near.begin(), near.end(), [&](int other) {
      return other < static_cast<int>(i) && Contains(cut.source[other].box, box);
    });
    if (listed) continue;
    Partition(box, BoxesOf(cut.source, near), [&](const Box& cell, absl::Span<const int> which) {
      if (which.size() < 2 || near[which[0]] != static_cast<int>(i)) return;
      Holders holders;
      for (int w : which) holders.push_back(near[w]);
      if (all_wanted) return add(holders, cell);
      Partition(cell, BoxesOf(cut.destination, by_destination.Near(cell)),
                [&](const Box& part, absl::Span<const int> wanted) {
                  if (!wanted.empty()) add(holders, part);
                });
    });
  }
  return groups;
}

}  // namespace

absl::StatusOr<std::vector<ReplicaSum>> FindReplicas(const Manifest& m, int64_t source_rank) {
  absl::flat_hash_set<absl::string_view> held;
  for (const Buffer& b : m.source) {
    if (b.rank != source_rank) continue;
    for (const Piece& p : b.pieces)
      if (p.kind == PieceKind::kTensor) held.insert(p.tensor);
  }
  const absl::flat_hash_set<absl::string_view> ignored(m.ignore.begin(), m.ignore.end());
  const TensorPieces pieces(m);
  std::vector<ReplicaSum> sums;
  for (size_t t = 0; t < m.tensors.size(); ++t) {
    const TensorSpec& tensor = m.tensors[t];
    if (!held.contains(tensor.name)) continue;
    HR_ASSIGN_OR_RETURN(const TensorCells cut, pieces.Place(static_cast<int>(t)));
    const BoxIndex by_source = IndexOf(cut.source, cut.axis_strides);
    if (!HasReplicas(m, cut, by_source, source_rank)) continue;
    uint64_t id = static_cast<uint64_t>(t) << 32;
    for (const auto& [buffers, by_holders] : FindGroups(cut, by_source, !ignored.contains(tensor.name))) {
      for (size_t k = 0; k < buffers.size(); ++k) {
        if (m.source[buffers[k]].rank != source_rank) continue;
        ReplicaSum sum{id, static_cast<int>(t), {}};
        for (const auto& [holders, boxes] : by_holders)
          for (const Box& box : boxes) LowerSourceBox(tensor, static_cast<int>(t), cut, box, holders[k], &sum.boxes);
        std::sort(sum.boxes.begin(), sum.boxes.end(),
                  [](const Copy& a, const Copy& b) { return a.source_offset < b.source_offset; });
        JoinRuns(&sum.boxes);
        sums.push_back(std::move(sum));
      }
      ++id;
    }
  }
  return sums;
}

}  // namespace headrace
