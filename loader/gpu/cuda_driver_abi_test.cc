#include "loader/gpu/cuda_driver_abi.h"

#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "gtest/gtest.h"

namespace headrace::cuda {
namespace {

template <typename T>
constexpr size_t SizeOf() {
  if constexpr (std::is_void_v<T>) {
    return 0;
  } else {
    return sizeof(T);
  }
}

// Whether both are passed alike: numbers and enumerations of one size, or pointers to what is of one size.
template <typename A, typename B>
constexpr bool Alike() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using ToA = std::remove_pointer_t<A>;
    using ToB = std::remove_pointer_t<B>;
    return SizeOf<ToA>() == SizeOf<ToB>() && std::is_const_v<ToA> == std::is_const_v<ToB> &&
           std::is_pointer_v<ToA> == std::is_pointer_v<ToB>;
  } else {
    return !std::is_pointer_v<A> && !std::is_pointer_v<B> && !std::is_class_v<A> && !std::is_class_v<B> &&
           sizeof(A) == sizeof(B);
  }
}

template <typename ResultA, typename... As, typename ResultB, typename... Bs>
constexpr bool Alike(ResultA (*)(As...), ResultB (*)(Bs...)) {
  if constexpr (sizeof...(As) != sizeof...(Bs)) {
    return false;
  } else {
    return Alike<ResultA, ResultB>() && (Alike<As, Bs>() && ...);
  }
}

TEST(CudaDriverAbiTest, HasTheFunctionsOfTheToolkit) {
#define CHECK_ALIKE(name, parameters) \
  EXPECT_TRUE(Alike(static_cast<Result(*) parameters>(nullptr), static_cast<decltype(&::name)>(nullptr))) << #name;
  HEADRACE_CUDA_DRIVER_FUNCTIONS(CHECK_ALIKE)
#undef CHECK_ALIKE
}

TEST(CudaDriverAbiTest, HasTheConstantsOfTheToolkit) {
  EXPECT_EQ(kResultSuccess, CUDA_SUCCESS);
  EXPECT_EQ(kResultInvalidValue, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(kResultOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(kResultNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(kResultInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(kResultInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(kResultNotPermitted, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(kResultNotSupported, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(kVirtualMemoryManagementSupported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  EXPECT_EQ(kHandleTypePosixFdSupported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  EXPECT_EQ(kHandleTypeFabricSupported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  EXPECT_EQ(kHandleTypeNone, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(kHandleTypePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(kHandleTypeFabric, CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_EQ(kAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(kMemLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  EXPECT_EQ(kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  EXPECT_EQ(kAccessNone, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

TEST(CudaDriverAbiTest, HasTheTypesOfTheToolkit) {
  EXPECT_EQ(sizeof(Result), sizeof(CUresult));
  EXPECT_EQ(sizeof(Device), sizeof(CUdevice));
  EXPECT_EQ(sizeof(DevicePointer), sizeof(CUdeviceptr));
  EXPECT_EQ(sizeof(AllocationHandle), sizeof(CUmemGenericAllocationHandle));
  EXPECT_EQ(sizeof(MemLocation), sizeof(CUmemLocation));
  EXPECT_EQ(offsetof(MemLocation, type), offsetof(CUmemLocation, type));
  EXPECT_EQ(offsetof(MemLocation, id), offsetof(CUmemLocation, id));
  EXPECT_EQ(sizeof(AllocationProp), sizeof(CUmemAllocationProp));
  EXPECT_EQ(offsetof(AllocationProp, type), offsetof(CUmemAllocationProp, type));
  EXPECT_EQ(offsetof(AllocationProp, requested_handle_types), offsetof(CUmemAllocationProp, requestedHandleTypes));
  EXPECT_EQ(offsetof(AllocationProp, location), offsetof(CUmemAllocationProp, location));
  EXPECT_EQ(offsetof(AllocationProp, win32_handle_meta_data), offsetof(CUmemAllocationProp, win32HandleMetaData));
  EXPECT_EQ(offsetof(AllocationProp, flags.compression_type),
            offsetof(CUmemAllocationProp, allocFlags.compressionType));
  EXPECT_EQ(offsetof(AllocationProp, flags.gpu_direct_rdma_capable),
            offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
  EXPECT_EQ(offsetof(AllocationProp, flags.usage), offsetof(CUmemAllocationProp, allocFlags.usage));
  EXPECT_EQ(offsetof(AllocationProp, flags.reserved), offsetof(CUmemAllocationProp, allocFlags.reserved));
  EXPECT_EQ(sizeof(AccessDesc), sizeof(CUmemAccessDesc));
  EXPECT_EQ(offsetof(AccessDesc, location), offsetof(CUmemAccessDesc, location));
  EXPECT_EQ(offsetof(AccessDesc, flags), offsetof(CUmemAccessDesc, flags));
  EXPECT_EQ(sizeof(FabricHandle), sizeof(CUmemFabricHandle));
}

}  // namespace
}  // namespace headrace::cuda
