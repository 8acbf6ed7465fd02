#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_NCCL_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_NCCL_H_

// Messages over NCCL (2.27 or later, found at run time like the CUDA runtime): between GPUs of one host and of several.
// Two-sided only.
//
// How a message travels: its sender offers it over a TCP connection; the receiver puts the offers that meet a receive
// of its own into groups and tells the sender, and both launch the group at once (lane.h). Messages of up to 16
// bytes (signals) go with their offer. A message is sent when the receiver said that it arrived. Memory of messages may
// be on the host or on the endpoint's device.
//
// Why this never locks up: what runs on a GPU at one time is bounded, separately for sending and for receiving. A send
// is launched only after its receive was, so every send that runs ends; so every receive's send gets its turn. Memory
// through which messages of the host travel is of each side's own, for the same reason, and nothing is allocated while
// messages travel (staging.h).
//
// The trainer's own collectives: kernels of NCCL that wait for each other on two communicators of one GPU may block
// each other. While messages travel (between Publish and AwaitRelease) a trainer runs no collectives of its own.
//
// Where it listens: a TCP port that the kernel draws, at one network device; on loopback only unless told otherwise.
// NCCL opens ports of its own, at the interfaces of NCCL_SOCKET_IFNAME. The connections authenticate by the address,
// which is a secret (transport.h); NCCL authenticates nobody and encrypts nothing.
//
// Dead peers: a process that dies is noticed by its closed connections, a host that dies by keepalive (about 11 s).
// Then, and at Disconnect and Abort, the communicators with that peer are aborted, which ends their kernels.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "loader/gpu/gpu_options.h"
#include "loader/transport/transport.h"

namespace headrace {

struct NcclOptions {
  std::string device = "lo";  // the network device to listen at
  std::optional<int> gpu;     // modulo the number of GPUs here; none: the calling thread's current device
  GpuOptions libraries = GpuOptionsFromEnvironment();
};

// kTransport: no CUDA runtime, no NCCL or no GPU, each with what to do. kInvalidOption: the device is not here.
absl::StatusOr<std::unique_ptr<Transport>> NewNcclTransport(const NcclOptions& options = {});

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_NCCL_H_
