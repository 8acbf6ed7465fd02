#ifndef HEADRACE_LOADER_TRANSPORT_HOST_WIRE_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_WIRE_H_

// What travels over the unix socket (SOCK_SEQPACKET: one struct is one packet; both ends run on one machine, so structs
// travel as they lie in memory):
//
//   connector -> owner  Hello        or the connection is closed without a word
//   owner -> connector  HelloReply
//   connector -> owner  Request      any number of times, one at a time
//   owner -> connector  Reply        to kMap with the descriptor attached when `found`; a reply whose request was given
//                                    up at its deadline is known by its sequence
//
// The owner's death ends the connection.

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/transport/descriptor.h"
#include "loader/transport/secret.h"

namespace headrace::host {

inline constexpr uint64_t kProtocol = 0x32545348'52444548;  // "HEDRHST2"

using Name = std::array<unsigned char, 16>;
using Key = std::array<unsigned char, 16>;

struct Hello {
  uint64_t protocol;
  Cookie cookie;
};
// A random number in the owner's memory, which shows who reads it that this process is still that owner.
struct Stamp {
  uint64_t address;
  Key value;
};
struct HelloReply {
  uint64_t protocol;
  Stamp identity;  // stands while the endpoint lives
};
enum RequestKind : uint64_t { kMap = 0, kOpen = 1 };
struct Request {
  uint64_t sequence;
  uint64_t kind;  // a RequestKind
  Key key;
};
struct Reply {
  uint64_t sequence;
  uint64_t found;  // 0 or 1
  uint64_t bytes;
  // Of registered memory: where it begins in the owner, and a stamp that stands while it is registered.
  uint64_t address;
  Stamp stamp;
};

// Endpoint::address(): "headrace-host/1/" + name + cookie in hexadecimal.
std::string FormatAddress(const Name& name, const Cookie& cookie);
// kTransport when it is not such a string. The message does not repeat the address: it is a secret.
absl::Status ParseAddress(absl::string_view address, Name* name, Cookie* cookie);

// A non-blocking socket that listens at / is connected to the abstract name. kPeerLost: nobody listens there.
absl::StatusOr<Descriptor> Listen(const Name& name);
// Blocks for at most `timeout_ms`; afterwards the socket's sends and receives are blocking.
absl::StatusOr<Descriptor> ConnectTo(const Name& name, int timeout_ms);

// The peer process runs under this process's effective user id.
bool PeerIsSameUser(int socket);
// The process at the other end (of a connector's socket: the one that listened) as this PID namespace numbers it; 0
// when it is not visible here.
pid_t PeerProcess(int socket);

// Sends one packet, with a descriptor unless `attached` is -1. False with errno set.
bool SendPacket(int socket, const void* packet, size_t size, int attached);
// Receives one packet and at most one descriptor. Returns its size, 0 at the end of the connection, -1 with errno set.
ssize_t ReceivePacket(int socket, void* packet, size_t size, Descriptor* attached);

}  // namespace headrace::host

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_WIRE_H_
