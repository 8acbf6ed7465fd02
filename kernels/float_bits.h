#ifndef HEADRACE_KERNELS_FLOAT_BITS_H_
#define HEADRACE_KERNELS_FLOAT_BITS_H_

// Conversions between binary floating-point formats on their bits, in integer arithmetic alone: rounding and flush
// modes of the processor do not matter. Device code shares it.

#include <cstdint>

#include "kernels/host_device.h"

namespace headrace::kernels::internal {

// A format by its field widths; `Bits` holds an element.
template <class BitsType, int kExponent, int kMantissa>
struct FloatFormat {
  using Bits = BitsType;
  static constexpr int kExponentBits = kExponent;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr uint64_t kExponentMax = (uint64_t{1} << kExponent) - 1;  // infinities and NaNs
  static constexpr uint64_t kQuiet = uint64_t{1} << (kMantissa - 1);
};

using F16 = FloatFormat<uint16_t, 5, 10>;
using BF16 = FloatFormat<uint16_t, 8, 7>;
using F32 = FloatFormat<uint32_t, 8, 23>;
using F64 = FloatFormat<uint64_t, 11, 52>;

// `value` shifted right by `shift` (>= 1), rounded to nearest, ties to even.
HR_HOST_DEVICE constexpr uint64_t ShiftRightNearestEven(uint64_t value, int shift) {
  if (shift > 63) return 0;  // callers' values are below 2^53, hence below half a unit
  const uint64_t odd = (value >> shift) & 1;
  return (value + (uint64_t{1} << (shift - 1)) - 1 + odd) >> shift;
}

// The bits in format To of the value that `bits` has in format From.
template <class From, class To>
HR_HOST_DEVICE constexpr typename To::Bits ConvertFloat(typename From::Bits bits) {
  constexpr int kFromMantissa = From::kMantissaBits, kToMantissa = To::kMantissaBits;
  const uint64_t in = bits;
  const uint64_t sign = (in >> (From::kExponentBits + kFromMantissa)) << (To::kExponentBits + kToMantissa);
  const uint64_t in_exponent = (in >> kFromMantissa) & From::kExponentMax;
  uint64_t mantissa = in & ((uint64_t{1} << kFromMantissa) - 1);
  if (in_exponent == From::kExponentMax) {
    uint64_t out = sign | (To::kExponentMax << kToMantissa);
    if (mantissa != 0) {
      if constexpr (kFromMantissa > kToMantissa) {
        mantissa >>= kFromMantissa - kToMantissa;
      } else {
        mantissa <<= kToMantissa - kFromMantissa;
      }
      // A NaN keeps its payload's top bits, so that widening and narrowing gives the same NaN back; one whose top bits
      // are zero must not become an infinity.
      out |= mantissa != 0 ? mantissa : To::kQuiet;
    }
    return static_cast<typename To::Bits>(out);
  }
  // The value is mantissa * 2^(exponent - kFromMantissa) with the leading one at bit kFromMantissa.
  int exponent = static_cast<int>(in_exponent) - From::kBias;
  if (in_exponent != 0) {
    mantissa |= uint64_t{1} << kFromMantissa;
  } else {
    if (mantissa == 0) return static_cast<typename To::Bits>(sign);
    const int up = CountLeadingZeros(mantissa) - (63 - kFromMantissa);
    mantissa <<= up;
    exponent += 1 - up;
  }
  // Rounding may carry into the next exponent: the fields are adjacent, so adding them carries too.
  int out_exponent = exponent + To::kBias;
  int shift = kFromMantissa - kToMantissa;
  if (out_exponent <= 0) {  // below the normal numbers: the leading one is written out and the exponent field is 0
    shift += 1 - out_exponent;
    out_exponent = 1;
  }
  const uint64_t rounded = shift > 0 ? ShiftRightNearestEven(mantissa, shift) : mantissa << -shift;
  const uint64_t out = (static_cast<uint64_t>(out_exponent - 1) << kToMantissa) + rounded;
  const uint64_t infinity = To::kExponentMax << kToMantissa;
  if (out_exponent >= static_cast<int>(To::kExponentMax) || out >= infinity) {
    return static_cast<typename To::Bits>(sign | infinity);
  }
  return static_cast<typename To::Bits>(sign | out);
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_FLOAT_BITS_H_
