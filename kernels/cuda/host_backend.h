#ifndef HEADRACE_KERNELS_CUDA_HOST_BACKEND_H_
#define HEADRACE_KERNELS_CUDA_HOST_BACKEND_H_

// The kernels' C interface on the CPU, for tests without a GPU: the bodies of the kernels themselves, walked warp by
// warp and lane by lane, over memory of the process. A launch is done when it returns; devices and streams are
// ignored. Misaligned accesses, on which a GPU traps, end the process. Slow: no data path.

#include "kernels/cuda/backend_api.h"

namespace headrace::kernels {

// One device. Each launch draws another order of warps and lanes. Thread-safe as far as the launches' memory is
// disjoint: sums and maxima are added without atomics.
const HeadraceKernelsV1* HostKernels();

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CUDA_HOST_BACKEND_H_
