#include "kernels/cuda/device_warp.cuh"
#include "kernels/cuda/quantize_body.h"

namespace headrace::kernels::grid {
namespace {

__global__ void __launch_bounds__(kBlockThreads) BlockMaximaKernel(Table<QuantizeDescriptor> table) {
  BlockMaximaWarp(DeviceWarp(nullptr), table);
}

__global__ void __launch_bounds__(kBlockThreads) QuantizeKernel(Table<QuantizeDescriptor> table) {
  QuantizeWarp(DeviceWarp(nullptr), table);
}

}  // namespace

int32_t LaunchBlockMaxima(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error) {
  return LaunchWarps(*launch, table->tiles, BlockMaximaKernel, error, TableOf<QuantizeDescriptor>(*table));
}

int32_t LaunchQuantize(const HeadraceLaunch* launch, const HeadraceTable* table, HeadraceKernelError* error) {
  return LaunchWarps(*launch, table->tiles, QuantizeKernel, error, TableOf<QuantizeDescriptor>(*table));
}

}  // namespace headrace::kernels::grid
