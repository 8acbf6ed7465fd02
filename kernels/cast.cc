#include "kernels/cast.h"

#include <cstring>
#include <type_traits>

#include "kernels/cast_rows.h"
#include "kernels/float_bits.h"
#include "kernels/loop_nest.h"

namespace headrace::kernels {
namespace {

using internal::BF16;
using internal::F16;
using internal::F32;
using internal::F64;
using internal::kDst;
using internal::kPos;
using internal::kSrc;
using internal::LoopNest;

// Converts `n` elements at fixed byte strides.
using CastLine = void (*)(const std::byte* src, std::byte* dst, int64_t n, int64_t src_stride, int64_t dst_stride);

template <class From, class To>
void CastElements(const std::byte* src, std::byte* dst, int64_t n, int64_t src_stride, int64_t dst_stride) {
  for (int64_t i = 0; i < n; ++i) {
    typename From::Bits in;
    std::memcpy(&in, src + i * src_stride, sizeof(in));
    const typename To::Bits out = internal::ConvertFloat<From, To>(in);
    std::memcpy(dst + i * dst_stride, &out, sizeof(out));
  }
}

template <class From, class To>
void Line(const std::byte* src, std::byte* dst, int64_t n, int64_t src_stride, int64_t dst_stride) {
  constexpr bool kNarrowF32 = std::is_same_v<From, F32> && sizeof(typename To::Bits) == 2;
  int64_t done = 0;
  if constexpr (kNarrowF32) {
    if (src_stride == 4 && dst_stride == 2) {
      done =
          std::is_same_v<To, BF16> ? internal::CastRowF32ToBF16(src, dst, n) : internal::CastRowF32ToF16(src, dst, n);
    }
  }
  CastElements<From, To>(src + done * src_stride, dst + done * dst_stride, n - done, src_stride, dst_stride);
}

template <class From>
CastLine LineTo(FloatType to) {
  switch (to) {
    case FloatType::kF16:
      return Line<From, F16>;
    case FloatType::kBF16:
      return Line<From, BF16>;
    case FloatType::kF32:
      return Line<From, F32>;
    case FloatType::kF64:
      return Line<From, F64>;
  }
  return nullptr;
}

CastLine LineOf(FloatType from, FloatType to) {
  switch (from) {
    case FloatType::kF16:
      return LineTo<F16>(to);
    case FloatType::kBF16:
      return LineTo<BF16>(to);
    case FloatType::kF32:
      return LineTo<F32>(to);
    case FloatType::kF64:
      return LineTo<F64>(to);
  }
  return nullptr;
}

}  // namespace

int FloatBytes(FloatType type) {
  switch (type) {
    case FloatType::kF16:
    case FloatType::kBF16:
      return 2;
    case FloatType::kF32:
      return 4;
    case FloatType::kF64:
      return 8;
  }
  return 0;
}

bool CanCast(FloatType from, FloatType to) { return from != to; }

void Cast(FloatType from, FloatType to, const StridedCast& c) {
  if (!CanCast(from, to)) return;
  LoopNest nest;
  nest.rank = c.rank;
  for (int i = 0; i < c.rank; ++i) {
    nest.loop[i].extent = c.extent[i];
    nest.loop[i].stride[kSrc] = c.src_stride[i];
    nest.loop[i].stride[kDst] = nest.loop[i].stride[kPos] = c.dst_stride[i];
  }
  nest.run[kSrc] = FloatBytes(from);
  nest.run[kDst] = nest.run[kPos] = FloatBytes(to);
  if (!Normalize(nest, kDst)) return;
  const CastLine line = LineOf(from, to);
  int64_t n = nest.run[kDst] / FloatBytes(to);
  int64_t src_stride = FloatBytes(from), dst_stride = FloatBytes(to);
  int inner = 0;
  if (n == 1 && nest.rank > 0) {  // no loop is contiguous: the innermost is the line
    const internal::Loop& loop = nest.loop[nest.rank - 1];
    n = loop.extent;
    src_stride = loop.stride[kSrc];
    dst_stride = loop.stride[kDst];
    inner = 1;
  }
  internal::ForEachOuter(nest, inner, [&](int64_t src_at, int64_t dst_at, int64_t) {
    line(c.src + src_at, c.dst + dst_at, n, src_stride, dst_stride);
  });
}

}  // namespace headrace::kernels
