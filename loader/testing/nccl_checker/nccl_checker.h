#ifndef HEADRACE_LOADER_TESTING_NCCL_CHECKER_NCCL_CHECKER_H_
#define HEADRACE_LOADER_TESTING_NCCL_CHECKER_NCCL_CHECKER_H_

// libheadrace_nccl_checker.so: a test part. It is neither NCCL nor CUDA and no substitute for them.
//
// It has the C ABI of the functions in loader/gpu/cuda_abi.h, loader/gpu/cuda_driver_abi.h and
// loader/transport/nccl/nccl_abi.h and is loaded by dlopen in place of libcudart, libcuda and libnccl, so that the code
// that uses them runs unchanged where there is no GPU, in one process or several of one machine. It moves data between
// ranks through shared memory, and checks the calls against the documented rules of NCCL and CUDA; rules.cc lists them
// with their sources.
//
// A test that uses it depends on //loader/testing/nccl_checker, and gives kLibraryPath as the path of each library.
//
// What is modelled
//   devices     N of them with PCI ids that are the same in all processes; a current device per thread; each
//               process counts its own allocations only
//   memory      device memory is host memory, known by a table that tells device, pinned and pageable memory apart;
//               filled with 0xCB when allocated
//   sharing     memory of cuMemCreate, in units of 64 KiB, is a memfd: as a POSIX descriptor it is passed on to other
//               processes, as a fabric handle it is opened through the exporter's /proc, as long as that has the
//               memory. Each device has an access of its own to what is mapped. cuInit comes first
//   streams     a FIFO and a thread each, begun at the first work and ended by cudaStreamDestroy. The threads of the
//               default streams end when they have nothing to do. Blocking streams and the default stream of a device
//               wait for each other (legacy semantics)
//   NCCL        ids with a rendezvous over an abstract socket; non-blocking communicators; groups that run as one
//               kernel, in the order of issue per communicator; a send that completes when the peer's receive has
//               taken it; peers that die or abort; ncclCommFinalize, ncclCommDestroy, ncclCommAbort
// What is not
//   time, bandwidth, channels, protocols, launch plans (a group above the cap is an error instead), collectives,
//   registration of buffers, splitting and shrinking, CUDA graphs, managed memory, peer access, the per-thread default
//   stream (refused), stream priorities, ranks of other hosts, more than 250 ranks, processes that fork without exec.
//   CTAs are counted within one process.
//
// An id whose communicator nobody ever joins keeps its listener and its thread until the process ends, as NCCL's
// bootstrap root does. Threads of the checker besides: one for each communicator that is being made, one for each
// group that is being launched on a non-blocking communicator.
//
// A violation prints one line `NCCL CHECKER: <rule>: ...` on stderr, appends it to the violations file where one is
// named, and ends the process by abort(); with "return" the call fails instead (ncclInvalidUsage or
// ncclInvalidArgument, a CUDA error code), and where no call is to blame the communicator's asynchronous error says so.

namespace headrace::nccl_checker {

// Of the runfiles: what stands in for each library.
inline constexpr char kLibraryPath[] = "loader/testing/nccl_checker/libheadrace_nccl_checker.so";

// Environment variables. Each is read once, at the first call.
inline constexpr char kDevicesVariable[] = "HEADRACE_NCCL_CHECKER_DEVICES";            // 8
inline constexpr char kDeviceBytesVariable[] = "HEADRACE_NCCL_CHECKER_DEVICE_BYTES";   // 16 GiB, in each process
inline constexpr char kGroupCapVariable[] = "HEADRACE_NCCL_CHECKER_GROUP_CAP";         // 1000 operations of a rank
inline constexpr char kRingBytesVariable[] = "HEADRACE_NCCL_CHECKER_RING_BYTES";       // 65536, a power of two
inline constexpr char kCtaLimitVariable[] = "HEADRACE_NCCL_CHECKER_CTA_LIMIT";         // 64 on one device
inline constexpr char kStallMsVariable[] = "HEADRACE_NCCL_CHECKER_STALL_MS";           // 30000: then it is a deadlock
inline constexpr char kOnViolationVariable[] = "HEADRACE_NCCL_CHECKER_ON_VIOLATION";   // "abort" (default), "return"
inline constexpr char kViolationsFileVariable[] = "HEADRACE_NCCL_CHECKER_VIOLATIONS";  // a file to append to
inline constexpr char kSeedVariable[] = "HEADRACE_NCCL_CHECKER_SEED";                  // 0; of all that is by seed
// A list of: "delay" (launches and inits take up to 30 ms), "short" (data moves in small pieces), "init" (one init in
// four fails with ncclSystemError), "async" (one kernel in eight fails with ncclSystemError).
inline constexpr char kFaultsVariable[] = "HEADRACE_NCCL_CHECKER_FAULTS";
// How a peer that died or aborted shows: "error" (ncclRemoteError by ncclCommGetAsyncError), "silent" (not at all);
// absent: one or the other, by seed, for each rank of a communicator. The kernel hangs until ncclCommAbort either way.
inline constexpr char kPeerLossVariable[] = "HEADRACE_NCCL_CHECKER_PEER_LOSS";
// A list of the handle types that the devices support: "fd", "fabric", "fabric-denied" (the devices support it, but
// this process may not use it: it has no IMEX channel). Absent: "fd,fabric"; empty: none.
inline constexpr char kHandleTypesVariable[] = "HEADRACE_NCCL_CHECKER_HANDLE_TYPES";
// NCCL's own, of 2.30: "1" allows several ranks of a communicator on one device.
inline constexpr char kMultiRankGpuVariable[] = "NCCL_MULTI_RANK_GPU_ENABLE";

}  // namespace headrace::nccl_checker

#endif  // HEADRACE_LOADER_TESTING_NCCL_CHECKER_NCCL_CHECKER_H_
