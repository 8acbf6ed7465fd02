#ifndef HEADRACE_KERNELS_CUDA_ELEMENTWISE_BODY_H_
#define HEADRACE_KERNELS_CUDA_ELEMENTWISE_BODY_H_

// The work of a warp on a table of casts (kernels/cast.h) and negated exponentials (kernels/neg_exp.h).

#include <cstddef>
#include <cstdint>

#include "kernels/cast.h"
#include "kernels/cuda/cursor.h"
#include "kernels/cuda/table.h"
#include "kernels/float_bits.h"
#include "kernels/neg_exp_bits.h"

namespace headrace::kernels::grid {

// A cast's operation; after the casts comes the negated exponential.
HR_HOST_DEVICE constexpr int CastOp(FloatType from, FloatType to) {
  return 4 * static_cast<int>(from) + static_cast<int>(to);
}
inline constexpr int kNegExpOp = 16;

// Lives in device memory.
struct ElementwiseDescriptor {
  const std::byte* src;
  std::byte* dst;
  BoxShape<kMaxCastLoops, 2> shape;  // sides: source, destination
  int64_t units;                     // of `width` elements each
  int32_t op;
  int32_t width;  // 1, or 4: elements that are contiguous and aligned as one on both sides
};

template <class From, class To>
struct CastElement {
  using In = typename From::Bits;
  using Out = typename To::Bits;
  HR_HOST_DEVICE static Out Of(In in) { return internal::ConvertFloat<From, To>(in); }
};

struct NegExpElement {
  using In = uint32_t;
  using Out = uint32_t;
  HR_HOST_DEVICE static Out Of(In in) { return internal::NegExpBits(in); }
};

inline constexpr int kWideElements = 4;

template <class Bits, int kWidth>
struct alignas(kWidth * sizeof(Bits) < 16 ? kWidth * sizeof(Bits) : 16) Elements {
  Bits bits[kWidth];
};

template <class Op, int kWidth, class Warp>
HR_HOST_DEVICE void ConvertUnits(const Warp& warp, const ElementwiseDescriptor& d, int64_t begin, int64_t end) {
  using In = Elements<typename Op::In, kWidth>;
  using Out = Elements<typename Op::Out, kWidth>;
  const int unit_bytes[2] = {sizeof(In), sizeof(Out)};
  Cursor<2, kMaxCastLoops, 2> at(d.shape, unit_bytes, begin);
  for (int64_t unit = begin; unit < end; unit += kWarpLanes) {
    const In in = warp.template Load<In>(d.src + at.offset(0));
    Out out;
    HR_UNROLL
    for (int i = 0; i < kWidth; ++i) out.bits[i] = Op::Of(in.bits[i]);
    warp.Store(d.dst + at.offset(1), out);
    at.Advance(d.shape);
  }
}

template <class Op, class Warp>
HR_HOST_DEVICE void ConvertLane(const Warp& warp, const ElementwiseDescriptor& d, int64_t begin, int64_t end) {
  if (d.width == kWideElements) {
    ConvertUnits<Op, kWideElements>(warp, d, begin, end);
  } else {
    ConvertUnits<Op, 1>(warp, d, begin, end);
  }
}

template <class Warp>
HR_HOST_DEVICE void ConvertOne(const Warp& warp, const ElementwiseDescriptor& d, int64_t begin, int64_t end) {
  using internal::BF16;
  using internal::F16;
  using internal::F32;
  using internal::F64;
  switch (d.op) {
    case CastOp(FloatType::kF16, FloatType::kBF16):
      return ConvertLane<CastElement<F16, BF16>>(warp, d, begin, end);
    case CastOp(FloatType::kF16, FloatType::kF32):
      return ConvertLane<CastElement<F16, F32>>(warp, d, begin, end);
    case CastOp(FloatType::kF16, FloatType::kF64):
      return ConvertLane<CastElement<F16, F64>>(warp, d, begin, end);
    case CastOp(FloatType::kBF16, FloatType::kF16):
      return ConvertLane<CastElement<BF16, F16>>(warp, d, begin, end);
    case CastOp(FloatType::kBF16, FloatType::kF32):
      return ConvertLane<CastElement<BF16, F32>>(warp, d, begin, end);
    case CastOp(FloatType::kBF16, FloatType::kF64):
      return ConvertLane<CastElement<BF16, F64>>(warp, d, begin, end);
    case CastOp(FloatType::kF32, FloatType::kF16):
      return ConvertLane<CastElement<F32, F16>>(warp, d, begin, end);
    case CastOp(FloatType::kF32, FloatType::kBF16):
      return ConvertLane<CastElement<F32, BF16>>(warp, d, begin, end);
    case CastOp(FloatType::kF32, FloatType::kF64):
      return ConvertLane<CastElement<F32, F64>>(warp, d, begin, end);
    case CastOp(FloatType::kF64, FloatType::kF16):
      return ConvertLane<CastElement<F64, F16>>(warp, d, begin, end);
    case CastOp(FloatType::kF64, FloatType::kBF16):
      return ConvertLane<CastElement<F64, BF16>>(warp, d, begin, end);
    case CastOp(FloatType::kF64, FloatType::kF32):
      return ConvertLane<CastElement<F64, F32>>(warp, d, begin, end);
    case kNegExpOp:
      return ConvertLane<NegExpElement>(warp, d, begin, end);
  }
}

template <class Warp>
HR_HOST_DEVICE void ElementwiseWarp(const Warp& warp, const Table<ElementwiseDescriptor>& table) {
  ForEachSlice(table, warp.worker(), warp.workers(),
               [&](const ElementwiseDescriptor& d, int64_t first_tile, int64_t end_tile) {
                 const int64_t begin = first_tile * kTileUnits, end = internal::Min(d.units, end_tile * kTileUnits);
                 warp.ForEachLane([&](int lane) { ConvertOne(warp, d, begin + lane, end); });
               });
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_ELEMENTWISE_BODY_H_
