#ifndef HEADRACE_KERNELS_TRANSPOSE_H_
#define HEADRACE_KERNELS_TRANSPOSE_H_

// Matrices that are transposed between memories whose rows are far apart.

#include <cstddef>
#include <cstdint>

namespace headrace::kernels::internal {

// Writes element (i, j) of `bytes` (1, 2, 4, 8 or 16) bytes, at src + i * src_pitch + j * bytes, to
// dst + j * dst_pitch + i * bytes, for i < rows, j < columns. For tiles that fit in the first-level cache.
void TransposeTile(int64_t bytes, int64_t rows, int64_t columns, const std::byte* src, int64_t src_pitch,
                   std::byte* dst, int64_t dst_pitch);

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_TRANSPOSE_H_
