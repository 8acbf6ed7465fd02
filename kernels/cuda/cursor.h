#ifndef HEADRACE_KERNELS_CUDA_CURSOR_H_
#define HEADRACE_KERNELS_CUDA_CURSOR_H_

// A lane's place in a box. Lanes take the units of the packed order in turn, 32 apart; divisions happen once, at the
// start, and each step is an addition with carries.

#include <cstdint>

#include "kernels/cuda/table.h"
#include "kernels/host_device.h"

namespace headrace::kernels::grid {

// The most units of a run and steps of a loop: two of them and a carry fit in 32 bits, which a lane counts by.
inline constexpr int64_t kMaxSteps = int64_t{1} << 30;

// `kLoops` loops, outermost first, around runs of `run_units` units that are contiguous on all sides. Boxes of fewer
// loops have outermost ones of one step.
template <int kLoops, int kSides>
struct BoxShape {
  int32_t run_units;
  int32_t extent[kLoops];
  int64_t stride[kSides][kLoops];  // bytes a step
  // 32 units in mixed radix: steps of each loop, then units in the run.
  int32_t advance[kLoops + 1];
};

// Fills `advance`.
template <int kLoops, int kSides>
HR_HOST_DEVICE constexpr void SetAdvance(BoxShape<kLoops, kSides>& shape) {
  shape.advance[kLoops] = kWarpLanes % shape.run_units;
  int32_t left = kWarpLanes / shape.run_units;
  for (int i = kLoops - 1; i >= 0; --i) {
    shape.advance[i] = left % shape.extent[i];
    left /= shape.extent[i];
  }
}

// Uses the first kUsed of the shape's sides.
template <int kUsed, int kLoops, int kSides>
class Cursor {
 public:
  // At unit number `unit` of the packed order; `unit_bytes[s]` is the size of a unit on side s.
  HR_HOST_DEVICE Cursor(const BoxShape<kLoops, kSides>& shape, const int (&unit_bytes)[kUsed], int64_t unit)
      : in_run_(static_cast<int32_t>(unit % shape.run_units)) {
    for (int s = 0; s < kUsed; ++s) {
      unit_bytes_[s] = unit_bytes[s];
      offset_[s] = static_cast<int64_t>(in_run_) * unit_bytes[s];
    }
    int64_t run = unit / shape.run_units;
    HR_UNROLL
    for (int i = kLoops - 1; i >= 0; --i) {
      index_[i] = static_cast<int32_t>(run % shape.extent[i]);
      run /= shape.extent[i];
      for (int s = 0; s < kUsed; ++s) offset_[s] += index_[i] * shape.stride[s][i];
    }
  }

  // Bytes from the box's first one on side `s`.
  HR_HOST_DEVICE int64_t offset(int s) const { return offset_[s]; }

  // 32 units on. Beyond the box's end the place has no meaning.
  HR_HOST_DEVICE void Advance(const BoxShape<kLoops, kSides>& shape) {
    int32_t moved = shape.advance[kLoops];
    in_run_ += moved;
    int32_t carry = 0;
    if (in_run_ >= shape.run_units) {
      in_run_ -= shape.run_units;
      moved -= shape.run_units;
      carry = 1;
    }
    for (int s = 0; s < kUsed; ++s) offset_[s] += static_cast<int64_t>(moved) * unit_bytes_[s];
    HR_UNROLL
    for (int i = kLoops - 1; i >= 0; --i) {
      int32_t steps = shape.advance[i] + carry;
      carry = 0;
      if (steps == 0) continue;
      index_[i] += steps;
      if (index_[i] >= shape.extent[i]) {
        index_[i] -= shape.extent[i];
        steps -= shape.extent[i];
        carry = 1;
      }
      for (int s = 0; s < kUsed; ++s) offset_[s] += steps * shape.stride[s][i];
    }
  }

 private:
  int32_t in_run_;
  int32_t index_[kLoops];
  int64_t offset_[kUsed];
  int unit_bytes_[kUsed];
};

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_CURSOR_H_
