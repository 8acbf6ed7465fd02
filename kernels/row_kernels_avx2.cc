#if defined(__x86_64__)
#include <immintrin.h>

#define HEADRACE_TARGET __attribute__((target("avx2")))
#include "kernels/row_kernels_impl.h"

namespace headrace::kernels::internal {
namespace {

struct Avx2 {
  static constexpr int64_t kWords = 8;
  using Vec = __m256i;
  using Acc = __m256i;
  HEADRACE_INLINE Acc Zero() { return _mm256_setzero_si256(); }
  HEADRACE_INLINE Vec Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  HEADRACE_INLINE void Store(void* p, Vec v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  HEADRACE_INLINE void Stream(void* p, Vec v) { _mm256_stream_si256(static_cast<__m256i*>(p), v); }
  HEADRACE_INLINE void MulAddEven(Acc& acc, Vec x, Vec k) { acc = _mm256_add_epi64(acc, _mm256_mul_epu32(x, k)); }
  HEADRACE_INLINE void MulAddOdd(Acc& acc, Vec x, Vec k) {
    acc = _mm256_add_epi64(acc, _mm256_mul_epu32(_mm256_srli_epi64(x, 32), k));
  }
  HEADRACE_INLINE uint64_t Reduce(Acc a, Acc b) {
    const __m256i s = _mm256_add_epi64(a, b);
    const __m128i t = _mm_add_epi64(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(t)) + static_cast<uint64_t>(_mm_extract_epi64(t, 1));
  }
};

}  // namespace

constexpr RowKernels kAvx2RowKernels = MakeRowKernels<Avx2>();

}  // namespace headrace::kernels::internal
#endif  // defined(__x86_64__)
