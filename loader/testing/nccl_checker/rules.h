#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_RULES_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_RULES_H_

// The rules that are checked; each with its name, what it says and where that is written: the table in rules.cc.

#include <string>

#include "loader/gpu/cuda_abi.h"
#include "loader/transport/nccl/nccl_abi.h"

namespace headrace::nccl_checker {

enum class Rule : int {
  kNone = 0,
  // CUDA
  kCallInHostFunction,
  kMemcpyKind,
  kMemcpyBounds,
  kMemcpyPitch,
  kHostRegister,
  kFree,
  kFreeInUse,
  kVmmGranularity,
  kVmmHandle,
  kVmmExport,
  kVmmMap,
  kVmmRange,
  kVmmAddressFree,
  kVmmAccess,
  kStreamHandle,
  kStreamDevice,
  kStreamDestroyBusy,
  kStreamBeforeLaunch,
  kEventHandle,
  kEventDestroyBusy,
  // NCCL
  kCommHandle,
  kCommAfterFree,
  kCommBeforeReady,
  kCommAfterFinalize,
  kCommConfig,
  kRankRange,
  kIdForeign,
  kIdReuse,
  kInitMismatch,
  kDuplicateGpu,
  kDestroyUnfinalized,
  kDestroyBusy,
  kGroupUnbalanced,
  kGroupOpenAtThreadEnd,
  kGroupMixedBlocking,
  kGroupMixedInit,
  kGroupCap,
  kGroupCut,
  kSelfUnmatched,
  kMatchCount,
  kMatchType,
  kArgument,
  kBufferMemory,
  kCtas,
  kDeadlock,
};

struct RuleText {
  Rule rule;
  const char* id;
  nccl::Result result;  // of the call, where it is one of NCCL's
  const char* says;
  const char* source;
};

const RuleText& TextOf(Rule rule);

// Tells a violation as nccl_checker.h says; returns only where violations do not end the process. The result is what a
// call of NCCL returns.
nccl::Result Violation(Rule rule, const std::string& detail);
// The same for a call of CUDA: returns `error`.
cuda::Error CudaViolation(Rule rule, const std::string& detail, cuda::Error error = cuda::kErrorInvalidValue);

// Whether this thread runs a function of cudaLaunchHostFunc; set by its stream.
extern thread_local bool t_in_host_function;
// True, and a violation, when `call` comes from a host function.
bool CalledFromHostFunction(const char* call);

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_RULES_H_
