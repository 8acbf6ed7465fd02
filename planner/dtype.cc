#include "planner/dtype.h"

#include <array>

namespace headrace {
namespace {

struct Entry {
  Dtype dtype;
  absl::string_view name;
  int bits;
};

constexpr std::array kEntries = {
    Entry{Dtype::kBool, "BOOL", 8},      Entry{Dtype::kF4, "F4", 4},          Entry{Dtype::kF6E2M3, "F6_E2M3", 6},
    Entry{Dtype::kF6E3M2, "F6_E3M2", 6}, Entry{Dtype::kU8, "U8", 8},          Entry{Dtype::kI8, "I8", 8},
    Entry{Dtype::kF8E5M2, "F8_E5M2", 8}, Entry{Dtype::kF8E4M3, "F8_E4M3", 8}, Entry{Dtype::kF8E8M0, "F8_E8M0", 8},
    Entry{Dtype::kI16, "I16", 16},       Entry{Dtype::kU16, "U16", 16},       Entry{Dtype::kF16, "F16", 16},
    Entry{Dtype::kBF16, "BF16", 16},     Entry{Dtype::kI32, "I32", 32},       Entry{Dtype::kU32, "U32", 32},
    Entry{Dtype::kF32, "F32", 32},       Entry{Dtype::kC64, "C64", 64},       Entry{Dtype::kF64, "F64", 64},
    Entry{Dtype::kI64, "I64", 64},       Entry{Dtype::kU64, "U64", 64},
};

const Entry& Find(Dtype dtype) { return kEntries[static_cast<size_t>(dtype)]; }

// Find indexes by the enumerator's value.
constexpr bool InOrder() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].dtype != static_cast<Dtype>(i)) return false;
  }
  return true;
}
static_assert(InOrder());

}  // namespace

absl::string_view DtypeName(Dtype dtype) { return Find(dtype).name; }

std::optional<Dtype> DtypeFromName(absl::string_view name) {
  for (const Entry& e : kEntries) {
    if (e.name == name) return e.dtype;
  }
  return std::nullopt;
}

int DtypeBits(Dtype dtype) { return Find(dtype).bits; }

int DtypeUnitElements(Dtype dtype) {
  switch (DtypeBits(dtype)) {
    case 4:
      return 2;
    case 6:
      return 4;
    default:
      return 1;
  }
}

int DtypeUnitBytes(Dtype dtype) { return DtypeUnitElements(dtype) * DtypeBits(dtype) / 8; }

std::optional<int64_t> CheckedDtypeBytes(int64_t elements, Dtype dtype) {
  // By whole units: the bits of what fits may not fit themselves.
  const int64_t unit = DtypeUnitElements(dtype);
  int64_t bytes;
  if (__builtin_mul_overflow(elements / unit, int64_t{DtypeUnitBytes(dtype)}, &bytes) ||
      __builtin_add_overflow(bytes, (elements % unit * DtypeBits(dtype) + 7) / 8, &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

int64_t DtypeBytes(int64_t elements, Dtype dtype) { return *CheckedDtypeBytes(elements, dtype); }

bool DtypeConvertible(Dtype from, Dtype to) {
  auto floating = [](Dtype d) { return d == Dtype::kF16 || d == Dtype::kBF16 || d == Dtype::kF32 || d == Dtype::kF64; };
  return from != to && floating(from) && floating(to);
}

}  // namespace headrace
