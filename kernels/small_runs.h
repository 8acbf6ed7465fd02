#ifndef HEADRACE_KERNELS_SMALL_RUNS_H_
#define HEADRACE_KERNELS_SMALL_RUNS_H_

// Boxes whose runs are single elements (transposes, interleaved layouts): done in tiles of two loops that stay in the
// first-level cache on both sides.

#include <cstddef>
#include <cstdint>

#include "kernels/loop_nest.h"

namespace headrace::kernels::internal {

// Whether the tiled loops take runs of this length: 1, 2, 4, 8 or 16 bytes.
constexpr bool IsSmallRun(int64_t run_bytes) {
  return run_bytes <= 16 && run_bytes > 0 && (run_bytes & (run_bytes - 1)) == 0;
}

// What to do with each element. The sum covers the bytes of the source.
enum class SmallRunWork { kCopy, kSum, kCopyAndSum };

// `nest` is normalised, has at least one loop and runs for which IsSmallRun holds. `dst` is not used by kSum.
// With `stream`, whole lines of a destination that is too large for the cache may bypass it: the caller fences.
// Returns the sum, or 0 for kCopy.
uint64_t SmallRuns(SmallRunWork work, bool stream, const LoopNest& nest, const std::byte* src, std::byte* dst,
                   uint64_t tensor_key, int64_t first_byte);

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_SMALL_RUNS_H_
