#include "kernels/simd_level.h"

#include <atomic>

namespace headrace::kernels::internal {
namespace {

std::atomic<SimdLevel>& Level() {
  static std::atomic<SimdLevel> level{BestSimdLevel()};
  return level;
}

}  // namespace

SimdLevel BestSimdLevel() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return SimdLevel::kPortable;
  return __builtin_cpu_supports("avx512f") ? SimdLevel::kAvx512 : SimdLevel::kAvx2;
#else
  return SimdLevel::kPortable;
#endif
}

SimdLevel ActiveSimdLevel() { return Level().load(std::memory_order_relaxed); }

void ForceSimdLevelForTest(SimdLevel level) { Level().store(level, std::memory_order_relaxed); }

}  // namespace headrace::kernels::internal
