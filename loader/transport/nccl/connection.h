#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_CONNECTION_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_CONNECTION_H_

// TCP connections that carry frames (wire.proto): each a length of 4 bytes, little-endian, and the serialised frame.
// Both ends use a connection one way only: so nothing unread makes closing it lose what was written.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "loader/transport/descriptor.h"
#include "loader/transport/nccl/wire.pb.h"

namespace headrace::nccl {

struct Listener {
  Descriptor socket;  // non-blocking
  std::string ip;
  uint16_t port = 0;
};

// Listens on a port that the kernel draws, at the first IPv4 address of a network interface, or its first IPv6 address
// that is not link-local. kInvalidOption: no such interface, or it is down; names those that are usable. kTransport.
absl::StatusOr<Listener> ListenOn(const std::string& interface);

// A connection that waits to be taken; none: -1.
Descriptor TakeConnection(const Listener& listener);

// kPeerLost: nobody listens there. kDeadline. kTransport.
absl::StatusOr<Descriptor> Dial(const std::string& ip, uint16_t port, absl::Time deadline);

class Connection {
 public:
  static constexpr size_t kMaxFrameBytes = 64 << 10;

  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}
  int socket() const { return socket_.get(); }

  // Keeps a frame to be written by Flush.
  void Queue(const wire::Frame& frame);
  bool unwritten() const { return written_ < out_.size(); }
  // Writes what the kernel takes. False: the connection is broken.
  bool Flush();

  // Appends at most `max_frames` of the frames that are there, of about a megabyte at most; others stay for the next
  // call. False: the connection ended, or what came is no frame; whole frames before that are appended.
  bool Read(std::vector<wire::Frame>* frames, size_t max_frames = SIZE_MAX);

 private:
  Descriptor socket_;
  std::string out_;
  size_t written_ = 0;
  std::string in_;
};

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_CONNECTION_H_
