#ifndef HEADRACE_LOADER_CONTROL_LISTEN_ADDRESS_H_
#define HEADRACE_LOADER_CONTROL_LISTEN_ADDRESS_H_

// Where the control service listens, and which addresses never leave the machine. Private to this folder.

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headrace {

// One address of this machine, and a port.
struct ListenAddress {
  sockaddr_storage address = {};
  socklen_t size = 0;
  std::string host;  // numeric: "127.0.0.1", "[::1]", "[fe80::1%eth0]"
  int port = 0;
  bool loopback = false;

  // "[::1]:4711"
  std::string HostPort(int actual_port) const;
};

// `host` is an IPv4 or IPv6 address (with or without brackets) or a name; of a name, the first address that the
// system's resolver gives is taken. kInvalidOption: the host is empty or cannot be resolved, or the port is not 0 to
// 65535. May wait for a name server.
absl::StatusOr<ListenAddress> ResolveListenAddress(const std::string& host, int port);

// The reason why nothing can listen there, asked of the kernel: kAddressInUse; kInvalidOption (not an address of this
// machine, which are listed, or a port that needs privileges); kIo.
absl::Status WhyNoListen(const ListenAddress& where);

// Whether a client that connects to "host:port" stays on this machine: 127.0.0.0/8, ::1 or "localhost". Other names are
// not looked up: what they stand for may change in between.
bool StaysOnThisMachine(absl::string_view address);

// The host of "host:port" or "[host]:port", without brackets.
absl::string_view HostOf(absl::string_view address);

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_LISTEN_ADDRESS_H_
