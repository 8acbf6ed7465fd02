#ifndef HEADRACE_LOADER_TESTING_NAIVE_COPY_H_
#define HEADRACE_LOADER_TESTING_NAIVE_COPY_H_

// Test only. A plan's copies, byte by byte.

#include <cstdlib>
#include <functional>
#include <random>

#include "kernels/strided_copy.h"
#include "planner/plan.h"

namespace headrace::testing {

// Calls f(source byte, destination byte, tensor byte) for each byte of a copy, as offsets from the first elements.
inline void VisitCopy(const Copy& copy, const std::function<void(Index, Index, Index)>& f) {
  Index steps = 1;
  for (const CopyLoop& l : copy.loops) steps *= l.extent;
  for (Index n = 0; n < steps; ++n) {
    Index source = copy.source_offset, destination = copy.destination_offset, position = copy.position, rest = n;
    for (size_t i = copy.loops.size(); i-- > 0;) {
      const Index at = rest % copy.loops[i].extent;
      rest /= copy.loops[i].extent;
      source += at * copy.loops[i].source_stride;
      destination += at * copy.loops[i].destination_stride;
      position += at * copy.loops[i].position_stride;
    }
    for (Index k = 0; k < copy.run_bytes; ++k) f(source + k, destination + k, position + k);
  }
}

// Calls f(source pointer, destination pointer, tensor byte) for each byte of a kernel's descriptor.
inline void VisitBox(const kernels::StridedCopy& c,
                     const std::function<void(const std::byte*, std::byte*, int64_t)>& f) {
  int64_t steps = 1;
  for (int i = 0; i < c.rank; ++i) steps *= c.extent[i];
  for (int64_t n = 0; n < steps; ++n) {
    int64_t source = 0, destination = 0, position = c.first_byte, rest = n;
    for (int i = c.rank; i-- > 0;) {
      const int64_t at = rest % c.extent[i];
      rest /= c.extent[i];
      source += at * c.src_stride[i];
      destination += at * c.dst_stride[i];
      position += at * c.pos_stride[i];
    }
    for (int64_t k = 0; k < c.run_bytes; ++k) f(c.src + source + k, c.dst + destination + k, position + k);
  }
}

// `cases` times the sanitizers' share of it, at least 1.
inline int Share(int cases) {
  const char* percent = std::getenv("HEADRACE_TEST_SHARE");
  const int share = cases * (percent == nullptr ? 100 : std::atoi(percent)) / 100;
  return share < 1 ? 1 : share;
}

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_TESTING_NAIVE_COPY_H_
