#include "loader/gpu/cuda_abi.h"

#include <cuda_runtime_api.h>

#include <cstddef>

#include "gtest/gtest.h"

namespace headrace::cuda {
namespace {

TEST(CudaAbiTest, IsTheToolkits) {
  EXPECT_EQ(kSuccess, cudaSuccess);
  EXPECT_EQ(kErrorInvalidValue, cudaErrorInvalidValue);
  EXPECT_EQ(kErrorMemoryAllocation, cudaErrorMemoryAllocation);
  EXPECT_EQ(kErrorInvalidDevice, cudaErrorInvalidDevice);
  EXPECT_EQ(kErrorNotReady, cudaErrorNotReady);
  EXPECT_EQ(kMemcpyHostToHost, cudaMemcpyHostToHost);
  EXPECT_EQ(kMemcpyHostToDevice, cudaMemcpyHostToDevice);
  EXPECT_EQ(kMemcpyDeviceToHost, cudaMemcpyDeviceToHost);
  EXPECT_EQ(kMemcpyDeviceToDevice, cudaMemcpyDeviceToDevice);
  EXPECT_EQ(kMemcpyDefault, cudaMemcpyDefault);
  EXPECT_EQ(kStreamNonBlocking, cudaStreamNonBlocking);
  EXPECT_EQ(kEventDisableTiming, cudaEventDisableTiming);
  EXPECT_EQ(kEventInterprocess, cudaEventInterprocess);
  EXPECT_EQ(kHostAllocPortable, cudaHostAllocPortable);
  EXPECT_EQ(kUnregistered, static_cast<int>(cudaMemoryTypeUnregistered));
  EXPECT_EQ(kHost, static_cast<int>(cudaMemoryTypeHost));
  EXPECT_EQ(kDevice, static_cast<int>(cudaMemoryTypeDevice));
  EXPECT_EQ(kManaged, static_cast<int>(cudaMemoryTypeManaged));
  // The library writes its own size, which may be smaller.
  EXPECT_GE(sizeof(PointerAttributes), sizeof(cudaPointerAttributes));
  EXPECT_EQ(offsetof(PointerAttributes, device), offsetof(cudaPointerAttributes, device));
  EXPECT_EQ(offsetof(PointerAttributes, device_pointer), offsetof(cudaPointerAttributes, devicePointer));
  EXPECT_EQ(offsetof(PointerAttributes, host_pointer), offsetof(cudaPointerAttributes, hostPointer));
}

}  // namespace
}  // namespace headrace::cuda
