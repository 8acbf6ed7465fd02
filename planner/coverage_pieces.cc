#include "planner/coverage_pieces.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace headrace {
namespace {

// Drops axes of one number, joins an axis that is whole to the next outer one where places go on alike, and completes
// the piece.
void Finish(PlacedPiece* p) {
  absl::InlinedVector<PlacedPiece::Axis, 4> joined;
  for (const PlacedPiece::Axis& axis : p->axes) {
    if (!joined.empty()) {
      PlacedPiece::Axis& outer = joined.back();
      if (axis.first == 0 && outer.number == axis.extent * axis.number && outer.place == axis.extent * axis.place) {
        outer = {axis.number, axis.place, outer.first * axis.extent, outer.extent * axis.extent};
        continue;
      }
    }
    joined.push_back(axis);
  }
  p->axes = std::move(joined);
  p->first_number = p->last_number = p->number;
  for (const PlacedPiece::Axis& axis : p->axes) {
    p->first_number += axis.first * axis.number;
    p->last_number += (axis.first + axis.extent - 1) * axis.number;
  }
}

// The coordinates of an element; false when it is not in the piece at this place.
bool Decode(const PlacedPiece& p, Index place, Index number, PointSet* points) {
  Index rest = number - p.number, offset = place - p.place;
  points->resize(p.axes.size());
  for (size_t i = 0; i < p.axes.size(); ++i) {
    const PlacedPiece::Axis& axis = p.axes[i];
    const Index x = rest / axis.number;
    if (rest < 0 || x < axis.first || x >= axis.first + axis.extent) return false;
    rest -= x * axis.number;
    offset -= (x - axis.first) * axis.place;
    (*points)[i].first = x;
    (*points)[i].terms.clear();
  }
  return rest == 0 && offset == 0;
}

// Adds the lattice's steps to the coordinates of its first element; false when they do not stay in the piece.
bool AddSteps(const PlacedPiece& p, const Lattice& lattice, PointSet* points) {
  absl::InlinedVector<Index, 4> left;  // room along each axis
  for (size_t i = 0; i < p.axes.size(); ++i) {
    left.push_back(p.axes[i].first + p.axes[i].extent - 1 - (*points)[i].first);
  }
  for (const LatticeStep& s : lattice.steps) {
    size_t i = 0;
    while (i < p.axes.size() && p.axes[i].number > s.number) ++i;
    if (i == p.axes.size() || s.number % p.axes[i].number != 0) return false;
    const Index step = s.number / p.axes[i].number;
    if (s.extent - 1 > left[i] / step || s.place != step * p.axes[i].place) return false;
    left[i] -= (s.extent - 1) * step;
    (*points)[i].terms.push_back({step, s.extent});
  }
  return true;
}

bool IsRun(const Lattice& l) { return l.steps.size() == 1 && l.steps[0].place == 1 && l.steps[0].number == 1; }

}  // namespace

Index PlacedPiece::Volume() const {
  Index volume = 1;
  for (const Axis& axis : axes) volume *= axis.extent;
  return volume;
}

Index PlacedPiece::NumberOf(const Extents& x) const {
  Index at = number;
  for (size_t i = 0; i < axes.size(); ++i) at += x[i] * axes[i].number;
  return at;
}

PlacedPiece PlaceTensorPiece(const Buffer& buffer, size_t piece, int tensor, const Extents& counted) {
  const Piece& p = buffer.pieces[piece];
  PlacedPiece placed;
  placed.tensor = tensor;
  placed.piece = piece;
  Index number = 1;
  for (size_t i = p.shape.size(); i-- > 0;) {
    const size_t along = p.axes.empty() ? i : static_cast<size_t>(p.axes[i]);
    placed.place += p.buffer_offset[i] * buffer.strides[i];
    if (counted[i] == 1) continue;
    placed.axes.insert(placed.axes.begin(), {number, buffer.strides[along], p.tensor_offset[i], p.shape[i]});
    number *= counted[i];
  }
  Finish(&placed);
  return placed;
}

bool PlaceZeroPiece(const Buffer& buffer, size_t piece, std::vector<PlacedPiece>* out) {
  const Piece& p = buffer.pieces[piece];
  Index place = 0;
  std::vector<std::pair<Index, Index>> axes;  // stride, extent
  for (size_t i = 0; i < p.shape.size(); ++i) {
    const size_t along = p.axes.empty() ? i : static_cast<size_t>(p.axes[i]);
    place += p.buffer_offset[i] * buffer.strides[i];
    if (p.shape[i] > 1) axes.emplace_back(buffer.strides[along], p.shape[i]);
  }
  std::sort(axes.begin(), axes.end());
  PlacedPiece slice;
  slice.tensor = kZeroFill;
  slice.piece = piece;
  std::vector<Index> places = {place};
  Index reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (stride > reach) {
      slice.axes.insert(slice.axes.begin(), {stride, stride, 0, extent});
      reach += stride * (extent - 1);
      continue;
    }
    if (extent > kMaxProofParts / static_cast<Index>(places.size())) return false;
    std::vector<Index> moved;
    for (Index at : places) {
      for (Index i = 0; i < extent; ++i) moved.push_back(at + i * stride);
    }
    places = std::move(moved);
  }
  for (Index at : places) {
    PlacedPiece placed = slice;
    placed.place = placed.number = at;
    Finish(&placed);
    out->push_back(std::move(placed));
  }
  return true;
}

