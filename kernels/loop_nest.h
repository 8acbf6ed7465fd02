#ifndef HEADRACE_KERNELS_LOOP_NEST_H_
#define HEADRACE_KERNELS_LOOP_NEST_H_

// The loops of a box in the form that is fastest to run, for work whose order does not matter.

#include <cstdint>

namespace headrace::kernels::internal {

inline constexpr int kMaxLoops = 5;

// The addresses that advance with a loop: source, destination, position in the tensor.
enum Side { kSrc = 0, kDst = 1, kPos = 2, kSides = 3 };

struct Loop {
  int64_t extent = 1;
  int64_t stride[kSides] = {};  // bytes
};

// `rank` loops, outermost first, around a run of `run[s]` contiguous bytes on side s. Offsets are relative to the
// box's first byte on each side. A side that is not used repeats the strides and run of one that is.
struct LoopNest {
  int rank = 0;
  Loop loop[kMaxLoops];
  int64_t run[kSides] = {};
  int64_t base[kSides] = {};
};

// Reorders and joins loops without changing the set of (source, destination, position) bytes:
//  - loops of one step vanish; loops that go down on side `lead` are turned around (`base` moves);
//  - the smaller a stride on side `lead`, the further inside;
//  - loops that continue each other on all sides become one, and a loop that continues the run becomes part of it.
// Returns false where the nest is empty.
bool Normalize(LoopNest& nest, Side lead);

// Calls body(src, dst, pos) with the offsets of each step of all loops but the `inner` innermost ones.
template <class Body>
void ForEachOuter(const LoopNest& nest, int inner, Body&& body) {
  const int outer = nest.rank > inner ? nest.rank - inner : 0;
  int64_t index[kMaxLoops] = {};
  int64_t at[kSides] = {nest.base[kSrc], nest.base[kDst], nest.base[kPos]};
  while (true) {
    body(at[kSrc], at[kDst], at[kPos]);
    int i = outer - 1;
    for (; i >= 0; --i) {
      const Loop& loop = nest.loop[i];
      if (++index[i] < loop.extent) {
        for (int s = 0; s < kSides; ++s) at[s] += loop.stride[s];
        break;
      }
      index[i] = 0;
      for (int s = 0; s < kSides; ++s) at[s] -= loop.stride[s] * (loop.extent - 1);
    }
    if (i < 0) return;
  }
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_LOOP_NEST_H_
