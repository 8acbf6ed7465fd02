#include "kernels/transpose.h"

#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace headrace::kernels::internal {
namespace {

template <int kBytes>
void Elements(int64_t row, int64_t rows, int64_t column, int64_t columns, const std::byte* src, int64_t src_pitch,
              std::byte* dst, int64_t dst_pitch) {
  for (int64_t j = column; j < columns; ++j) {
    for (int64_t i = row; i < rows; ++i) {
      std::memcpy(dst + j * dst_pitch + i * kBytes, src + i * src_pitch + j * kBytes, kBytes);
    }
  }
}

#if defined(__x86_64__)
// 8 x 8 elements of two bytes, by three rounds of interleaving.
void Block2(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch) {
  __m128i a[8], b[8];
  for (int i = 0; i < 8; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i * src_pitch));
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm_unpacklo_epi16(b[i], b[i + 4]);
    a[2 * i + 1] = _mm_unpackhi_epi16(b[i], b[i + 4]);
  }
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = _mm_unpacklo_epi16(a[i], a[i + 4]);
    b[2 * i + 1] = _mm_unpackhi_epi16(a[i], a[i + 4]);
  }
  for (int i = 0; i < 8; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i * dst_pitch), b[i]);
}
#endif

}  // namespace

void TransposeTile(int64_t bytes, int64_t rows, int64_t columns, const std::byte* src, int64_t src_pitch,
                   std::byte* dst, int64_t dst_pitch) {
  switch (bytes) {
    case 1:
      return Elements<1>(0, rows, 0, columns, src, src_pitch, dst, dst_pitch);
    case 2: {
      int64_t whole_rows = 0, whole_columns = 0;
#if defined(__x86_64__)
      whole_rows = rows & ~int64_t{7}, whole_columns = columns & ~int64_t{7};
      for (int64_t j = 0; j < whole_columns; j += 8) {
        for (int64_t i = 0; i < whole_rows; i += 8) {
          Block2(src + i * src_pitch + j * 2, src_pitch, dst + j * dst_pitch + i * 2, dst_pitch);
        }
      }
#endif
      Elements<2>(whole_rows, rows, 0, whole_columns, src, src_pitch, dst, dst_pitch);
      return Elements<2>(0, rows, whole_columns, columns, src, src_pitch, dst, dst_pitch);
    }
    case 4:
      return Elements<4>(0, rows, 0, columns, src, src_pitch, dst, dst_pitch);
    case 8:
      return Elements<8>(0, rows, 0, columns, src, src_pitch, dst, dst_pitch);
    default:
      return Elements<16>(0, rows, 0, columns, src, src_pitch, dst, dst_pitch);
  }
}

}  // namespace headrace::kernels::internal
