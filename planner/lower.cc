#include "planner/lower.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr Index kMaxBoxesPerPiece = Index{1} << 22;

// The boundaries of a shape: products of its trailing extents, from 1 to the number of elements.
std::set<Index> Boundaries(const Extents& shape) {
  std::set<Index> out = {1};
  Index product = 1;
  for (size_t i = shape.size(); i-- > 0;) out.insert(product *= shape[i]);
  return out;
}

bool IsChain(const std::set<Index>& boundaries) {
  Index previous = 1;
  for (Index b : boundaries) {
    if (b % previous != 0) return false;
    previous = b;
  }
  return true;
}

// Cuts [first, first + count) of the flat space of `extents` into boxes, in order.
void SplitRange(Index first, Index count, absl::Span<const Index> extents, const Box& prefix, std::vector<Box>* out) {
  if (count == 0) return;
  if (extents.empty()) return out->push_back(prefix);
  Index inner = 1;
  for (Index e : extents.subspan(1)) inner *= e;
  auto extended = [&](Index start, Index extent) {
    Box b = prefix;
    b.start.push_back(start);
    b.extent.push_back(extent);
    return b;
  };
  const Index row = first / inner, skip = first % inner;
  if (skip != 0 || count < inner) {  // a part of one row
    const Index part = std::min(inner - skip, count);
    SplitRange(skip, part, extents.subspan(1), extended(row, 1), out);
    return SplitRange(first + part, count - part, extents, prefix, out);
  }
  SplitRange(0, inner, extents.subspan(1), extended(row, count / inner), out);
  SplitRange(first + count / inner * inner, count % inner, extents, prefix, out);
}

}  // namespace

std::string DescribeBox(const Extents& shape, const Box& box, const Extents& strides) {
  // As loops over flat elements, innermost first, joined where they continue each other.
  struct FlatLoop {
    Index stride, extent;
  };
  std::vector<FlatLoop> loops;
  Index first = 0;
  for (size_t k = strides.size(); k-- > 0;) {
    first += box.start[k] * strides[k];
    if (box.extent[k] == 1) continue;
    if (!loops.empty() && loops.back().stride * loops.back().extent == strides[k]) {
      loops.back().extent *= box.extent[k];
    } else {
      loops.push_back({strides[k], box.extent[k]});
    }
  }
  const Extents shape_strides = RowMajorStrides(shape);
  Box on_shape = WholeBox(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    on_shape.start[i] = first / shape_strides[i] % shape[i];
    on_shape.extent[i] = 1;
  }
  bool is_box = true;
  for (FlatLoop loop : loops) {
    for (size_t i = shape.size(); i-- > 0 && loop.extent > 1;) {
      if (loop.stride != shape_strides[i] || shape[i] == 1) continue;
      if (loop.extent % shape[i] == 0 && on_shape.start[i] == 0) {  // whole, and goes on along the next axis
        on_shape.extent[i] = shape[i];
        loop = {loop.stride * shape[i], loop.extent / shape[i]};
      } else if (on_shape.start[i] + loop.extent <= shape[i]) {
        on_shape.extent[i] = loop.extent;
        loop.extent = 1;
      }
    }
    is_box = is_box && loop.extent == 1;
  }
  if (is_box) return ToString(on_shape);
  Index run = 1, runs = 1;
  for (const FlatLoop& loop : loops) (loop.stride == 1 ? run : runs) *= loop.extent;
  return absl::StrCat("elements ", first, ":", first + run,
                      runs > 1 ? absl::StrCat(" and ", runs - 1, " more such runs") : "");
}

CommonAxes::CommonAxes(const Extents& shape, const std::vector<Extents>& views) {
  std::set<Index> boundaries = Boundaries(shape);
  for (const Extents& view : views) {
    std::set<Index> merged = Boundaries(view);
    merged.insert(boundaries.begin(), boundaries.end());
    if (IsChain(merged)) boundaries = std::move(merged);
  }
  for (auto b = boundaries.rbegin(); std::next(b) != boundaries.rend(); ++b) {
    strides_.push_back(*std::next(b));
    extents_.push_back(*b / *std::next(b));
  }
}

