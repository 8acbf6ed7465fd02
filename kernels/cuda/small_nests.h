#ifndef HEADRACE_KERNELS_CUDA_SMALL_NESTS_H_
#define HEADRACE_KERNELS_CUDA_SMALL_NESTS_H_

// Boxes as a cursor counts them (kernels/cuda/cursor.h): runs and loops of at most kMaxSteps.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cursor.h"
#include "kernels/loop_nest.h"

namespace headrace::kernels::grid {

// Calls body(nest) for parts of `nest` that together are all of it; almost always that is `nest` itself. On side s a
// unit has unit_bytes[s] bytes, which divide the run.
template <class Body>
void ForEachSmallNest(const internal::LoopNest& nest, const int64_t (&unit_bytes)[internal::kSides], const Body& body) {
  // The loop to be cut; nest.rank: the run.
  int cut = 0;
  while (cut < nest.rank && nest.loop[cut].extent <= kMaxSteps) ++cut;
  const int64_t steps = cut < nest.rank ? nest.loop[cut].extent : nest.run[0] / unit_bytes[0];
  if (steps <= kMaxSteps) return body(nest);
  for (int64_t first = 0; first < steps; first += kMaxSteps) {
    const int64_t count = std::min(kMaxSteps, steps - first);
    internal::LoopNest part = nest;
    if (cut < nest.rank) part.loop[cut].extent = count;
    for (int s = 0; s < internal::kSides; ++s) {
      part.base[s] += first * (cut < nest.rank ? nest.loop[cut].stride[s] : unit_bytes[s]);
      if (cut == nest.rank) part.run[s] = count * unit_bytes[s];
    }
    ForEachSmallNest(part, unit_bytes, body);
  }
}

// The loops of a small nest, outermost ones of one step added, and the units of its box.
template <int kLoops, int kUsed>
int64_t FillShape(const internal::LoopNest& nest, int64_t run_units, const internal::Side (&sides)[kUsed],
                  BoxShape<kLoops, kUsed>& shape) {
  shape = {};
  shape.run_units = static_cast<int32_t>(run_units);
  int64_t units = run_units;
  const int absent = kLoops - nest.rank;
  for (int i = 0; i < kLoops; ++i) {
    shape.extent[i] = 1;
    if (i < absent) continue;
    const internal::Loop& loop = nest.loop[i - absent];
    shape.extent[i] = static_cast<int32_t>(loop.extent);
    for (int s = 0; s < kUsed; ++s) shape.stride[s][i] = loop.stride[sides[s]];
    units *= loop.extent;
  }
  SetAdvance(shape);
  return units;
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_SMALL_NESTS_H_
