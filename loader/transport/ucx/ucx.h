#ifndef HEADRACE_LOADER_TRANSPORT_UCX_UCX_H_
#define HEADRACE_LOADER_TRANSPORT_UCX_UCX_H_

// Messages over UCX (1.13 or later, found at run time: see library.h): RDMA or TCP between hosts. Two-sided only.
//
// Tags: UCX matches 64 bits. The upper 32 are the sender's random endpoint id, which its address carries; the lower 32
// are the caller's tag (Capabilities::tag_bits is 32).
//
// Where it listens: a TCP port that UCX draws, on each of its devices, from creation to destruction; on loopback only
// unless told otherwise, so that only endpoints of this host (and network namespace) reach it. Each device is used with
// its first IPv4 address, or its first IPv6 address where it has none; UCX_TCP_AF_PRIO=inet6 turns that round, and
// UCX_TCP_PORT_RANGE narrows the ports. UCX 1.13 does not use ::1.
//
// Dead peers: endpoints are made with UCP_ERR_HANDLING_MODE_PEER, and UCX then uses only lanes that notice a dead peer
// (TCP, RDMA). A process that dies is noticed by its closed connections, a host that dies by keepalive, which may take
// longer than a caller wants to wait: deadlines are the caller's.
//
// UCX itself authenticates nobody and encrypts nothing: who knows an address can send to it, and who reads the network
// reads the messages. Addresses are secrets (transport.h), and arriving bytes are verified above.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "loader/transport/transport.h"

namespace headrace {

struct UcxOptions {
  // UCX's list of transports, as in UCX_TLS. Empty: UCX_TLS of the environment, otherwise "^posix,sysv": all that UCX
  // finds except shared memory, whose segments in /dev/shm fail in containers where that is small or full, and which
  // cannot notice a dead peer, so that UCX would not use it here.
  std::string tls;
  // The network devices to listen on and to send through, as in UCX_NET_DEVICES: "eth0", "mlx5_0:1,mlx5_1:1", "all".
  // Empty: UCX_NET_DEVICES of the environment, otherwise "lo".
  std::string devices;
};

// kTransport: no libucp, or UCX cannot use any of the transports. kOutOfMemory: no memory for UCX's buffers; when
// shared memory was asked for by `tls` or UCX_TLS, that is /dev/shm, and the message says so. kInvalidOption: `tls` is
// refused, or a device is not here or down; those that are usable are named with their addresses.
absl::StatusOr<std::unique_ptr<Transport>> NewUcxTransport(const UcxOptions& options = {});

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_UCX_UCX_H_
