#ifndef HEADRACE_KERNELS_CUDA_COPY_TABLE_H_
#define HEADRACE_KERNELS_CUDA_COPY_TABLE_H_

// Builds the table of a launch of copies: direct (out of memory that the device can read, a mapped peer's too), packed
// into staging, unpacked out of it, or summed alone. Addresses are the device's and are not read here. Boxes may share
// a slot, whose sum is then that of all of them. All destinations of a table must be disjoint, and none may overlap a
// source: the order of the copies is not defined. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/copy_body.h"
#include "kernels/cuda/table_builder.h"
#include "kernels/strided_copy.h"

namespace headrace::kernels {

class CopyTable : public TableBuilder<grid::CopyDescriptor> {
 public:
  // As CopyAndSum of kernels/strided_copy.h, and Sum, which ignores the destination.
  void AddCopy(const StridedCopy& c, int64_t slot);
  void AddSum(const StridedCopy& c, int64_t slot);
  // As Pack and UnpackAndSum: bytes [first, first + size) of the box's packed order to or from `staging`.
  void AddPack(const StridedCopy& c, int64_t first, std::span<std::byte> staging, int64_t slot);
  void AddUnpack(const StridedCopy& c, int64_t first, std::span<const std::byte> staging, int64_t slot);
};

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CUDA_COPY_TABLE_H_
