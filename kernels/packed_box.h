#ifndef HEADRACE_KERNELS_PACKED_BOX_H_
#define HEADRACE_KERNELS_PACKED_BOX_H_

// A range of a box's packed bytes as boxes of their own.

#include <cstdint>

#include "kernels/box_index.h"
#include "kernels/strided_copy.h"

namespace headrace::kernels::internal {

// A box, and the packed bytes of a step of each of its loops.
struct PackedBox {
  StridedCopy copy;
  int64_t packed_stride[kMaxBoxLoops] = {};
};

// Cuts packed bytes [first, end) of `c` into boxes and calls body(box, packed offset from `first`) for each.
template <class Body>
void ForEachPackedBox(const StridedCopy& c, int64_t first, int64_t end, Body&& body) {
  for (int64_t at = first; at < end;) {
    const internal::PackedPart part = NextPackedPart(c.run_bytes, c.rank, c.extent, at, end);
    int64_t index[kMaxBoxLoops];
    RunIndex(part.run, c.rank, c.extent, index);
    PackedBox box;
    const int64_t src_at = RunOffset(c.rank, index, c.src_stride) + part.in_run;
    const int64_t dst_at = RunOffset(c.rank, index, c.dst_stride) + part.in_run;
    if (c.src != nullptr) box.copy.src = c.src + src_at;
    if (c.dst != nullptr) box.copy.dst = c.dst + dst_at;
    box.copy.tensor_key = c.tensor_key;
    box.copy.first_byte = c.first_byte + RunOffset(c.rank, index, c.pos_stride) + part.in_run;
    box.copy.run_bytes = part.loop < 0 ? part.bytes : c.run_bytes;
    box.copy.rank = part.loop < 0 ? 0 : c.rank - part.loop;
    int64_t packed = c.run_bytes;
    for (int i = box.copy.rank - 1; i >= 0; --i) {
      const int loop = part.loop + i;
      box.copy.extent[i] = i == 0 ? part.count : c.extent[loop];
      box.copy.src_stride[i] = c.src_stride[loop];
      box.copy.dst_stride[i] = c.dst_stride[loop];
      box.copy.pos_stride[i] = c.pos_stride[loop];
      box.packed_stride[i] = packed;
      packed *= box.copy.extent[i];
    }
    body(box, at - first);
    at += part.bytes;
  }
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_PACKED_BOX_H_
