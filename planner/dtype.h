#ifndef HEADRACE_PLANNER_DTYPE_H_
#define HEADRACE_PLANNER_DTYPE_H_

// Element types, spelled as the safetensors format does
// (https://github.com/huggingface/safetensors, safetensors/src/tensor.rs, enum Dtype).

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace headrace {

enum class Dtype {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

absl::string_view DtypeName(Dtype dtype);
std::optional<Dtype> DtypeFromName(absl::string_view name);

// Bits of one element: 4, 6, 8, 16, 32 or 64.
int DtypeBits(Dtype dtype);

// The smallest number of elements that fills whole bytes: 2 for 4-bit types, 4 for 6-bit types, else 1; and the
// bytes that they fill. A run of a sub-byte type must be a multiple of this.
int DtypeUnitElements(Dtype dtype);
int DtypeUnitBytes(Dtype dtype);

// Bytes that `elements` >= 0 elements fill, the last one rounded up. DtypeBytes wants them to fit; CheckedDtypeBytes
// gives nullopt when they are 2^63 or more.
int64_t DtypeBytes(int64_t elements, Dtype dtype);
std::optional<int64_t> CheckedDtypeBytes(int64_t elements, Dtype dtype);

// True for the conversions that a publisher can make by round-to-nearest-even: between any two different ones of F16,
// BF16, F32 and F64 (widenings are exact).
bool DtypeConvertible(Dtype from, Dtype to);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_DTYPE_H_
