#if defined(__x86_64__)
#include <immintrin.h>

// The compiler's own intrinsics start from values that they leave undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define HEADRACE_TARGET __attribute__((target("avx512f")))
#include "kernels/row_kernels_impl.h"

namespace headrace::kernels::internal {
namespace {

struct Avx512 {
  static constexpr int64_t kWords = 16;
  using Vec = __m512i;
  using Acc = __m512i;
  HEADRACE_INLINE Acc Zero() { return _mm512_setzero_si512(); }
  HEADRACE_INLINE Vec Load(const void* p) { return _mm512_loadu_si512(p); }
  HEADRACE_INLINE void Store(void* p, Vec v) { _mm512_storeu_si512(p, v); }
  HEADRACE_INLINE void Stream(void* p, Vec v) { _mm512_stream_si512(static_cast<__m512i*>(p), v); }
  HEADRACE_INLINE void MulAddEven(Acc& acc, Vec x, Vec k) { acc = _mm512_add_epi64(acc, _mm512_mul_epu32(x, k)); }
  HEADRACE_INLINE void MulAddOdd(Acc& acc, Vec x, Vec k) {
    acc = _mm512_add_epi64(acc, _mm512_mul_epu32(_mm512_srli_epi64(x, 32), k));
  }
  HEADRACE_INLINE uint64_t Reduce(Acc a, Acc b) {
    // Not _mm512_reduce_add_epi64, whose last addition is signed and may overflow.
    const __m512i s = _mm512_add_epi64(a, b);
    const __m256i t = _mm256_add_epi64(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
    const __m128i u = _mm_add_epi64(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(u)) + static_cast<uint64_t>(_mm_extract_epi64(u, 1));
  }
};

}  // namespace

constexpr RowKernels kAvx512RowKernels = MakeRowKernels<Avx512>();

}  // namespace headrace::kernels::internal
#endif  // defined(__x86_64__)
