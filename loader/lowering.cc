#include "loader/lowering.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace headrace {
namespace {

// Cuts a box with too many loops along its outermost ones.
void AppendBoxes(BufferBox box, std::vector<std::pair<Index, Index>> loops, std::vector<BufferBox>* out) {
  if (loops.size() <= static_cast<size_t>(kernels::kMaxBoxLoops)) {
    box.loops = std::move(loops);
    return out->push_back(std::move(box));
  }
  const auto [extent, stride] = loops.front();
  loops.erase(loops.begin());
  for (Index i = 0; i < extent; ++i, box.offset += stride) AppendBoxes(box, loops, out);
}

// Whether two pieces share an element of their buffer.
bool Overlap(const Piece& a, const Piece& b) {
  for (size_t i = 0; i < a.shape.size(); ++i) {
    const size_t axis = a.axes.empty() ? i : a.axes[i];
    const size_t k = b.axes.empty() ? axis : std::find(b.axes.begin(), b.axes.end(), axis) - b.axes.begin();
    const Index a_begin = a.buffer_offset[axis], b_begin = b.buffer_offset[axis];
    if (a_begin + a.shape[i] <= b_begin || b_begin + b.shape[k] <= a_begin) return false;
  }
  return true;
}

// Destination pieces never overlap; a source's may.
bool Disjoint(const std::vector<const Piece*>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (Overlap(*pieces[i], *pieces[k])) return false;
    }
  }
  return true;
}

}  // namespace

kernels::StridedCopy Lower(const Copy& copy, const std::byte* source, std::byte* destination) {
  kernels::StridedCopy c;
  c.src = source == nullptr ? nullptr : source + copy.source_offset;
  c.dst = destination == nullptr ? nullptr : destination + copy.destination_offset;
  c.run_bytes = copy.run_bytes;
  c.tensor_key = TensorKey(copy.tensor);
  c.first_byte = copy.position;
  c.rank = static_cast<int>(copy.loops.size());
  for (int i = 0; i < c.rank; ++i) {
    const CopyLoop& l = copy.loops[i];
    c.extent[i] = l.extent;
    c.src_stride[i] = l.source_stride;
    c.dst_stride[i] = l.destination_stride;
    c.pos_stride[i] = l.position_stride;
  }
  return c;
}

kernels::StridedCopy LowerSourceBox(const Copy& copy, const std::byte* from, std::byte* to) {
  kernels::StridedCopy c = Lower(copy, from, nullptr);
  c.dst = to == nullptr ? nullptr : to + copy.source_offset;
  std::copy(std::begin(c.src_stride), std::end(c.src_stride), std::begin(c.dst_stride));
  return c;
}

Index BytesOf(const BufferBox& box) {
  Index bytes = box.run_bytes;
  for (const auto& [extent, stride] : box.loops) bytes *= extent;
  return bytes;
}

std::vector<BufferBox> BoxesOf(const Buffer& buffer, PieceKind kind, Dtype dtype) {
  const Index bits = DtypeBits(dtype);
  std::vector<BufferBox> out;
  std::vector<const Piece*> pieces;
  Index elements = 0, whole = 1;
  for (Index e : buffer.shape) whole *= e;
  for (const Piece& p : buffer.pieces) {
    if (p.kind != kind || std::find(p.shape.begin(), p.shape.end(), 0) != p.shape.end()) continue;
    std::vector<std::pair<Index, Index>> loops;  // (stride, extent), elements
    Index offset = 0, volume = 1;
    for (size_t i = 0; i < p.shape.size(); ++i) {
      offset += p.buffer_offset[i] * buffer.strides[i];
      volume *= p.shape[i];
      if (p.shape[i] > 1) loops.emplace_back(buffer.strides[p.axes.empty() ? i : p.axes[i]], p.shape[i]);
    }
    elements += volume;
    pieces.push_back(&p);
    std::sort(loops.begin(), loops.end(), std::greater<>());
    Index run = 1;
    while (!loops.empty() && loops.back().first == run) {
      run *= loops.back().second;
      loops.pop_back();
    }
    std::vector<std::pair<Index, Index>> byte_loops;  // (extent, stride)
    for (const auto& [stride, extent] : loops) {
      // An outer loop that ends where the next one's steps go on.
      if (!byte_loops.empty() && byte_loops.back().second == stride * extent * bits / 8) {
        byte_loops.back() = {byte_loops.back().first * extent, stride * bits / 8};
      } else {
        byte_loops.emplace_back(extent, stride * bits / 8);
      }
    }
    AppendBoxes({offset * bits / 8, run * bits / 8, {}}, std::move(byte_loops), &out);
  }
  // As many elements as the buffer spans are the whole buffer, without gaps.
  if (out.size() > 1 && elements == whole && elements == SpanElements(buffer) && Disjoint(pieces)) {
    out = {{0, SpanBytes(buffer, dtype), {}}};
  }
  return out;
}

BufferBox BoxOf(const ZeroFill& fill) {
  BufferBox box{fill.destination_offset, fill.run_bytes, {}};
  for (const CopyLoop& l : fill.loops) box.loops.emplace_back(l.extent, l.destination_stride);
  return box;
}

kernels::StridedCopy Lower(const BufferBox& box, const std::byte* from, std::byte* to) {
  kernels::StridedCopy c;
  c.src = from + box.offset;
  c.dst = to + box.offset;
  c.run_bytes = box.run_bytes;
  c.rank = static_cast<int>(box.loops.size());
  for (int i = 0; i < c.rank; ++i) {
    c.extent[i] = box.loops[i].first;
    c.src_stride[i] = c.dst_stride[i] = box.loops[i].second;
  }
  return c;
}

void Clear(const BufferBox& box, std::byte* memory) {
  if (box.loops.empty()) {
    std::memset(memory + box.offset, 0, static_cast<size_t>(box.run_bytes));
    return;
  }
  BufferBox inner = box;
  const auto [extent, stride] = box.loops.front();
  inner.loops.erase(inner.loops.begin());
  for (Index i = 0; i < extent; ++i, inner.offset += stride) Clear(inner, memory);
}

}  // namespace headrace
