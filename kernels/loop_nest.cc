#include "kernels/loop_nest.h"

#include <algorithm>
#include <cstdlib>

namespace headrace::kernels::internal {
namespace {

// Whether one step of `outer` is where `inner` (a loop or, by its bytes, the run) ends on every side.
bool Continues(const Loop& outer, const int64_t* inner_stride, int64_t inner_extent) {
  for (int s = 0; s < kSides; ++s) {
    if (outer.stride[s] != inner_stride[s] * inner_extent) return false;
  }
  return true;
}

}  // namespace

bool Normalize(LoopNest& nest, Side lead) {
  if (nest.run[lead] <= 0) return false;
  int rank = 0;
  for (int i = 0; i < nest.rank; ++i) {
    Loop loop = nest.loop[i];
    if (loop.extent <= 0) return false;
    if (loop.extent == 1) continue;
    if (loop.stride[lead] < 0) {
      for (int s = 0; s < kSides; ++s) {
        nest.base[s] += loop.stride[s] * (loop.extent - 1);
        loop.stride[s] = -loop.stride[s];
      }
    }
    // Insertion sort: the outermost has the largest stride; equal strides keep their order.
    int at = rank++;
    for (; at > 0 && nest.loop[at - 1].stride[lead] < loop.stride[lead]; --at) nest.loop[at] = nest.loop[at - 1];
    nest.loop[at] = loop;
  }
  while (rank > 0 && Continues(nest.loop[rank - 1], nest.run, 1)) {
    for (int s = 0; s < kSides; ++s) nest.run[s] *= nest.loop[rank - 1].extent;
    --rank;
  }
  for (int i = rank - 1; i > 0; --i) {
    Loop& outer = nest.loop[i - 1];
    const Loop& inner = nest.loop[i];
    if (!Continues(outer, inner.stride, inner.extent)) continue;
    const int64_t extent = outer.extent * inner.extent;
    outer = inner;
    outer.extent = extent;
    std::move(nest.loop + i + 1, nest.loop + rank, nest.loop + i);
    --rank;
  }
  nest.rank = rank;
  return true;
}

}  // namespace headrace::kernels::internal
