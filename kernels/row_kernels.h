#ifndef HEADRACE_KERNELS_ROW_KERNELS_H_
#define HEADRACE_KERNELS_ROW_KERNELS_H_

// The innermost loops of the strided copy: equal contiguous runs at a fixed pitch. One table of functions for each
// SIMD level; row_kernels_impl.h is their common source.

#include <cstddef>
#include <cstdint>

namespace headrace::kernels::internal {

// `count` runs of `run_bytes` (> 0). Run i is at src + i * src_stride, goes to dst + i * dst_stride and is at byte
// first_byte + i * pos_stride of the tensor. Strides in bytes. Source and destination do not overlap.
struct Rows {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  int64_t run_bytes = 0;
  int64_t count = 0;
  int64_t src_stride = 0;
  int64_t dst_stride = 0;
  uint64_t tensor_key = 0;
  int64_t first_byte = 0;
  int64_t pos_stride = 0;
};

// The stream variants write whole 64-byte lines past the cache; the caller fences (StreamFence) before it returns.
struct RowKernels {
  void (*copy)(const Rows&);
  void (*copy_stream)(const Rows&);
  uint64_t (*sum)(const Rows&);  // reads src alone
  uint64_t (*copy_sum)(const Rows&);
  uint64_t (*copy_sum_stream)(const Rows&);
};

extern const RowKernels kPortableRowKernels;
#if defined(__x86_64__)
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;
#endif

// The table of ActiveSimdLevel().
const RowKernels& ActiveRowKernels();

// Makes streamed stores visible before later stores of this thread.
void StreamFence();

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_ROW_KERNELS_H_
