#include "loader/testing/nccl_checker/rules.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "loader/testing/nccl_checker/options.h"

namespace headrace::nccl_checker {
namespace {

#define NCCL_GUIDE "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
#define CUDA_API "https://docs.nvidia.com/cuda/cuda-runtime-api/"
#define CUDA_VMM "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html, "

constexpr nccl::Result kUsage = nccl::kInvalidUsage, kArgument = nccl::kInvalidArgument;

// "Stricter:" marks rules that ask for more than the source does, and why.
constexpr RuleText kRules[] = {
    {Rule::kNone, "none", 0, "", ""},
    {Rule::kCallInHostFunction, "call-in-host-function", kUsage,
     "a host function calls nothing of CUDA, and so nothing of NCCL",
     CUDA_API "group__CUDART__EXECUTION.html, cudaLaunchHostFunc"},
    {Rule::kMemcpyKind, "memcpy-kind", kUsage, "a copy's kind says what its pointers are; memset wants device memory",
     CUDA_API "group__CUDART__MEMORY.html, cudaMemcpyAsync: pointers that do not match the direction of the copy "
              "result in undefined behavior"},
    {Rule::kMemcpyBounds, "memcpy-bounds", kUsage, "a copy stays inside the allocations that it begins in",
     CUDA_API "group__CUDART__MEMORY.html, cudaMemcpyAsync: cudaErrorInvalidValue; memory areas may not overlap"},
    {Rule::kMemcpyPitch, "memcpy-pitch", kUsage,
     "a row is no wider than its pitch, and no pitch is above the device's limit",
     CUDA_API
     "group__CUDART__MEMORY.html, cudaMemcpy2DAsync: width must not exceed either dpitch or spitch; an error if "
     "dpitch or spitch exceeds the maximum allowed"},
    {Rule::kHostRegister, "host-register", kUsage, "memory is registered once, and unregistered by its first byte",
     CUDA_API "group__CUDART__MEMORY.html, cudaHostRegister: pages overlapping a registered range; cudaHostUnregister: "
              "the base address must be the same one specified to cudaHostRegister"},
    {Rule::kFree, "free", kUsage, "memory is freed once, by its base, with the call that goes with its allocation",
     CUDA_API "group__CUDART__MEMORY.html, cudaFree, cudaFreeHost"},
    {Rule::kFreeInUse, "free-in-use", kUsage, "memory outlives the work that uses it",
     NCCL_GUIDE "usage/streams.html: operations are only enqueued when a call returns; " CUDA_API
                "group__CUDART__MEMORY.html, cudaFree. Stricter: where cudaFree waits for the device, it waits for "
                "peers inside a kernel of NCCL"},
    {Rule::kVmmGranularity, "vmm-granularity", kUsage,
     "memory is created, reserved and mapped in whole units of the granularity, and mapped from its first byte",
     CUDA_VMM "cuMemCreate: the size must be a multiple of the granularity; cuMemMap: ptr, size and offset too; the "
              "offset currently must be zero. Stricter: cuMemAddressReserve asks for whole pages"},
    {Rule::kVmmHandle, "vmm-handle", kUsage, "a handle of memory lives: it was created or imported, and not released",
     CUDA_VMM "cuMemRelease: undefined behavior if handle is not a valid handle; each import is paired with it"},
    {Rule::kVmmExport, "vmm-export", kUsage, "memory is exported as a type that was requested when it was created",
     "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html, "
     "CUmemAllocationProp::requestedHandleTypes; " CUDA_VMM "cuMemExportToShareableHandle"},
    {Rule::kVmmMap, "vmm-map", kUsage,
     "memory is mapped, no more of it than there is, where addresses are reserved and "
     "nothing is mapped",
     CUDA_VMM "cuMemMap: the range must be an address reservation; only on reservations that are not currently mapped"},
    {Rule::kVmmRange, "vmm-range", kUsage, "access is set for, and memory unmapped from, whole mappings",
     CUDA_VMM
     "cuMemSetAccess: the range must be a fully mapped address range; cuMemUnmap: the entire contiguous address "
     "range that was mapped to"},
    {Rule::kVmmAddressFree, "vmm-address-free", kUsage,
     "reserved addresses are freed once, as they were reserved, and with nothing mapped there",
     CUDA_VMM
     "cuMemAddressFree: ptr and size must match cuMemAddressReserve; cuMemUnmap: it makes the range an address "
     "reservation again"},
    {Rule::kVmmAccess, "vmm-access", kUsage,
     "work of a device uses mapped memory to which that device has access, to write where it writes",
     CUDA_VMM "cuMemMap: does not make the address accessible; cuMemSetAccess"},
    {Rule::kStreamHandle, "stream-handle", kUsage, "a stream lives: it was created and not destroyed",
     CUDA_API "group__CUDART__STREAM.html, cudaStreamDestroy"},
    {Rule::kStreamDevice, "stream-device", kUsage,
     "an event is recorded, and a kernel launched, in a stream of its own device",
     CUDA_API "group__CUDART__EVENT.html, cudaEventRecord: event and stream on the same device; CUDA C++ programming "
              "guide, Stream and Event Behavior: a launch into a stream of another device fails; " NCCL_GUIDE
              "usage/communicators.html: a device for each rank"},
    {Rule::kStreamDestroyBusy, "stream-destroy-busy", kUsage, "a stream is destroyed when its work is done",
     CUDA_API "group__CUDART__STREAM.html, cudaStreamDestroy. Stricter: CUDA lets the work go on, which then outlives "
              "what its owner knows"},
    {Rule::kStreamBeforeLaunch, "stream-before-launch", kUsage,
     "a stream of a group is used again after ncclGroupEnd, and where that said ncclInProgress after ncclSuccess",
     NCCL_GUIDE "usage/groups.html: stream operations can be called only after ncclGroupEnd returns; Nonblocking Group "
                "Operation: users make sure that the state changes into ncclSuccess before calling related CUDA calls"},
    {Rule::kEventHandle, "event-handle", kUsage, "an event lives: it was created and not destroyed",
     CUDA_API "group__CUDART__EVENT.html, cudaEventDestroy"},
    {Rule::kEventDestroyBusy, "event-destroy-busy", kUsage, "an event is destroyed when it is complete",
     CUDA_API "group__CUDART__EVENT.html, cudaEventDestroy. Stricter: CUDA allows it, but then nobody can wait for "
              "the work before it"},
    {Rule::kCommHandle, "comm-handle", kArgument, "a communicator is one that an init made",
     NCCL_GUIDE "api/comms.html; src/misc/argcheck.cc, PtrCheck and CommCheck"},
    {Rule::kCommAfterFree, "comm-after-free", kArgument, "no call on a communicator after its destroy or abort",
     NCCL_GUIDE "api/comms.html, ncclCommDestroy: no longer accessed after ncclCommDestroy returns"},
    {Rule::kCommBeforeReady, "comm-before-ready", kArgument,
     "while a communicator is in progress, only ncclCommGetAsyncError and ncclCommAbort",
     "src/init.cc, ncclCommEnsureReady: Attempt to use communicator before the previous operation returned "
     "ncclSuccess; " NCCL_GUIDE "usage/communicators.html"},
    {Rule::kCommAfterFinalize, "comm-after-finalize", kUsage, "after ncclCommFinalize only destroy, abort and queries",
     NCCL_GUIDE "usage/communicators.html, Finalizing a communicator; src/init.cc, ncclCommFinalize: Communicator "
                "already finalized"},
    {Rule::kCommConfig, "comm-config", kArgument, "a configuration begins with its size, magic and version",
     "nccl.h, NCCL_CONFIG_INITIALIZER: not initialized config will result in NCCL error"},
    {Rule::kRankRange, "rank-range", kArgument, "0 <= rank < ranks",
     "nccl.h, ncclCommInitRank: rank must be between 0 and nranks-1"},
    {Rule::kIdForeign, "id-foreign", kArgument, "an id was made by ncclGetUniqueId",
     "nccl.h, ncclGetUniqueId; " NCCL_GUIDE "api/comms.html"},
    {Rule::kIdReuse, "id-reuse", kUsage, "an id makes one communicator, with each rank once",
     "nccl.h, ncclCommInitRank: rank unique within a communicator clique; src/bootstrap.cc, bootstrapRoot: rank has "
     "already checked in; " NCCL_GUIDE "api/comms.html, ncclGetUniqueId: called once when creating a communicator"},
    {Rule::kInitMismatch, "init-mismatch", kArgument, "all ranks of an id say the same number of ranks",
     "src/bootstrap.cc, bootstrapRoot: mismatch in rank count from procs"},
    {Rule::kDuplicateGpu, "duplicate-gpu", kUsage, "one rank of a communicator on each device",
     "src/init.cc: Duplicate GPU detected; " NCCL_GUIDE "usage/communicators.html; NCCL_MULTI_RANK_GPU_ENABLE=1 since "
     "2.30"},
    {Rule::kDestroyUnfinalized, "destroy-unfinalized", kUsage,
     "a non-blocking communicator is destroyed after ncclCommFinalize, once its state is ncclSuccess",
     NCCL_GUIDE "api/comms.html, ncclCommDestroy: the state is ncclSuccess after ncclCommFinalize; recommended to call "
                "both. Stricter: without ncclCommFinalize ncclCommDestroy calls it, and blocks"},
    {Rule::kDestroyBusy, "destroy-busy", kUsage, "a communicator is destroyed when its work is done",
     NCCL_GUIDE "api/comms.html, ncclCommDestroy, ncclCommAbort: aborting is what ends outstanding work"},
    {Rule::kGroupUnbalanced, "group-unbalanced", kUsage, "ncclGroupEnd has its ncclGroupStart",
     "src/group.cc, ncclGroupEndInternal: ncclGroupEnd: not in a group call"},
    {Rule::kGroupOpenAtThreadEnd, "group-open-at-thread-end", kUsage, "a thread closes its groups",
     NCCL_GUIDE "usage/groups.html: a group is a thread's; all calls until ncclGroupEnd belong to it"},
    {Rule::kGroupMixedBlocking, "group-mixed-blocking", kArgument,
     "blocking and non-blocking communicators are not in one group",
     "src/group.cc, ncclAsyncLaunch: Blocking and nonblocking communicators are not allowed in the same group"},
    {Rule::kGroupMixedInit, "group-mixed-init", kUsage, "inits and communication are not in one group",
     "nccl.h, Group semantics: both can be used in groups, but not together; " NCCL_GUIDE "usage/groups.html"},
    {Rule::kGroupCap, "group-cap", kUsage, "a group has no more operations of a rank than a launch plan holds",
     "https://github.com/NVIDIA/Megatron-LM/pull/7189: each rank cuts larger groups by itself, and the parts wait for "
     "each other; src/enqueue.cc, ncclLaunchPrepare; until 2.11 2048 in all, " NCCL_GUIDE "api/group.html"},
    {Rule::kGroupCut, "group-cut", kUsage, "what two ranks exchange is cut into groups alike at both ends",
     "https://github.com/NVIDIA/Megatron-LM/pull/7189; " NCCL_GUIDE
     "usage/p2p.html; nccl.h, ncclSend: operations that need to progress concurrently must be fused within a group"},
    {Rule::kSelfUnmatched, "self-unmatched", kUsage, "a send to oneself has its receive in the same group",
     "src/enqueue.cc: Trying to send to self without a matching recv"},
    {Rule::kMatchCount, "match-count", kUsage, "a receive has the count of its send, in the order of issue",
     "nccl.h, ncclSend, ncclRecv: the peer needs to call with the same datatype and the same count"},
    {Rule::kMatchType, "match-type", kUsage, "a receive has the type of its send, in the order of issue",
     "nccl.h, ncclSend, ncclRecv: the peer needs to call with the same datatype and the same count"},
    {Rule::kArgument, "argument", kArgument, "peers are ranks of the communicator, types are NCCL's",
     "src/misc/argcheck.cc, ArgsCheck"},
    {Rule::kBufferMemory, "buffer-memory", kArgument,
     "buffers are device memory of the communicator's device, whole, until the kernel has ended",
     NCCL_GUIDE "usage/data.html, Data Pointers; src/misc/argcheck.cc, CudaPtrCheck. Stricter: memory of the host and "
                "of other devices that a kernel could reach is refused"},
    {Rule::kCtas, "ctas", kUsage, "the kernels that run on a device at once fit on it together",
     NCCL_GUIDE "usage/communicators.html, Using multiple NCCL communicators concurrently; "
                "https://github.com/NVIDIA/nccl/issues/195; ncclConfig_t maxCTAs"},
    {Rule::kDeadlock, "deadlock", kUsage, "what a kernel waits for comes",
     "nccl.h, ncclSend: blocking for the GPU; " NCCL_GUIDE "usage/groups.html, Group Operation Ordering Semantics: the "
     "same issuing order among GPUs, of one communicator and "
     "of several; usage/communicators.html, Using multiple NCCL communicators concurrently"},
};

constexpr bool InOrder() {
  int i = 0;
  for (const RuleText& text : kRules) {
    if (static_cast<int>(text.rule) != i++) return false;
  }
  return i == static_cast<int>(Rule::kDeadlock) + 1;
}
static_assert(InOrder());

void Tell(Rule rule, const std::string& detail) {
  const std::string line = std::string("NCCL CHECKER: ") + TextOf(rule).id + ": " + detail + " (" + TextOf(rule).says +
                           "; " + TextOf(rule).source + ")\n";
  // One write, so that lines of several processes do not mix.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  if (const std::string& file = options().violations_file; !file.empty()) {
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
      written = write(fd, line.data(), line.size());
      close(fd);
    }
  }
  if (options().abort_on_violation) std::abort();
}

}  // namespace

thread_local bool t_in_host_function = false;

const RuleText& TextOf(Rule rule) { return kRules[static_cast<int>(rule)]; }

nccl::Result Violation(Rule rule, const std::string& detail) {
  Tell(rule, detail);
  return TextOf(rule).result;
}

cuda::Error CudaViolation(Rule rule, const std::string& detail, cuda::Error error) {
  Tell(rule, detail);
  return error;
}

bool CalledFromHostFunction(const char* call) {
  if (!t_in_host_function) return false;
  Tell(Rule::kCallInHostFunction, std::string(call) + " was called by a function of cudaLaunchHostFunc");
  return true;
}

}  // namespace headrace::nccl_checker
