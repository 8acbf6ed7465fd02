#ifndef HEADRACE_PLANNER_LAYOUT_ORACLE_H_
#define HEADRACE_PLANNER_LAYOUT_ORACLE_H_

// Test only. Layouts element by element, by naive loops over arrays of element identities: the definitions of
// torch.chunk, numpy.array_split and the placements, sharing no arithmetic with segments.h. And the reverse: pieces
// expanded to the array that they describe.

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "planner/layout/placement.h"
#include "planner/manifest.h"

namespace headrace::oracle {

// Identities: element e of the tensor listed t-th is t * 2^40 + e.
constexpr Index kUnwritten = -1;
constexpr Index kZeroFill = -2;
constexpr Index kKeepFill = -3;
constexpr Index kWrittenTwice = -4;
constexpr Index kOutside = -5;  // a piece that leaves its tensor or buffer

struct Array {
  Extents shape;
  std::vector<Index> values;  // row-major

  friend bool operator==(const Array&, const Array&) = default;
};

inline Index SizeOf(const Extents& shape) {
  Index size = 1;
  for (Index n : shape) size *= n;
  return size;
}

// Tensor number t, each element its identity.
inline Array Whole(const Extents& shape, Index t = 0) {
  Array a{shape, std::vector<Index>(SizeOf(shape))};
  for (size_t e = 0; e < a.values.size(); ++e) a.values[e] = (t << 40) + static_cast<Index>(e);
  return a;
}

// numpy.take(a, positions, axis).
inline Array Take(const Array& a, int axis, const std::vector<Index>& positions) {
  Index inner = 1;
  for (size_t i = axis + 1; i < a.shape.size(); ++i) inner *= a.shape[i];
  Index outer = 1;
  for (int i = 0; i < axis; ++i) outer *= a.shape[i];
  Array result{a.shape, {}};
  result.shape[axis] = static_cast<Index>(positions.size());
  for (Index o = 0; o < outer; ++o) {
    for (Index p : positions) {
      for (Index i = 0; i < inner; ++i) result.values.push_back(a.values[(o * a.shape[axis] + p) * inner + i]);
    }
  }
  return result;
}

// Calls visit(position) for every position in an array of that shape, row-major.
template <typename F>
void ForEachPosition(const Extents& shape, F&& visit) {
  Extents at(shape.size());
  for (Index left = SizeOf(shape); left > 0; --left) {
    visit(at);
    for (size_t a = shape.size(); a-- > 0;) {
      if (++at[a] < shape[a]) break;
      at[a] = 0;
    }
  }
}

// a[position].
inline Index At(const Array& a, const Extents& position) {
  Index flat = 0;
  for (size_t i = 0; i < a.shape.size(); ++i) flat = flat * a.shape[i] + position.at(i);
  return a.values.at(flat);
}

// The array of that shape whose element at each position is element(position).
template <typename F>
Array Build(const Extents& shape, F&& element) {
  Array a{shape, {}};
  ForEachPosition(shape, [&](const Extents& position) { a.values.push_back(element(position)); });
  return a;
}

inline Array Filled(const Extents& shape, Index value) { return {shape, std::vector<Index>(SizeOf(shape), value)}; }

// numpy.reshape.
inline Array Reshape(const Array& a, const Extents& shape) { return {shape, a.values}; }

// numpy.concatenate; all arrays have the same other extents.
inline Array Concatenate(const std::vector<Array>& arrays, int axis = 0) {
  Extents shape = arrays.at(0).shape;
  for (size_t i = 1; i < arrays.size(); ++i) shape.at(axis) += arrays[i].shape.at(axis);
  return Build(shape, [&](Extents position) {
    size_t i = 0;
    while (position[axis] >= arrays[i].shape[axis]) position[axis] -= arrays[i++].shape[axis];
    return At(arrays[i], position);
  });
}

// numpy.stack.
inline Array Stack(const std::vector<Array>& arrays, int axis) {
  Extents shape = arrays.at(0).shape;
  shape.insert(shape.begin() + axis, static_cast<Index>(arrays.size()));
  return Build(shape, [&](Extents position) {
    const Index i = position[axis];
    position.erase(position.begin() + axis);
    return At(arrays[i], position);
  });
}

// numpy.transpose.
inline Array Transpose(const Array& a, const std::vector<int>& axes) {
  Extents shape;
  for (int axis : axes) shape.push_back(a.shape[axis]);
  return Build(shape, [&](const Extents& position) {
    Extents from(position.size());
    for (size_t i = 0; i < axes.size(); ++i) from[axes[i]] = position[i];
    return At(a, from);
  });
}

// a[..., first:first + count, ...] along an axis.
inline Array Slice(const Array& a, int axis, Index first, Index count) {
  Extents shape = a.shape;
  shape[axis] = count;
  return Build(shape, [&](Extents position) {
    position[axis] += first;
    return At(a, position);
  });
}

// The owner of each of `length` elements that are dealt to `parts` parts.
inline std::vector<Index> Owners(Index length, Index parts, ChunkRule rule) {
  std::vector<Index> sizes(parts);
  if (rule == ChunkRule::kEven) {
    for (Index i = 0; i < length; ++i) ++sizes[i % parts];
  } else {
    Index size = 0;
    while (size * parts < length) ++size;  // the smallest chunk that is enough
    for (Index left = length, p = 0; left > 0; ++p) {
      sizes[p] = left < size ? left : size;
      left -= sizes[p];
    }
  }
  std::vector<Index> owners;
  for (Index p = 0; p < parts; ++p) {
    for (Index i = 0; i < sizes[p]; ++i) owners.push_back(p);
  }
  return owners;
}

inline std::vector<Index> PositionsOf(Index length, Index parts, Index part, Index split_factor, ChunkRule rule) {
  std::vector<Index> positions;
  const std::vector<Index> pieces = Owners(length, split_factor, rule);
  for (Index s = 0; s < split_factor; ++s) {
    std::vector<Index> piece;
    for (Index i = 0; i < length; ++i) {
      if (pieces[i] == s) piece.push_back(i);
    }
    const std::vector<Index> owners = Owners(static_cast<Index>(piece.size()), parts, rule);
    for (size_t i = 0; i < piece.size(); ++i) {
      if (owners[i] == part) positions.push_back(piece[i]);
    }
  }
  return positions;
}

// The local array of the rank at `coordinate`.
inline Array Local(Array a, const Mesh& mesh, const std::vector<MeshPlacement>& placements, const Extents& coordinate) {
  for (size_t d = 0; d < mesh.extents.size(); ++d) {
    if (std::holds_alternative<Replicate>(placements[d])) continue;
    const auto* shard = std::get_if<Shard>(&placements[d]);
    const StridedShard s = shard ? StridedShard{shard->axis, 1, shard->rule} : std::get<StridedShard>(placements[d]);
    a = Take(a, s.axis, PositionsOf(a.shape[s.axis], mesh.extents[d], coordinate[d], s.split_factor, s.rule));
  }
  return a;
}

// What the pieces lay into a buffer of that shape, with the identities of `tensors` in their order.
inline Array Expand(const Extents& shape, const std::vector<Piece>& pieces, const std::vector<TensorSpec>& tensors) {
  Array out{shape, std::vector<Index>(SizeOf(shape), kUnwritten)};
  for (const Piece& p : pieces) {
    size_t t = 0;
    if (p.kind == PieceKind::kTensor) {
      while (tensors.at(t).name != p.tensor) ++t;
    }
    ForEachPosition(p.shape, [&](const Extents& at) {
      Extents to = p.buffer_offset;
      Index from = 0;
      bool outside = to.size() != shape.size() || at.size() != shape.size();
      for (size_t i = 0; i < at.size() && !outside; ++i) {
        to[p.axes.empty() ? i : p.axes.at(i)] += at[i];
        if (p.kind != PieceKind::kTensor) continue;
        const Extents& counted = p.view ? *p.view : tensors[t].shape;
        const Index e = p.tensor_offset.at(i) + at[i];
        outside =
            counted.size() != at.size() || SizeOf(counted) != SizeOf(tensors[t].shape) || e < 0 || e >= counted.at(i);
        if (!outside) from = from * counted[i] + e;
      }
      Index place = 0;
      for (size_t a = 0; a < shape.size() && !outside; ++a) {
        outside = to[a] < 0 || to[a] >= shape[a];
        place = place * shape[a] + to[a];
      }
      if (outside) {
        out.values.push_back(kOutside);  // no array is equal to one that is too long
      } else if (out.values[place] != kUnwritten) {
        out.values[place] = kWrittenTwice;
      } else {
        out.values[place] = p.kind == PieceKind::kZero   ? kZeroFill
                            : p.kind == PieceKind::kKeep ? kKeepFill
                                                         : (static_cast<Index>(t) << 40) + from;
      }
    });
  }
  return out;
}

}  // namespace headrace::oracle

#endif  // HEADRACE_PLANNER_LAYOUT_ORACLE_H_
