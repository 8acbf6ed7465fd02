#ifndef HEADRACE_KERNELS_CAST_H_
#define HEADRACE_KERNELS_CAST_H_

// Conversion of floating-point elements over a strided box.
//
// Every conversion rounds once, to nearest, ties to even: F64 to BF16 does not pass through F32. What is beyond the
// largest finite value by half a unit or more becomes infinity; denormals are kept on both sides, whatever the
// processor's flush modes are; a NaN stays a NaN with its sign and its payload's top bits (made
// quiet only where those are zero). Widening is exact, and narrowing what was widened gives the same bits.
// All SIMD levels give the same bits.

#include <cstddef>
#include <cstdint>

namespace headrace::kernels {

// IEEE 754 binary16, binary32 and binary64, and bfloat16 (the upper half of a binary32).
enum class FloatType { kF16, kBF16, kF32, kF64 };

// Bytes of an element.
int FloatBytes(FloatType type);

// Whether Cast converts between the two: any two different types (equal ones are a copy's work).
bool CanCast(FloatType from, FloatType to);

inline constexpr int kMaxCastLoops = 5;

// `rank` loops over single elements, loop 0 outermost. In numpy's words:
//     as_strided(dst, extent, dst_stride)[...] = as_strided(src, extent, src_stride).astype(to)
struct StridedCast {
  const std::byte* src = nullptr;          // the first element; need not be aligned
  std::byte* dst = nullptr;                // the first element; need not be aligned
  int rank = 0;                            // 0 (one element) to kMaxCastLoops
  int64_t extent[kMaxCastLoops] = {};      // elements; 0 makes the box empty
  int64_t src_stride[kMaxCastLoops] = {};  // bytes a step; may be negative or 0
  int64_t dst_stride[kMaxCastLoops] = {};  // bytes a step; no destination byte may be reached twice
};

// Converts the box; does nothing unless CanCast(from, to). Source and destination must not overlap. Pure and
// re-entrant; memory outside the destination's elements is not written.
void Cast(FloatType from, FloatType to, const StridedCast& c);

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CAST_H_
