#include "kernels/sum.h"

#include "kernels/row_kernels.h"

namespace headrace::kernels {

uint64_t SumRun(uint64_t tensor_key, int64_t first_byte, const std::byte* p, int64_t n) {
  if (n == 0) return 0;
  internal::Rows rows;
  rows.src = p;
  rows.run_bytes = n;
  rows.count = 1;
  rows.tensor_key = tensor_key;
  rows.first_byte = first_byte;
  return internal::ActiveRowKernels().sum(rows);
}

}  // namespace headrace::kernels
