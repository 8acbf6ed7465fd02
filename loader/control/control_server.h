#ifndef HEADRACE_LOADER_CONTROL_CONTROL_SERVER_H_
#define HEADRACE_LOADER_CONTROL_CONTROL_SERVER_H_

// The coordinator's end of the control streams.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/control/event_queue.h"
#include "loader/control/tls.h"

namespace headrace {

inline constexpr int kMaxControlMessageBytes = 64 << 20;

struct ControlServerOptions {
  // An IPv4 or IPv6 address of this machine, or a name, of which the first address is taken. "0.0.0.0" and "::" are all
  // addresses of this machine, of both kinds.
  std::string host = "127.0.0.1";
  int port = 0;       // 0: any that is free
  std::string token;  // not empty
  std::optional<ServerTls> tls;
  // Without TLS whoever can read the network learns the token, and with it every address of the job. Beyond loopback
  // that is refused unless this says that the network is trusted.
  bool trust_network = false;
  int max_message_bytes = kMaxControlMessageBytes;
  // A stream whose unsent messages exceed this, in bytes, is cut: a slow member must not hold the others' memory.
  int64_t max_queued_bytes = 256 << 20;
};

// Thread rules: any thread; events come through the queue, which must outlive the server.
class ControlServer {
 public:
  // The port is taken once, here, and held until destruction. kAddressInUse: somebody has it. kInvalidOption: a token
  // that cannot travel; a host that is no address of this machine, or a name that is not known; a port out of range or
  // without the privilege; no TLS beyond loopback; TLS files that do not serve (tls.h). kIo: a TLS file cannot be read.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const ControlServerOptions& options, EventQueue* events);
  // Cuts all streams. The queue gets no event after it.
  virtual ~ControlServer() = default;

  virtual int port() const = 0;
  // Numeric, with the port that is held: "127.0.0.1:4711", "[::1]:4711".
  virtual std::string address() const = 0;
  // Queues a message; never blocks. A stream that is gone is no error: its kDisconnected event is on its way. One whose
  // queue is full, or a message that is too large, cuts the stream (kDisconnected with the reason).
  virtual void Send(ConnectionId connection, const proto::Envelope& message) = 0;
  // Ends the stream in order after the messages that are queued; no further events of it.
  virtual void Close(ConnectionId connection) = 0;
  // Streams that were refused because of a wrong token. (Those that fail at TLS never become streams.)
  virtual int64_t refused() const = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_CONTROL_SERVER_H_