absl::StatusOr<std::vector<PlacedBox>> CommonAxes::Place(const TensorSpec& tensor, const Buffer& buffer,
                                                         int buffer_index, const Piece& piece) const {
  std::vector<PlacedBox> placed;
  const size_t axes = piece.shape.size();
  for (Index e : piece.shape) {
    if (e == 0) return placed;
  }
  const Extents& view = piece.view ? *piece.view : tensor.shape;
  const Extents view_strides = RowMajorStrides(view);
  Extents buffer_strides(axes);  // along the piece's axes
  Index base = 0;
  for (size_t i = 0; i < axes; ++i) {
    buffer_strides[i] = buffer.strides[piece.axes.empty() ? i : piece.axes[i]];
    base += buffer.strides[i] * piece.buffer_offset[i];
  }

  // The common axes of view axis i are [axis_begin[i], axis_begin[i + 1]), if they nest.
  std::vector<size_t> axis_begin(axes + 1, 0);
  bool nests = true;
  size_t next = 0;
  for (size_t i = 0; i < axes; ++i) {
    axis_begin[i] = next;
    while (next < extents_.size() && strides_[next] >= view_strides[i]) ++next;
    Index covered = 1;
    for (size_t k = axis_begin[i]; k < next; ++k) covered *= extents_[k];
    nests = nests && covered == view[i];
  }
  axis_begin[axes] = next;
  nests = nests && next == extents_.size();

  if (nests) {
    placed.push_back({{}, base, {}, buffer_index});
    for (size_t i = 0; i < axes; ++i) {
      const absl::Span<const Index> fine(extents_.data() + axis_begin[i], axis_begin[i + 1] - axis_begin[i]);
      std::vector<Box> ranges;
      SplitRange(piece.tensor_offset[i], piece.shape[i], fine, Box{}, &ranges);
      std::vector<PlacedBox> grown;
      for (const PlacedBox& outer : placed) {
        for (const Box& range : ranges) {
          PlacedBox p = outer;
          Index first = 0;  // along view axis i
          for (size_t k = 0; k < fine.size(); ++k) {
            const Index unit = strides_[axis_begin[i] + k] / view_strides[i];
            first += range.start[k] * unit;
            p.box.start.push_back(range.start[k]);
            p.box.extent.push_back(range.extent[k]);
            p.strides.push_back(buffer_strides[i] * unit);
          }
          p.offset += (first - piece.tensor_offset[i]) * buffer_strides[i];
          grown.push_back(std::move(p));
        }
      }
      placed = std::move(grown);
    }
    return placed;
  }

  // Run by run: the innermost axes that are whole and laid out in order are one run.
  size_t outer = axes - 1;
  Index run = piece.shape[outer];
  while (outer > 0 && piece.shape[outer] == view[outer] &&
         buffer_strides[outer - 1] == buffer_strides[outer] * view[outer]) {
    run *= piece.shape[--outer];
  }
  const Index run_stride = buffer_strides[axes - 1];
  auto too_many = [&] {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("tensor \"", tensor.name, "\", buffer \"", buffer.name, "\", rank ", buffer.rank,
                              ": the view [", absl::StrJoin(view, ", "),
                              "] fits no other view of this tensor and cuts "
                              "the piece into more than ",
                              kMaxBoxesPerPiece, " boxes; use views whose axes nest"));
  };
  // Before any is made: each run is at least one box.
  Index runs = 1;
  for (size_t i = 0; i < outer; ++i) {
    if (__builtin_mul_overflow(runs, piece.shape[i], &runs) || runs > kMaxBoxesPerPiece) return too_many();
  }
  Extents index(outer, 0);
  while (true) {
    Index first = piece.tensor_offset[outer] * view_strides[outer], offset = base;
    for (size_t i = outer + 1; i < axes; ++i) first += piece.tensor_offset[i] * view_strides[i];
    for (size_t i = 0; i < outer; ++i) {
      first += (piece.tensor_offset[i] + index[i]) * view_strides[i];
      offset += index[i] * buffer_strides[i];
    }
    std::vector<Box> boxes;
    SplitRange(first, run, extents_, Box{}, &boxes);
    for (const Box& box : boxes) {
      Index flat = 0;
      PlacedBox p{box, offset, {}, buffer_index};
      for (size_t k = 0; k < extents_.size(); ++k) {
        flat += box.start[k] * strides_[k];
        p.strides.push_back(run_stride * strides_[k]);
      }
      p.offset += (flat - first) * run_stride;
      placed.push_back(std::move(p));
    }
    if (placed.size() > static_cast<size_t>(kMaxBoxesPerPiece)) return too_many();
    size_t i = outer;
    while (i > 0 && ++index[i - 1] == piece.shape[i - 1]) index[--i] = 0;
    if (i == 0) return placed;
  }
}

}  // namespace headrace
