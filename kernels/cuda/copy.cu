#include "kernels/cuda/copy_body.h"
#include "kernels/cuda/device_warp.cuh"
#include "kernels/sum_keys.h"

namespace headrace::kernels::grid {
namespace {

struct DeviceKeys {
  uint32_t key[internal::kSumKeys];
};

constexpr DeviceKeys MakeDeviceKeys() {
  DeviceKeys keys = {};
  for (int i = 0; i < internal::kSumKeys; ++i) keys.key[i] = internal::kSumKeyTable.key[i];
  return keys;
}

// Each lane reads other keys, which constant memory would serve one after the other: a block has them in shared memory.
__device__ const DeviceKeys kDeviceKeys = MakeDeviceKeys();

// Registers of a lane hold its place in the box and four loads under way: two blocks fit, and spill nothing.
constexpr int kBlocksEach = 2;

__global__ void __launch_bounds__(kBlockThreads, kBlocksEach) CopyKernel(Table<CopyDescriptor> table) {
  CopyWarp<false>(DeviceWarp(nullptr), table, nullptr);
}

__global__ void __launch_bounds__(kBlockThreads, kBlocksEach)
    CopyAndSumKernel(Table<CopyDescriptor> table, uint64_t* sums) {
  __shared__ alignas(16) uint32_t keys[internal::kSumKeys];
  for (int i = threadIdx.x; i < internal::kSumKeys; i += kBlockThreads) keys[i] = kDeviceKeys.key[i];
  __syncthreads();
  CopyWarp<true>(DeviceWarp(keys), table, sums);
}

}  // namespace

int32_t LaunchCopy(const HeadraceLaunch* launch, const HeadraceTable* table, uint64_t* sums,
                   HeadraceKernelError* error) {
  const Table<CopyDescriptor> copies = TableOf<CopyDescriptor>(*table);
  if (sums == nullptr) return LaunchWarps(*launch, table->tiles, CopyKernel, error, copies);
  return LaunchWarps(*launch, table->tiles, CopyAndSumKernel, error, copies, sums);
}

}  // namespace headrace::kernels::grid
