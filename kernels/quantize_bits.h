#ifndef HEADRACE_KERNELS_QUANTIZE_BITS_H_
#define HEADRACE_KERNELS_QUANTIZE_BITS_H_

// The arithmetic of kernels/quantize.h on single values, for CPU and device.

#include <cstdint>
#include <cstring>

#include "kernels/float_bits.h"
#include "kernels/host_device.h"

namespace headrace::kernels::internal {

inline constexpr uint32_t kF32Infinity = 0x7F800000u, kF32QuietNaN = 0x7FC00000u;
inline constexpr uint8_t kE4M3NaN = 0x7F, kE4M3Max = 0x7E;  // 448
inline constexpr uint8_t kE8M0NaN = 0xFF, kE8M0Max = 0xFE;

HR_HOST_DEVICE inline float F32Of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
HR_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// |x| as bits that compare as integers do: every NaN is the same one, above infinity.
HR_HOST_DEVICE constexpr uint32_t MagnitudeBits(uint32_t f32) {
  const uint32_t magnitude = f32 & 0x7FFFFFFFu;
  return magnitude > kF32Infinity ? kF32QuietNaN : magnitude;
}

// x * 2^power as F8_E4M3 (OCP OFP8, "fn": no infinity, 448 is the largest), rounded once, to nearest, ties to even;
// what is beyond 448, infinities too, becomes 448. NaNs keep their sign.
HR_HOST_DEVICE constexpr uint8_t E4M3Bits(uint32_t f32, int power) {
  const uint8_t sign = static_cast<uint8_t>((f32 >> 24) & 0x80u);
  const uint32_t magnitude = f32 & 0x7FFFFFFFu;
  if (magnitude > kF32Infinity) return sign | kE4M3NaN;
  if (magnitude == kF32Infinity) return sign | kE4M3Max;
  if (magnitude == 0) return sign;
  int exponent = static_cast<int>(magnitude >> F32::kMantissaBits);
  uint64_t mantissa = magnitude & ((1u << F32::kMantissaBits) - 1);
  if (exponent == 0) {
    const int up = CountLeadingZeros(mantissa) - (63 - F32::kMantissaBits);
    mantissa <<= up;
    exponent = 1 - up;
  } else {
    mantissa |= 1u << F32::kMantissaBits;
  }
  constexpr int kMantissaBits = 3, kBias = 7;
  int out_exponent = exponent - F32::kBias + power + kBias;
  int shift = F32::kMantissaBits - kMantissaBits;
  if (out_exponent <= 0) {  // below the normal numbers
    shift += 1 - out_exponent;
    out_exponent = 1;
  }
  if (out_exponent > 15) return sign | kE4M3Max;
  // Rounding may carry into the exponent: the fields are adjacent.
  const uint64_t out =
      (static_cast<uint64_t>(out_exponent - 1) << kMantissaBits) + ShiftRightNearestEven(mantissa, shift);
  return sign | static_cast<uint8_t>(out < kE4M3Max ? out : kE4M3Max);
}

// The F32 scale of a 128x128 block, by the bits of its maximum.
HR_HOST_DEVICE inline float BlockScaleF32(uint32_t maximum) {
  if (maximum > kF32Infinity) return F32Of(kF32QuietNaN);
  const float amax = F32Of(maximum);
  return (amax < 1e-4f ? 1e-4f : amax) / 448.0f;
}

// An element of a 128x128 block; `inverse` is 1 / scale.
HR_HOST_DEVICE inline uint8_t QuantizeByInverse(uint32_t f32, float inverse) {
  const uint32_t product = BitsOf(F32Of(f32) * inverse);
  return (product & 0x7FFFFFFFu) > kF32Infinity ? kE4M3NaN : E4M3Bits(product, 0);
}

// The E8M0 scale of a 1x32 block, by the bits of its maximum: the least e with maximum <= 448 * 2^(e - 127).
HR_HOST_DEVICE constexpr uint8_t BlockScaleE8M0(uint32_t maximum) {
  if (maximum > kF32Infinity) return kE8M0NaN;
  if (maximum == kF32Infinity) return kE8M0Max;
  // 448 = 1.75 * 2^8, so the mantissa's rest of .75 decides. Denormals are far below 448 * 2^-127.
  const int exponent = static_cast<int>(maximum >> F32::kMantissaBits);
  const int e = exponent - 8 + ((maximum & 0x7FFFFFu) > 0x600000u ? 1 : 0);
  return static_cast<uint8_t>(e > 0 ? e : 0);
}

// An element of a 1x32 block.
HR_HOST_DEVICE constexpr uint8_t QuantizeByE8M0(uint32_t f32, uint8_t scale) {
  return scale == kE8M0NaN ? kE4M3NaN : E4M3Bits(f32, 127 - static_cast<int>(scale));
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_QUANTIZE_BITS_H_
