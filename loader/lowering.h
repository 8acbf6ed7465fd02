#ifndef HEADRACE_LOADER_LOWERING_H_
#define HEADRACE_LOADER_LOWERING_H_

// From plan copies to kernel descriptors: the one place that knows both.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/strided_copy.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// The key of a tensor in verification sums: its index in the epoch's manifest.
inline uint64_t TensorKey(int tensor) { return static_cast<uint64_t>(tensor); }

// `source` and `destination` are the buffers' first elements (for a source: of its snapshot); either may be null where
// the kernel does not use it.
kernels::StridedCopy Lower(const Copy& copy, const std::byte* source, std::byte* destination);

// The copy's source box, moved to the same offsets and strides in another memory: what a snapshot writes.
kernels::StridedCopy LowerSourceBox(const Copy& copy, const std::byte* from, std::byte* to);

// A box of one buffer, in bytes: what a commit copies or a zero fill clears.
struct BufferBox {
  Index offset = 0;
  Index run_bytes = 0;
  std::vector<std::pair<Index, Index>> loops;  // (extent, stride), outermost first; at most kernels::kMaxBoxLoops
};

Index BytesOf(const BufferBox& box);

// The boxes of the buffer's pieces of one kind, where elements have the given dtype. Pieces that together are a whole
// dense buffer are one box.
std::vector<BufferBox> BoxesOf(const Buffer& buffer, PieceKind kind, Dtype dtype);

// The box that a plan's zero fill clears.
BufferBox BoxOf(const ZeroFill& fill);

// `from` and `to` are first elements of memories laid out like the buffer.
kernels::StridedCopy Lower(const BufferBox& box, const std::byte* from, std::byte* to);
void Clear(const BufferBox& box, std::byte* memory);

}  // namespace headrace

#endif  // HEADRACE_LOADER_LOWERING_H_
