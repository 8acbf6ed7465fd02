#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_SHAREABLE_MEMORY_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_SHAREABLE_MEMORY_H_

// cuMem*: device memory that is created, mapped and shared between processes. Each memory is a memfd, whose bytes stay
// as long as a handle, a mapping or a descriptor of it does, in whatever process; what stands behind the bytes says
// what memory it is. A fabric handle names the memfd in the process that exported it: it is good as long as that
// process has the memory, for processes of one user that see each other's /proc. Functions of the driver's names and
// parameters, without "cu"; any thread.

#include <cstddef>

#include "loader/gpu/cuda_driver_abi.h"

namespace headrace::nccl_checker {

// Larger than a page, so that sizes which nobody rounded up are found; real devices have 2 MiB.
inline constexpr size_t kGranularity = 64 << 10;

cuda::Result MemGetAllocationGranularity(size_t* granularity, const cuda::AllocationProp* prop, int option);
cuda::Result MemCreate(cuda::AllocationHandle* handle, size_t bytes, const cuda::AllocationProp* prop,
                       unsigned long long flags);
cuda::Result MemRelease(cuda::AllocationHandle handle);
cuda::Result MemAddressReserve(cuda::DevicePointer* pointer, size_t bytes, size_t alignment, unsigned long long flags);
cuda::Result MemAddressFree(cuda::DevicePointer pointer, size_t bytes);
cuda::Result MemMap(cuda::DevicePointer pointer, size_t bytes, size_t offset, cuda::AllocationHandle handle,
                    unsigned long long flags);
cuda::Result MemUnmap(cuda::DevicePointer pointer, size_t bytes);
cuda::Result MemSetAccess(cuda::DevicePointer pointer, size_t bytes, const cuda::AccessDesc* access, size_t count);
cuda::Result MemGetAccess(unsigned long long* flags, const cuda::MemLocation* location, cuda::DevicePointer pointer);
cuda::Result MemExportToShareableHandle(void* shareable, cuda::AllocationHandle handle, int type,
                                        unsigned long long flags);
cuda::Result MemImportFromShareableHandle(cuda::AllocationHandle* handle, void* shareable, int type);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_SHAREABLE_MEMORY_H_
