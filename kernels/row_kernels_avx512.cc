#if defined(__x86_64__)
#include <immintrin.h>

// The compiler's own intrinsics start from values that they leave undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define HEADRACE_TARGET __attribute__((target("avx512f")))
#include "kernels/row_kernels_impl.h"

namespace headrace::kernels_internal {
namespace {

struct Avx512 {
  static constexpr int64_t kWords = 16;
  using Vec = __m512i;
  struct Acc {
    __m512i even, odd;
  };
  HEADRACE_INLINE Acc Zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
  HEADRACE_INLINE Vec Load(const void* p) { return _mm512_loadu_si512(p); }
  HEADRACE_INLINE void Store(void* p, Vec v) { _mm512_storeu_si512(p, v); }
  HEADRACE_INLINE void Stream(void* p, Vec v) { _mm512_stream_si512(static_cast<__m512i*>(p), v); }
  HEADRACE_INLINE void MulAdd(Acc& acc, Vec a, Vec b) {
    acc.even = _mm512_add_epi64(acc.even, _mm512_mul_epu32(a, b));
    acc.odd = _mm512_add_epi64(acc.odd, _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32)));
  }
  HEADRACE_INLINE uint64_t Reduce(const Acc& a, const Acc& b) {
    return static_cast<uint64_t>(
        _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a.even, a.odd), _mm512_add_epi64(b.even, b.odd))));
  }
};

}  // namespace

constexpr RowKernels kAvx512RowKernels = MakeRowKernels<Avx512>();

}  // namespace headrace::kernels_internal
#endif  // defined(__x86_64__)