PieceIndex::PieceIndex(std::vector<PlacedPiece> pieces) : pieces_(std::move(pieces)) {
  std::sort(pieces_.begin(), pieces_.end(), [](const PlacedPiece& a, const PlacedPiece& b) {
    return std::tie(a.tensor, a.first_number, a.piece) < std::tie(b.tensor, b.first_number, b.piece);
  });
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const bool first = i == 0 || pieces_[i - 1].tensor != pieces_[i].tensor;
    furthest_.push_back(first ? pieces_[i].last_number : std::max(furthest_.back(), pieces_[i].last_number));
  }
}

bool PieceIndex::Has(int tensor) const {
  const auto it = std::lower_bound(pieces_.begin(), pieces_.end(), tensor,
                                   [](const PlacedPiece& p, int wanted) { return p.tensor < wanted; });
  return it != pieces_.end() && it->tensor == tensor;
}

template <typename F>
void PieceIndex::ForEachNear(int tensor, Index number, F&& f) const {
  const auto key = std::make_pair(tensor, number);
  const auto end = std::upper_bound(pieces_.begin(), pieces_.end(), key, [](const auto& wanted, const PlacedPiece& p) {
    return wanted < std::make_pair(p.tensor, p.first_number);
  });
  for (size_t i = static_cast<size_t>(end - pieces_.begin()); i-- > 0;) {
    if (pieces_[i].tensor != tensor || furthest_[i] < number) return;
    if (pieces_[i].last_number >= number && f(i)) return;
  }
}

bool PieceIndex::Holds(int tensor, Index place, Index number) const {
  bool held = false;
  PointSet points;
  ForEachNear(tensor, number, [&](size_t i) { return held = Decode(pieces_[i], place, number, &points); });
  return held;
}

Located PieceIndex::Locate(int tensor, const Lattice& lattice, Index* parts, Lattice* stray,
                           const std::function<void(size_t piece, PointSet points)>& visit) const {
  Lattice rest = lattice;
  while (true) {
    bool fits = false;
    std::optional<size_t> holder;  // of the first element, and of most of a run
    Index longest = 0;
    PointSet points;
    ForEachNear(tensor, rest.number, [&](size_t i) {
      if (!Decode(pieces_[i], rest.place, rest.number, &points)) return false;
      Index length = 1;
      if (!pieces_[i].axes.empty()) {
        const PlacedPiece::Axis& last = pieces_[i].axes.back();
        if (last.number == 1 && last.place == 1) length = last.first + last.extent - points.back().first;
      }
      if (length > longest) longest = length, holder = i;
      fits = AddSteps(pieces_[i], rest, &points);
      if (fits) holder = i;
      return fits;
    });
    if (!holder) {
      *stray = {rest.place, rest.number, {}};
      return Located::kNotHeld;
    }
    if (fits) {
      visit(*holder, std::move(points));
      return Located::kHeld;
    }
    if (!IsRun(rest)) break;
    if (--*parts < 0) return Located::kTooManyParts;
    Lattice head = rest;
    head.steps[0].extent = longest;
    if (longest == 1) head.steps.clear();
    Decode(pieces_[*holder], head.place, head.number, &points);
    AddSteps(pieces_[*holder], head, &points);
    visit(*holder, std::move(points));
    rest.place += longest;
    rest.number += longest;
    rest.steps[0].extent -= longest;
    if (rest.steps[0].extent == 1) rest.steps.clear();
  }
  // A wrong lattice mostly shows at its ends, before any step is written out.
  Lattice corner = {rest.place, rest.number, {}};
  for (const LatticeStep& s : rest.steps) {
    for (const Index i : {Index{1}, s.extent - 1}) {
      *stray = {rest.place + i * s.place, rest.number + i * s.number, {}};
      if (!Holds(tensor, stray->place, stray->number)) return Located::kNotHeld;
    }
    corner.place += (s.extent - 1) * s.place;
    corner.number += (s.extent - 1) * s.number;
  }
  *stray = corner;
  if (!Holds(tensor, corner.place, corner.number)) return Located::kNotHeld;
  const auto outer = std::max_element(rest.steps.begin(), rest.steps.end(),
                                      [](const auto& a, const auto& b) { return a.number < b.number; });
  const LatticeStep step = *outer;
  rest.steps.erase(outer);
  for (Index i = 0; i < step.extent; ++i) {
    if (--*parts < 0) return Located::kTooManyParts;
    if (const Located l = Locate(tensor, rest, parts, stray, visit); l != Located::kHeld) return l;
    rest.place += step.place;
    rest.number += step.number;
  }
  return Located::kHeld;
}

}  // namespace headrace
