#include "kernels/cast_rows.h"

#include <cstring>

#include "kernels/float_bits.h"
#include "kernels/simd_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::kernels::internal {
namespace {

#if defined(__x86_64__)

// The BF16 bits of eight F32, each in the low half of a 32-bit lane.
__attribute__((target("avx2"), always_inline)) inline __m256i RoundToBF16(__m256i bits) {
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  // Adding 0x7FFF, or 0x8000 where the upper half is odd, carries into it exactly when it rounds up; past the largest
  // finite value the carry makes infinity.
  const __m256i carried = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i rounded = _mm256_srli_epi32(carried, 16);
  // A NaN keeps its upper half, unless that would be an infinity.
  const __m256i no_payload =
      _mm256_cmpeq_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(0x7F)), _mm256_setzero_si256());
  const __m256i nan = _mm256_or_si256(upper, _mm256_and_si256(no_payload, _mm256_set1_epi32(0x40)));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  return _mm256_blendv_epi8(rounded, nan, is_nan);
}

__attribute__((target("avx2"))) int64_t F32ToBF16Avx2(const std::byte* src, std::byte* dst, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i a = RoundToBF16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i * 4)));
    const __m256i b = RoundToBF16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i * 4 + 32)));
    // packus works within 128-bit halves; the permutation restores the order.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i * 2), packed);
  }
  return i;
}

// The instruction rounds as told and keeps denormal results whatever the flush modes; denormal inputs, which the
// denormals-are-zero mode drops, are far below half of the smallest F16. It makes NaNs quiet, so those go the other
// way.
__attribute__((target("avx2,f16c"))) int64_t F32ToF16Avx2(const std::byte* src, std::byte* dst, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_loadu_ps(reinterpret_cast<const float*>(src + i * 4));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i * 2), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    if (_mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) == 0) continue;
    for (int64_t k = i; k < i + 8; ++k) {
      uint32_t bits;
      std::memcpy(&bits, src + k * 4, sizeof bits);
      const uint16_t half = ConvertFloat<F32, F16>(bits);
      std::memcpy(dst + k * 2, &half, sizeof half);
    }
  }
  return i;
}

#endif  // defined(__x86_64__)

}  // namespace

int64_t CastRowF32ToBF16(const std::byte* src, std::byte* dst, int64_t n) {
#if defined(__x86_64__)
  if (ActiveSimdLevel() >= SimdLevel::kAvx2) return F32ToBF16Avx2(src, dst, n);
#endif
  static_cast<void>(src), static_cast<void>(dst), static_cast<void>(n);
  return 0;
}

int64_t CastRowF32ToF16(const std::byte* src, std::byte* dst, int64_t n) {
#if defined(__x86_64__)
  if (ActiveSimdLevel() >= SimdLevel::kAvx2) return F32ToF16Avx2(src, dst, n);
#endif
  static_cast<void>(src), static_cast<void>(dst), static_cast<void>(n);
  return 0;
}

}  // namespace headrace::kernels::internal
