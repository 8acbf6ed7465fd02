#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_GROUP_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_GROUP_H_

// ncclGroupStart and ncclGroupEnd of each thread, and the launch of what stands between them.

#include "loader/testing/nccl_checker/communicator.h"
#include "loader/testing/nccl_checker/kernel.h"

namespace headrace::nccl_checker {

nccl::Result StartGroup();
nccl::Result EndGroup();

// What a call inside a group came to: an error has the whole group fail.
nccl::Result InGroup(nccl::Result result);
// A send or receive that was checked; inside a group.
void AddTransfer(const CommRef& communicator, Transfer transfer);
// A communicator whose init began. Inside a group a blocking one is waited for at its end, otherwise now.
nccl::Result AddInit(const CommRef& communicator);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_GROUP_H_
