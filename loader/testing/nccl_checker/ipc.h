#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_IPC_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_IPC_H_

// cudaIpc*: device memory of one process in another. The exporting process has one thread that answers at an abstract
// socket, from the first export on until all exported memory was freed; an importer keeps its connection as long as it
// has the memory open.

#include <cstdint>

#include "loader/gpu/cuda_abi.h"

namespace headrace::nccl_checker {

cuda::Error ExportMemory(cuda::IpcMemHandle* handle, void* pointer);
cuda::Error ImportMemory(void** pointer, const cuda::IpcMemHandle& handle);
cuda::Error CloseMemory(void* pointer);

// The exported allocation is about to be freed. False: other processes have it open; then nothing happened.
bool EndExport(uint64_t allocation);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_IPC_H_
