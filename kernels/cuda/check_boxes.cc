#include "kernels/cuda/check_boxes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/test_support.h"

namespace headrace::kernels::testing {

TwinMemory::TwinMemory(CheckDevice& device, std::vector<std::byte> bytes)
    : device_(device),
      bytes_(std::move(bytes)),
      memory_(device.Allocate(std::max<int64_t>(1, static_cast<int64_t>(bytes_.size())))) {
  device_.Write(memory_, bytes_);
}

TwinMemory::~TwinMemory() { device_.Free(memory_); }

std::vector<std::byte> TwinMemory::DeviceBytes() const {
  std::vector<std::byte> bytes(bytes_.size());
  device_.Read(memory_, bytes);
  return bytes;
}

DrawnBox DrawBox(std::mt19937_64& gen, int most_loops, int64_t unit, int64_t most_bytes) {
  constexpr int64_t kRuns[] = {1, 1, 2, 3, 4, 7, 16, 33, 250, 1000};
  DrawnBox box;
  box.run_bytes = unit * kRuns[Uniform(gen, 0, 9)];
  box.rank = static_cast<int>(Uniform(gen, 0, most_loops));
  int64_t room = most_bytes / box.run_bytes + 1;
  for (int i = 0; i < box.rank; ++i) {
    const int64_t least = Uniform(gen, 0, 40) == 0 ? 0 : 1;
    box.extent.push_back(Uniform(gen, least, std::min<int64_t>(room, Uniform(gen, 1, 90))));
    room = std::max<int64_t>(1, room / std::max<int64_t>(1, box.extent.back()));
  }
  return box;
}

DrawnLayout DrawLayout(std::mt19937_64& gen, const DrawnBox& box, int64_t unit, int64_t run_bytes, bool backward) {
  std::vector<int> order(static_cast<size_t>(box.rank));
  std::iota(order.begin(), order.end(), 0);
  if (Uniform(gen, 0, 1)) std::shuffle(order.begin(), order.end(), gen);
  DrawnLayout layout;
  layout.stride.resize(static_cast<size_t>(box.rank));
  int64_t bytes = run_bytes;
  for (int i = box.rank - 1; i >= 0; --i) {
    const auto loop = static_cast<size_t>(order[static_cast<size_t>(i)]);
    const int64_t stride = bytes + (Uniform(gen, 0, 2) == 0 ? unit * Uniform(gen, 0, 20) : 0);
    bytes = stride * std::max<int64_t>(1, box.extent[loop]);
    layout.stride[loop] = backward && Uniform(gen, 0, 5) == 0 ? -stride : stride;
    const int64_t reach = layout.stride[loop] * std::max<int64_t>(0, box.extent[loop] - 1);
    (reach < 0 ? layout.low : layout.high) += reach;
  }
  layout.high += run_bytes;
  return layout;
}

}  // namespace headrace::kernels::testing
