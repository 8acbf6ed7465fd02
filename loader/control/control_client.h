#ifndef HEADRACE_LOADER_CONTROL_CONTROL_CLIENT_H_
#define HEADRACE_LOADER_CONTROL_CONTROL_CLIENT_H_

// A member's end of its control stream.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "loader/control/control_server.h"
#include "loader/control/event_queue.h"
#include "loader/control/tls.h"

namespace headrace {

struct ControlClientOptions {
  std::string address;  // "host:port", "[::1]:port"; a name may stand for several addresses
  std::string token;
  std::optional<ClientTls> tls;  // what the server has
  // Without TLS the token is sent only to 127.0.0.0/8, ::1 and "localhost", unless this says that whoever can read the
  // network, or answer in the server's place, may have it.
  bool trust_network = false;
  int max_message_bytes = kMaxControlMessageBytes;
  int64_t max_queued_bytes = 256 << 20;
};

// Thread rules: any thread. Destruction cuts the stream.
class ControlClient {
 public:
  // Waits for a server that does not run yet, until the deadline. kPeerLost: nobody answers at the address, which is
  // named, or connections are closed at once there, as a server does that uses TLS when this end does not, or that
  // refuses this member's certificate. At once: kUnauthenticated when the token is wrong, or the server's certificate
  // is not of this CA, not for this host or not valid now; kTransport when the server speaks no TLS. kInvalidOption: an
  // empty address, a token that cannot travel, or that would in clear; TLS files (tls.h). kIo: one cannot be read.
  // With TLS the token goes to nobody but a server that has proven itself.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(const ControlClientOptions& options,
                                                                absl::Time deadline);
  virtual ~ControlClient() = default;

  // Queues a message; never blocks. kInvalidOption: the message is too large; kPeerLost: the stream is over or its
  // queue is full (it is cut then).
  virtual absl::Status Send(const proto::Envelope& message) = 0;
  // Ends the stream in order: returns when the server has read all that was queued and has ended the stream too, at
  // the latest at the deadline. Messages that come in are dropped from now on.
  virtual void Finish(absl::Time deadline) = 0;
  // kMessage events, then one kDisconnected. Lives as long as the client.
  virtual EventQueue& events() = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_CONTROL_CLIENT_H_
