#ifndef HEADRACE_KERNELS_NEG_EXP_BITS_H_
#define HEADRACE_KERNELS_NEG_EXP_BITS_H_

// -exp(x) of one F32, for CPU and device: additions and multiplications of F64 alone, in a fixed order, so that both
// give the same bits (compilers must not fuse them).

#include <cstdint>
#include <cstring>

#include "kernels/float_bits.h"
#include "kernels/host_device.h"

namespace headrace::kernels::internal {

HR_HOST_DEVICE inline uint32_t NegExpBits(uint32_t bits) {
  constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7F800000u, kQuietNaN = 0x7FC00000u;
  // exp(x) is beyond the largest finite F32 above 0x42B17217 (88.72283), and below half of the smallest denormal below
  // 0xC2CFF1B5 (-103.97208): the values' neighbours are handled by the conversion, so coarse limits do.
  if ((bits & ~kSign) > kInfinity) return kQuietNaN;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  if (x > 90.0f) return kSign | kInfinity;
  if (x < -110.0f) return kSign;
  // exp(x) = 2^k * exp(r) with |r| <= ln(2) / 2. ln(2) in two parts, the first with 20 zero bits at its end, so that
  // k * kLn2High is exact.
  constexpr double kLog2E = 0x1.71547652B82FEp0, kLn2High = 0x1.62E42FEE00000p-1, kLn2Low = 0x1.A39EF35793C76p-33;
  const double value = x, scaled = value * kLog2E;
  const int k = static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5));
  const double r = (value - k * kLn2High) - k * kLn2Low;
  // Taylor's series to r^12: what is left out is below 2^-51 of the result.
  constexpr double kInverseFactorial[] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,      1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
  double exp_r = kInverseFactorial[12];
  HR_UNROLL
  for (int i = 11; i >= 0; --i) exp_r = exp_r * r + kInverseFactorial[i];
  const uint64_t power_bits = static_cast<uint64_t>(k + F64::kBias) << F64::kMantissaBits;
  double power;
  std::memcpy(&power, &power_bits, sizeof power);
  const double result = exp_r * power;
  uint64_t result_bits;
  std::memcpy(&result_bits, &result, sizeof result_bits);
  return kSign | ConvertFloat<F64, F32>(result_bits);
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_NEG_EXP_BITS_H_
