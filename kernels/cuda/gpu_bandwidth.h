#ifndef HEADRACE_KERNELS_CUDA_GPU_BANDWIDTH_H_
#define HEADRACE_KERNELS_CUDA_GPU_BANDWIDTH_H_

// How fast the kernels are on GPU 0.

#include "kernels/cuda/backend_api.h"
#include "nlohmann/json.hpp"

namespace headrace::kernels::testing {

// An array of {"kernel", "case", "gb_per_s", "of_memcpy"}: bytes read and written a second, the median of some
// launches, and that as a share of what cudaMemcpyAsync from device to device reads and writes. Takes some seconds and
// up to 3 GiB, less where less is free.
nlohmann::json MeasureBandwidth(const HeadraceKernelsV1& kernels);

}  // namespace headrace::kernels::testing

#endif  // HEADRACE_KERNELS_CUDA_GPU_BANDWIDTH_H_
