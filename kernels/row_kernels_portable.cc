#define HEADRACE_TARGET
#include "kernels/row_kernels_impl.h"

namespace headrace::kernels::internal {
namespace {

// Plain C++ that the compiler may vectorise for the baseline processor; stores go through the cache.
struct Portable {
  static constexpr int64_t kWords = 4;
  struct Vec {
    uint32_t word[4];
  };
  struct Acc {
    uint64_t lane[2];
  };
  static Acc Zero() { return {}; }
  static Vec Load(const void* p) {
    Vec v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static void Store(void* p, const Vec& v) { std::memcpy(p, &v, sizeof(v)); }
  static void Stream(void* p, const Vec& v) { Store(p, v); }
  static void MulAddEven(Acc& acc, const Vec& x, const Vec& k) {
    for (int i = 0; i < 2; ++i) acc.lane[i] += static_cast<uint64_t>(x.word[2 * i]) * k.word[2 * i];
  }
  static void MulAddOdd(Acc& acc, const Vec& x, const Vec& k) {
    for (int i = 0; i < 2; ++i) acc.lane[i] += static_cast<uint64_t>(x.word[2 * i + 1]) * k.word[2 * i];
  }
  static uint64_t Reduce(const Acc& a, const Acc& b) { return a.lane[0] + a.lane[1] + b.lane[0] + b.lane[1]; }
};

}  // namespace

constexpr RowKernels kPortableRowKernels = MakeRowKernels<Portable>();

}  // namespace headrace::kernels::internal
