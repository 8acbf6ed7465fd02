#include "kernels/row_kernels.h"

#include "kernels/simd_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::kernels::internal {

const RowKernels& ActiveRowKernels() {
#if defined(__x86_64__)
  switch (ActiveSimdLevel()) {
    case SimdLevel::kAvx512:
      return kAvx512RowKernels;
    case SimdLevel::kAvx2:
      return kAvx2RowKernels;
    case SimdLevel::kPortable:
      break;
  }
#endif
  return kPortableRowKernels;
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace headrace::kernels::internal
