#ifndef HEADRACE_KERNELS_HOST_DEVICE_H_
#define HEADRACE_KERNELS_HOST_DEVICE_H_

// For headers that CPU code and CUDA kernels share: plain arithmetic, no library calls.

#include <cstdint>

#if defined(__CUDACC__)
#define HR_HOST_DEVICE __host__ __device__
#define HR_UNROLL _Pragma("unroll")
#else
#define HR_HOST_DEVICE
#define HR_UNROLL
#endif

namespace headrace::kernels::internal {

// Leading zero bits of `value`, which is not 0.
HR_HOST_DEVICE constexpr int CountLeadingZeros(uint64_t value) {
  int zeros = 0;
  for (int step = 32; step > 0; step /= 2) {
    if (value >> (64 - step) == 0) {
      zeros += step;
      value <<= step;
    }
  }
  return zeros;
}

template <class T>
HR_HOST_DEVICE constexpr T Min(T a, T b) {
  return b < a ? b : a;
}

template <class T>
HR_HOST_DEVICE constexpr T Max(T a, T b) {
  return a < b ? b : a;
}

}  // namespace headrace::kernels::internal

#endif  // HEADRACE_KERNELS_HOST_DEVICE_H_
