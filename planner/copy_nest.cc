#include "planner/copy_nest.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "planner/lower.h"

namespace headrace {
namespace {

// Strides in elements, then in bytes.
struct Loop {
  Index extent, source, position;
  absl::InlinedVector<Index, 1> destinations;
};

bool Continues(const Loop& outer, const Loop& inner) {
  if (outer.source != inner.source * inner.extent || outer.position != inner.position * inner.extent) return false;
  for (size_t d = 0; d < inner.destinations.size(); ++d) {
    if (outer.destinations[d] != inner.destinations[d] * inner.extent) return false;
  }
  return true;
}

bool IsRun(const Loop& inner, Index run) {
  return inner.source == run && inner.position == run &&
         std::all_of(inner.destinations.begin(), inner.destinations.end(), [&](Index d) { return d == run; });
}

// Sorts loops outermost first, peels the contiguous run off the inner end, and joins loops that continue each other on
// all sides. Returns the elements of the run.
Index Normalize(std::vector<Loop>* loops) {
  std::erase_if(*loops, [](const Loop& l) { return l.extent == 1; });
  std::sort(loops->begin(), loops->end(), [](const Loop& a, const Loop& b) {
    return a.destinations.size() == 1
               ? std::tie(a.destinations[0], a.position, a.source) > std::tie(b.destinations[0], b.position, b.source)
               : std::tie(a.source, a.position) > std::tie(b.source, b.position);
  });
  Index run = 1;
  while (!loops->empty() && IsRun(loops->back(), run)) {
    run *= loops->back().extent;
    loops->pop_back();
  }
  for (size_t i = loops->size(); i-- > 1;) {
    Loop& outer = (*loops)[i - 1];
    const Loop& inner = (*loops)[i];
    if (!Continues(outer, inner)) continue;
    const Index extent = outer.extent * inner.extent;
    outer = inner;
    outer.extent = extent;
    loops->erase(loops->begin() + static_cast<ptrdiff_t>(i));
  }
  return run;
}

// Appends the copies, one for each destination of the loops, cutting them along the outermost loops while there are too
// many.
void AppendCopies(std::vector<Copy> copies, absl::Span<const Loop> loops, std::vector<Copy>* out) {
  if (loops.size() <= kMaxCopyLoops) {
    for (size_t d = 0; d < copies.size(); ++d) {
      for (const Loop& l : loops) copies[d].loops.push_back({l.extent, l.source, l.destinations[d], l.position});
      out->push_back(std::move(copies[d]));
    }
    return;
  }
  for (Index i = 0; i < loops[0].extent; ++i) {
    AppendCopies(copies, loops.subspan(1), out);
    for (size_t d = 0; d < copies.size(); ++d) {
      copies[d].source_offset += loops[0].source;
      copies[d].destination_offset += loops[0].destinations[d];
      copies[d].position += loops[0].position;
    }
  }
}

void LoopsToBytes(Dtype dtype, std::vector<Loop>* loops) {
  for (Loop& l : *loops) {
    l.source = DtypeBytes(l.source, dtype);
    l.position = DtypeBytes(l.position, dtype);
    for (Index& d : l.destinations) d = DtypeBytes(d, dtype);
  }
}

Index Displace(const PlacedBox& placed, const Box& cell) {
  Index offset = placed.offset;
  for (size_t i = 0; i < cell.start.size(); ++i) offset += (cell.start[i] - placed.box.start[i]) * placed.strides[i];
  return offset;
}

}  // namespace

void LowerBox(const TensorSpec& tensor, int tensor_index, const TensorCells& cut, const Box& box, int source,
              absl::Span<const int> destinations, std::vector<Copy>* out) {
  const PlacedBox& from = cut.source[source];
  std::vector<Loop> loops(cut.axes.size());
  Index position = 0;
  for (size_t i = 0; i < cut.axes.size(); ++i) {
    position += box.start[i] * cut.axis_strides[i];
    loops[i] = {box.extent[i], from.strides[i], cut.axis_strides[i], {}};
    for (int d : destinations) loops[i].destinations.push_back(cut.destination[d].strides[i]);
  }
  const Index run_bytes = DtypeBytes(Normalize(&loops), tensor.dtype);
  LoopsToBytes(tensor.dtype, &loops);
  std::vector<Copy> copies(destinations.size());
  for (size_t d = 0; d < destinations.size(); ++d) {
    const PlacedBox& to = cut.destination[destinations[d]];
    Copy& copy = copies[d];
    copy.tensor = tensor_index;
    copy.source = from.buffer;
    copy.destination = to.buffer;
    copy.source_offset = DtypeBytes(Displace(from, box), tensor.dtype);
    copy.destination_offset = DtypeBytes(Displace(to, box), tensor.dtype);
    copy.position = DtypeBytes(position, tensor.dtype);
    copy.run_bytes = run_bytes;
  }
  AppendCopies(std::move(copies), loops, out);
}

void LowerSourceBox(const TensorSpec& tensor, int tensor_index, const TensorCells& cut, const Box& box, int source,
                    std::vector<Copy>* out) {
  TensorCells same;
  same.axes = cut.axes;
  same.axis_strides = cut.axis_strides;
  same.source = same.destination = {cut.source[source]};
  const size_t first = out->size();
  LowerBox(tensor, tensor_index, same, box, 0, {0}, out);
  for (size_t i = first; i < out->size(); ++i) (*out)[i].destination = -1;
}

void JoinRuns(std::vector<Copy>* copies) {
  size_t kept = 0;
  for (size_t i = 0; i < copies->size(); ++i) {
    Copy& next = (*copies)[i];
    if (kept > 0) {
      Copy& last = (*copies)[kept - 1];
      if (last.loops.empty() && next.loops.empty() && last.tensor == next.tensor && last.source == next.source &&
          last.destination == next.destination && last.source_offset + last.run_bytes == next.source_offset &&
          last.destination_offset + last.run_bytes == next.destination_offset &&
          last.position + last.run_bytes == next.position) {
        last.run_bytes += next.run_bytes;
        continue;
      }
    }
    if (kept != i) (*copies)[kept] = std::move(next);
    ++kept;
  }
  copies->resize(kept);
}

std::vector<ZeroFill> LowerZeroFills(const Manifest& m) {
  std::vector<ZeroFill> out;
  for (size_t index = 0; index < m.destination.size(); ++index) {
    const Buffer& b = m.destination[index];
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kZero) continue;
      if (std::find(p.shape.begin(), p.shape.end(), 0) != p.shape.end()) continue;
      std::vector<Loop> loops;
      Index offset = 0;
      for (size_t i = 0; i < p.shape.size(); ++i) {
        offset += p.buffer_offset[i] * b.strides[i];
        loops.push_back({p.shape[i], b.strides[i], b.strides[i], {b.strides[i]}});
      }
      Copy fill;
      fill.destination = static_cast<int>(index);
      fill.destination_offset = DtypeBytes(offset, b.dtype);
      fill.run_bytes = DtypeBytes(Normalize(&loops), b.dtype);
      LoopsToBytes(b.dtype, &loops);
      for (Loop& l : loops) l.source = l.position = 0;
      std::vector<Copy> fills;
      AppendCopies({std::move(fill)}, loops, &fills);
      for (Copy& f : fills) out.push_back({f.destination, f.destination_offset, f.run_bytes, std::move(f.loops)});
    }
  }
  return out;
}

}  // namespace headrace
