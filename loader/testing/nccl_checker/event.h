#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_EVENT_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_EVENT_H_

// Events: a stream and the number of the operation that was its last when the event was recorded.

#include "loader/gpu/cuda_abi.h"

namespace headrace::nccl_checker {

cuda::Error CreateEvent(cuda::Event* handle, unsigned flags);
cuda::Error DestroyEvent(cuda::Event handle);
cuda::Error RecordEvent(cuda::Event handle, cuda::Stream stream);
cuda::Error QueryEvent(cuda::Event handle);
cuda::Error WaitForEvent(cuda::Stream stream, cuda::Event handle);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_EVENT_H_
