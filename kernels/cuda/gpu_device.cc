#include "kernels/cuda/gpu_device.h"

#include <cstdlib>
#include <iostream>

namespace headrace::kernels::testing {

void RequireCuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::cout << "{\"check\": \"kernels\", \"result\": \"failed: " << call << ": " << cudaGetErrorName(status) << " ("
            << cudaGetErrorString(status) << ")\"}\n";
  std::exit(1);
}

std::string GpuName() {
  cudaDeviceProp properties = {};
  RequireCuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return std::string(properties.name) + ", sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
}

std::byte* GpuDevice::Allocate(int64_t bytes) {
  void* memory = nullptr;
  RequireCuda(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

void GpuDevice::Free(std::byte* memory) { RequireCuda(cudaFree(memory), "cudaFree"); }

void GpuDevice::Write(std::byte* to, std::span<const std::byte> from) {
  RequireCuda(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void GpuDevice::Read(const std::byte* from, std::span<std::byte> to) {
  RequireCuda(cudaMemcpy(to.data(), from, to.size(), cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

void GpuDevice::Wait() { RequireCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

}  // namespace headrace::kernels::testing
