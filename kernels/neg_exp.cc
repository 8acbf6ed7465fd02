#include "kernels/neg_exp.h"

#include <cstring>

#include "kernels/loop_nest.h"
#include "kernels/neg_exp_bits.h"

namespace headrace::kernels {

void NegExp(const StridedCast& c) {
  internal::LoopNest nest;
  nest.rank = c.rank;
  for (int i = 0; i < c.rank; ++i) {
    nest.loop[i].extent = c.extent[i];
    nest.loop[i].stride[internal::kSrc] = c.src_stride[i];
    nest.loop[i].stride[internal::kDst] = nest.loop[i].stride[internal::kPos] = c.dst_stride[i];
  }
  for (int64_t& run : nest.run) run = sizeof(float);
  if (!Normalize(nest, internal::kDst)) return;
  internal::ForEachOuter(nest, 0, [&](int64_t src_at, int64_t dst_at, int64_t) {
    for (int64_t at = 0; at < nest.run[internal::kDst]; at += static_cast<int64_t>(sizeof(float))) {
      uint32_t bits;
      std::memcpy(&bits, c.src + src_at + at, sizeof bits);
      bits = internal::NegExpBits(bits);
      std::memcpy(c.dst + dst_at + at, &bits, sizeof bits);
    }
  });
}

}  // namespace headrace::kernels
