#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_NCCL_ABI_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_NCCL_ABI_H_

// The part of NCCL's C ABI that is used here (2.27 or later), so that all of Headrace builds where there is no NCCL.
// nccl_abi_test.cc compares it with NCCL's own header, where it is beside the toolkit's. Source:
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html, nccl.h

#include <climits>
#include <cstddef>

#include "loader/gpu/cuda_abi.h"

namespace headrace::nccl {

using Result = int;               // ncclResult_t
using Comm = struct CommOpaque*;  // ncclComm_t

inline constexpr Result kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInternalError = 3,
                        kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
inline constexpr int kUint8 = 1;  // ncclDataType_t
// Before 2.27 a thread has one group at a time that a non-blocking communicator is launching or making, whatever
// communicators it uses (src/group.cc): here one thread has many.
inline constexpr int kMinVersion = 22700;
inline constexpr int kConfigVersion = 21800;  // since when Config is as it is below

struct UniqueId {  // ncclUniqueId
  char internal[128];
};

// The fields of ncclConfig_t that 2.18 has: a library takes the first `size` bytes, and its own defaults for the rest.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kConfigVersion;
  int blocking = INT_MIN;  // INT_MIN: undefined, the library's default
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// X(name, parameters). All return Result but those of HEADRACE_NCCL_TEXT_FUNCTIONS.
// clang-format off
#define HEADRACE_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion, (int* version)) \
  X(ncclGetUniqueId, (::headrace::nccl::UniqueId* id)) \
  X(ncclCommInitRankConfig, (::headrace::nccl::Comm* comm, int ranks, ::headrace::nccl::UniqueId id, int rank, \
                             ::headrace::nccl::Config* config)) \
  X(ncclCommFinalize, (::headrace::nccl::Comm comm)) \
  X(ncclCommDestroy, (::headrace::nccl::Comm comm)) \
  X(ncclCommAbort, (::headrace::nccl::Comm comm)) \
  X(ncclCommGetAsyncError, (::headrace::nccl::Comm comm, ::headrace::nccl::Result* error)) \
  X(ncclGroupStart, ()) \
  X(ncclGroupEnd, ()) \
  X(ncclSend, (const void* from, size_t count, int type, int peer, ::headrace::nccl::Comm comm, \
               ::headrace::cuda::Stream stream)) \
  X(ncclRecv, (void* to, size_t count, int type, int peer, ::headrace::nccl::Comm comm, \
               ::headrace::cuda::Stream stream))
#define HEADRACE_NCCL_TEXT_FUNCTIONS(X) \
  X(ncclGetErrorString, (::headrace::nccl::Result result)) \
  X(ncclGetLastError, (::headrace::nccl::Comm comm))
// clang-format on

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_NCCL_ABI_H_
