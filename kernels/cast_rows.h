#ifndef HEADRACE_KERNELS_CAST_ROWS_H_
#define HEADRACE_KERNELS_CAST_ROWS_H_

// Vectorised conversions of contiguous elements.

#include <cstddef>
#include <cstdint>

namespace headrace::kernels::internal {

// Convert the first elements of `n`, as many as fill whole vectors of the active SIMD level (none at the portable
// one), and return their number.
int64_t CastRowF32ToBF16(const std::byte* src, std::byte* dst, int64_t n);
int64_t CastRowF32ToF16(const std::byte* src, std::byte* dst, int64_t n);

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_CAST_ROWS_H_
