#ifndef HEADRACE_KERNELS_SIMD_LEVEL_H_
#define HEADRACE_KERNELS_SIMD_LEVEL_H_

// Which instruction set the kernels run with. The library is compiled for the baseline processor; faster variants
// carry their own target attributes and are chosen at run time, so one binary runs anywhere. All levels give
// bit-identical results.

namespace headrace::kernels::internal {

enum class SimdLevel { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// The best level of this processor and operating system.
SimdLevel BestSimdLevel();

// The level in use: the best one unless a test forced another. Thread-safe.
SimdLevel ActiveSimdLevel();

// For tests: uses `level` from now on, in all threads. `level` must not be above BestSimdLevel().
void ForceSimdLevelForTest(SimdLevel level);

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_SIMD_LEVEL_H_
