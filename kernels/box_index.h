#ifndef HEADRACE_KERNELS_BOX_INDEX_H_
#define HEADRACE_KERNELS_BOX_INDEX_H_

// Index arithmetic of boxes: which run holds byte `first` of a box's packed order (row-major over the outer loops,
// loop 0 outermost, then the bytes of the run). Device code shares it.

#include <cstdint>

#include "kernels/host_device.h"

namespace headrace::kernels::internal {

// Bytes of a box of `rank` loops over runs of `run_bytes`; the caller knows that the product fits in 63 bits.
HR_HOST_DEVICE constexpr int64_t BoxBytes(int64_t run_bytes, int rank, const int64_t* extent) {
  int64_t bytes = run_bytes;
  for (int i = 0; i < rank; ++i) bytes *= extent[i];
  return bytes;
}

// Replaces the index of run number `run` (0 <= run < product of extents) by its index along each loop.
HR_HOST_DEVICE constexpr void RunIndex(int64_t run, int rank, const int64_t* extent, int64_t* index) {
  for (int i = rank - 1; i >= 0; --i) {
    index[i] = run % extent[i];
    run /= extent[i];
  }
}

// The byte offset of a run from the first one.
HR_HOST_DEVICE constexpr int64_t RunOffset(int rank, const int64_t* index, const int64_t* stride) {
  int64_t offset = 0;
  for (int i = 0; i < rank; ++i) offset += index[i] * stride[i];
  return offset;
}

// The largest part of a box that starts at packed byte `first`, ends at or before packed byte `end`, and is a box
// itself: some consecutive steps of one loop with all loops inside it whole, or a part of one run.
struct PackedPart {
  int loop;        // the loop that is cut: its extent becomes `count`, loops outside it vanish. -1: a part of a run
  int64_t count;   // steps of that loop
  int64_t bytes;   // packed bytes of the part
  int64_t run;     // number of its first run
  int64_t in_run;  // offset of its first byte in that run; not 0 only where loop == -1
};

// Needs 0 <= first < end <= BoxBytes(...). A range is at most 2 * rank + 2 parts.
HR_HOST_DEVICE constexpr PackedPart NextPackedPart(int64_t run_bytes, int rank, const int64_t* extent, int64_t first,
                                                   int64_t end) {
  PackedPart part{-1, 1, 0, first / run_bytes, first % run_bytes};
  part.bytes = run_bytes - part.in_run < end - first ? run_bytes - part.in_run : end - first;
  int64_t unit = run_bytes;  // packed bytes of one step of loop i
  for (int i = rank - 1; i >= 0 && first % unit == 0 && end - first >= unit; --i) {
    const int64_t left = extent[i] - first / unit % extent[i], wanted = (end - first) / unit;
    part.loop = i;
    part.count = left < wanted ? left : wanted;
    part.bytes = part.count * unit;
    unit *= extent[i];
  }
  return part;
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_BOX_INDEX_H_
