#include "kernels/cuda/host_backend.h"

#include <atomic>
#include <cstdint>

#include "kernels/cuda/copy_body.h"
#include "kernels/cuda/elementwise_body.h"
#include "kernels/cuda/host_warp.h"
#include "kernels/cuda/quantize_body.h"

namespace headrace::kernels {
namespace {

constexpr int64_t kMostWarps = 24;  // a small GPU, so that warps take several tiles each

std::atomic<uint64_t> launches{0};

template <class Descriptor, class Body>
int32_t Launch(const HeadraceTable* table, Body&& body) {
  const grid::Table<Descriptor> all{static_cast<const Descriptor*>(table->descriptors), table->first_tile, table->count,
                                    table->tiles};
  const uint64_t seed = launches.fetch_add(1);
  const auto workers = static_cast<int64_t>(1 + seed % kMostWarps);
  grid::WalkGrid(workers, seed, [&](const grid::HostWarp& warp) { body(warp, all); });
  return 0;
}

int32_t DeviceCount(int32_t* count, HeadraceKernelError*) {
  *count = 1;
  return 0;
}

int32_t Copy(const HeadraceLaunch*, const HeadraceTable* table, uint64_t* sums, HeadraceKernelError*) {
  return Launch<grid::CopyDescriptor>(table, [&](const grid::HostWarp& warp, const auto& all) {
    if (sums == nullptr) {
      grid::CopyWarp<false>(warp, all, nullptr);
    } else {
      grid::CopyWarp<true>(warp, all, sums);
    }
  });
}

int32_t Elementwise(const HeadraceLaunch*, const HeadraceTable* table, HeadraceKernelError*) {
  return Launch<grid::ElementwiseDescriptor>(
      table, [](const grid::HostWarp& warp, const auto& all) { grid::ElementwiseWarp(warp, all); });
}

int32_t Maxima(const HeadraceLaunch*, const HeadraceTable* table, HeadraceKernelError*) {
  return Launch<grid::QuantizeDescriptor>(
      table, [](const grid::HostWarp& warp, const auto& all) { grid::BlockMaximaWarp(warp, all); });
}

int32_t QuantizeAll(const HeadraceLaunch*, const HeadraceTable* table, HeadraceKernelError*) {
  return Launch<grid::QuantizeDescriptor>(
      table, [](const grid::HostWarp& warp, const auto& all) { grid::QuantizeWarp(warp, all); });
}

constexpr HeadraceKernelsV1 kKernels = {HEADRACE_KERNELS_VERSION, DeviceCount, Copy, Elementwise, Maxima, QuantizeAll};

}  // namespace

const HeadraceKernelsV1* HostKernels() { return &kKernels; }

}  // namespace headrace::kernels
