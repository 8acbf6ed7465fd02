#if defined(__x86_64__)
#include <immintrin.h>

// The compiler's own intrinsics start from values that they leave undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#define HEADRACE_TARGET __attribute__((target("avx512f")))
#include "kernels/row_kernels_impl.h"

namespace headrace::kernels_internal {
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
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(a, b)));
  }
};

}  // namespace

constexpr RowKernels kAvx512RowKernels = MakeRowKernels<Avx512>();

}  // namespace headrace::kernels_internal
#endif  // defined(__x86_64__)
