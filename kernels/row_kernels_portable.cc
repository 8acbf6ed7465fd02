#define HEADRACE_TARGET
#include "kernels/row_kernels_impl.h"

namespace headrace::kernels_internal {
namespace {

// Plain C++ that the compiler may vectorise for the baseline processor; stores go through the cache.
struct Portable {
  static constexpr int64_t kWords = 4;
  struct Vec {
    uint32_t word[4];
  };
  struct Acc {
    uint64_t lane[4];
  };
  static Acc Zero() { return {}; }
  static Vec Load(const void* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void Store(void* p, const Vec& v) { std::memcpy(p, &v, sizeof(v)); }
  static void Stream(void* p, const Vec& v) { Store(p, v); }
  static void MulAdd(Acc& acc, const Vec& a, const Vec& b) {
    for (int i = 0; i < 4; ++i) acc.lane[i] += static_cast<uint64_t>(a.word[i]) * b.word[i];
  }
  static uint64_t Reduce(const Acc& a, const Acc& b) {
    uint64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += a.lane[i] + b.lane[i];
    return sum;
  }
};

}  // namespace

constexpr RowKernels kPortableRowKernels = MakeRowKernels<Portable>();

}  // namespace headrace::kernels_internal
