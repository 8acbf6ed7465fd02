#ifndef HEADRACE_KERNELS_STRIDED_COPY_H_
#define HEADRACE_KERNELS_STRIDED_COPY_H_

// One strided copy of a box of a tensor, with the verification sum (kernels/sum.h) fused.
//
// All functions are pure and re-entrant: they start no threads, keep no state and may run at once on disjoint
// destinations. Bytes outside the box, those between strides too, are neither written nor (beyond a source's own
// runs) read. Large copies bypass the cache; their stores are fenced before the function returns, so that a flag
// stored afterwards publishes them.

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::kernels {

inline constexpr int kMaxBoxLoops = 4;

// `rank` loops, loop 0 outermost, over contiguous runs. In numpy's words, with u8 arrays `src` and `dst` whose first
// byte is the pointer's:
//
//     dst_view = as_strided(dst, extent[:rank] + [run_bytes], dst_stride[:rank] + [1])
//     src_view = as_strided(src, extent[:rank] + [run_bytes], src_stride[:rank] + [1])
//     dst_view[...] = src_view
//
// The packed order of the box is the row-major order of these views. Example: rows 2..3 of a row-major [4, 6] tensor
// of 2-byte elements, columns 1..4, into a dense destination: run_bytes 8, rank 1, extent {2}, src_stride {12},
// dst_stride {8}, first_byte (2 * 6 + 1) * 2 = 26, pos_stride {12}.
struct StridedCopy {
  const std::byte* src = nullptr;  // the box's first byte; not read by UnpackAndSum
  std::byte* dst = nullptr;        // the box's first byte; not written by Sum and Pack
  // Bytes that are contiguous in source, destination and tensor: the element size where no axis is.
  int64_t run_bytes = 0;
  int rank = 0;                           // 0 to kMaxBoxLoops
  int64_t extent[kMaxBoxLoops] = {};      // steps; 0 makes the box empty
  int64_t src_stride[kMaxBoxLoops] = {};  // bytes a step; may be negative or 0
  int64_t dst_stride[kMaxBoxLoops] = {};  // bytes a step; no destination byte may be reached twice
  // For the sum alone: the tensor, the place of the box's first byte in the tensor's row-major memory, and the bytes
  // of it that a step advances.
  uint64_t tensor_key = 0;
  int64_t first_byte = 0;
  int64_t pos_stride[kMaxBoxLoops] = {};
};

// Bytes of the box. The caller knows that they fit in 63 bits.
int64_t BoxBytes(const StridedCopy& c);

// Copies the box. Source and destination must not overlap.
void Copy(const StridedCopy& c);

// Copies the box and returns the sum of the bytes that were copied.
uint64_t CopyAndSum(const StridedCopy& c);

// Returns the sum of the source's bytes; ignores the destination.
uint64_t Sum(const StridedCopy& c);

// Gathers bytes [first, first + out.size()) of the box's packed order into `out`; ignores the destination. Needs
// 0 <= first and first + out.size() <= BoxBytes(c). Starting at any byte costs the same.
void Pack(const StridedCopy& c, int64_t first, std::span<std::byte> out);

// Scatters `in`, which is bytes [first, first + in.size()) of the box's packed order, into the destination and returns
// their sum; ignores the source. However the packed bytes are cut, the parts' sums add up to Sum of the box.
uint64_t UnpackAndSum(const StridedCopy& c, int64_t first, std::span<const std::byte> in);

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_STRIDED_COPY_H_
