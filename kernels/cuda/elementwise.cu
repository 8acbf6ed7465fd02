#include "kernels/cuda/device_warp.cuh"
#include "kernels/cuda/elementwise_body.h"

namespace headrace::kernels::grid {
namespace {

__global__ void __launch_bounds__(kBlockThreads) ElementwiseKernel(Table<ElementwiseDescriptor> table) {
  ElementwiseWarp(DeviceWarp(nullptr), table);
}

}  // namespace

int32_t LaunchElementwise(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error) {
  return LaunchWarps(*launch, table->tiles, ElementwiseKernel, error, TableOf<ElementwiseDescriptor>(*table));
}

}  // namespace headrace::kernels::grid
