#ifndef HEADRACE_KERNELS_CUDA_CHECK_CASES_H_
#define HEADRACE_KERNELS_CUDA_CHECK_CASES_H_

// Each kernel against its CPU twin, bit for bit, on one table of random boxes: what is written, what is not, and sums.
// The same cases run on the CPU (over kernels/cuda/host_backend.h) and on a GPU (kernels_gpu_check).

#include <cstdint>
#include <random>
#include <string>

#include "kernels/cuda/backend_api.h"
#include "kernels/cuda/check_boxes.h"

namespace headrace::kernels::testing {

// Each returns what is wrong, or nothing. `boxes`: how many the table has.
std::string CheckCopies(const HeadraceKernelsV1& kernels, CheckDevice& device, std::mt19937_64& gen, int boxes);
std::string CheckElementwise(const HeadraceKernelsV1& kernels, CheckDevice& device, std::mt19937_64& gen, int boxes);
// Matrices of which each is cut into shards; maxima are combined over them as ranks would.
std::string CheckQuantize(const HeadraceKernelsV1& kernels, CheckDevice& device, std::mt19937_64& gen, int matrices);

}  // namespace headrace::kernels::testing

#endif  // HEADRACE_KERNELS_CUDA_CHECK_CASES_H_
