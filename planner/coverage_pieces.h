#ifndef HEADRACE_PLANNER_COVERAGE_PIECES_H_
#define HEADRACE_PLANNER_COVERAGE_PIECES_H_

// Part of the coverage proof (coverage.h): which pieces of a buffer hold the elements that a copy moves.
//
// A piece is two affine maps of one box of coordinates: to the place in the buffer and to the number of the element in
// its tensor. A copy's elements are a lattice of (place, number). In the piece, the number alone gives the coordinates
// (mixed radix), so a lattice lies in the piece when its first element does, each of its steps goes along one axis of
// the piece in number and place alike, and the furthest coordinates are still inside.
//
// All places, numbers and steps count elements.

#include <functional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/coverage_meeting.h"
#include "planner/manifest.h"

namespace headrace {

struct LatticeStep {
  Index extent = 0;  // >= 2
  Index place = 0;
  Index number = 0;  // >= 0
};

// The elements `number` + sum(j[k] * step[k].number) at `place` + sum(j[k] * step[k].place), 0 <= j[k] < extent[k].
struct Lattice {
  Index place = 0;
  Index number = 0;
  absl::InlinedVector<LatticeStep, 3> steps;
};

// Numbers the elements of zero pieces, which are their places.
inline constexpr int kZeroFill = -1;

struct PlacedPiece {
  // first <= x < first + extent; a step along the axis is `number` and `place` elements. In descending order of
  // `number`, each of which exceeds what all later axes reach together.
  struct Axis {
    Index number = 0, place = 0, first = 0, extent = 0;
  };
  absl::InlinedVector<Axis, 4> axes;
  int tensor = 0;    // or kZeroFill
  Index number = 0;  // of x = 0
  Index place = 0;   // of x = first
  Index first_number = 0, last_number = 0;
  size_t piece = 0;  // index into the buffer's pieces

  Index Volume() const;
  // The number of the element at coordinates x.
  Index NumberOf(const Extents& x) const;
};

// The tensor piece buffer.pieces[piece], which is not empty; its box counts in a tensor or view of shape `counted`.
PlacedPiece PlaceTensorPiece(const Buffer& buffer, size_t piece, int tensor, const Extents& counted);

// A zero piece, which is not empty, of a buffer in which no two elements share a place; one slice for each index of
// axes whose strides do not nest. False past kMaxProofParts slices.
bool PlaceZeroPiece(const Buffer& buffer, size_t piece, std::vector<PlacedPiece>* out);

enum class Located { kHeld, kNotHeld, kTooManyParts };

// The pieces of one buffer, of any tensors; they may share elements.
class PieceIndex {
 public:
  explicit PieceIndex(std::vector<PlacedPiece> pieces);

  const std::vector<PlacedPiece>& pieces() const { return pieces_; }
  bool Has(int tensor) const;

  // Calls visit(index of a piece, the coordinates in it) for the lattice, or for parts of it that together are the
  // lattice: a run (one step of place 1, number 1) that goes on in other pieces is cut where it leaves one; anything
  // else that no one piece holds is cut step by step. Each cut uses up one of *parts, which is the cost beyond one
  // look-up. kNotHeld when no piece holds an element of the lattice at its place; then *stray is such an element.
  Located Locate(int tensor, const Lattice& lattice, Index* parts, Lattice* stray,
                 const std::function<void(size_t piece, PointSet points)>& visit) const;

 private:
  // Calls f(index) for the pieces of the tensor whose range of numbers holds `number`, until it returns true.
  template <typename F>
  void ForEachNear(int tensor, Index number, F&& f) const;
  bool Holds(int tensor, Index place, Index number) const;

  std::vector<PlacedPiece> pieces_;  // by tensor and first number
  std::vector<Index> furthest_;      // the largest last number up to here, of the same tensor
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COVERAGE_PIECES_H_
