#ifndef HEADRACE_KERNELS_CUDA_HOST_WARP_H_
#define HEADRACE_KERNELS_CUDA_HOST_WARP_H_

// Runs a kernel's body on the CPU: every warp of a grid, one lane after the other in each phase between two exchanges
// of the lanes. Warps and lanes come in an order drawn from a seed, since a GPU promises none. Misaligned accesses,
// which trap on a GPU, end the process.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/table.h"
#include "kernels/sum_keys.h"

namespace headrace::kernels::grid {

class HostWarp {
 public:
  template <class T>
  class PerLane {
   public:
    T& operator[](int lane) { return value_[lane]; }

   private:
    T value_[kWarpLanes] = {};
  };

  // `lanes`: the order in which lanes run; outlives the warp.
  HostWarp(int64_t worker, int64_t workers, const int* lanes) : worker_(worker), workers_(workers), lanes_(lanes) {}

  int64_t worker() const { return worker_; }
  int64_t workers() const { return workers_; }
  const uint32_t* sum_keys() const { return internal::kSumKeyTable.key.data(); }

  template <class Body>
  void ForEachLane(Body&& body) const {
    for (int i = 0; i < kWarpLanes; ++i) body(lanes_[i]);
  }
  template <class Body>
  void ForFirstLane(Body&& body) const {
    body();
  }

  uint64_t Sum(PerLane<uint64_t>& value) const {
    uint64_t sum = 0;
    for (int i = 0; i < kWarpLanes; ++i) sum += value[i];
    return sum;
  }
  // Gives every lane of each group of `kGroup` consecutive ones the greatest value of the group.
  template <int kGroup>
  void GroupMax(PerLane<uint32_t>& value) const {
    for (int first = 0; first < kWarpLanes; first += kGroup) {
      uint32_t most = 0;
      for (int i = 0; i < kGroup; ++i) most = std::max(most, value[first + i]);
      for (int i = 0; i < kGroup; ++i) value[first + i] = most;
    }
  }

  void AtomicAdd(uint64_t* at, uint64_t value) const { *at += value; }
  void AtomicMax(uint32_t* at, uint32_t value) const { *at = std::max(*at, value); }

  template <class T>
  T Load(const std::byte* from) const {
    CheckAligned(from, alignof(T));
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  template <class T>
  void Store(std::byte* to, const T& value) const {
    CheckAligned(to, alignof(T));
    std::memcpy(to, &value, sizeof(T));
  }

 private:
  static void CheckAligned(const std::byte* at, size_t alignment) {
    if (reinterpret_cast<uintptr_t>(at) % alignment == 0) return;
    std::fprintf(stderr, "an access of %zu bytes at %p: a GPU would trap\n", alignment, static_cast<const void*>(at));
    std::abort();
  }

  int64_t worker_;
  int64_t workers_;
  const int* lanes_;
};

// Calls body(warp) for each of `workers` warps.
template <class Body>
void WalkGrid(int64_t workers, uint64_t seed, Body&& body) {
  std::mt19937_64 gen(seed);
  std::vector<int64_t> order(static_cast<size_t>(workers));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), gen);
  std::vector<int> lanes(kWarpLanes);
  std::iota(lanes.begin(), lanes.end(), 0);
  for (const int64_t worker : order) {
    std::shuffle(lanes.begin(), lanes.end(), gen);
    body(HostWarp(worker, workers, lanes.data()));
  }
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_HOST_WARP_H_
