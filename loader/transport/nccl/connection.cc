#include "loader/transport/nccl/connection.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kLengthBytes = 4;
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxReads = 16;

absl::Status SystemError(absl::string_view what) {
  return Error(ErrorCode::kTransport, absl::StrCat("nccl: ", what, ": ", strerror(errno)));
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

SocketAddress SocketAddressOf(const std::string& ip, uint16_t port) {
  SocketAddress address;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage); inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof *v4;
  } else if (auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
             inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.size = sizeof *v6;
  }
  return address;
}

// The addresses of the interfaces that are up: IPv4 first.
std::map<std::string, std::vector<std::string>> Interfaces() {
  std::map<std::string, std::vector<std::string>> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return interfaces;
  for (int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != family || (i->ifa_flags & IFF_UP) == 0) continue;
      char host[NI_MAXHOST];
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(i->ifa_addr, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) continue;
      if (strchr(host, '%') == nullptr) interfaces[i->ifa_name].push_back(host);  // not link-local
    }
  }
  freeifaddrs(list);
  return interfaces;
}

void Tune(int socket) {
  const int on = 1, idle_s = 5, interval_s = 2, probes = 3;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A host that died says nothing.
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

}  // namespace

absl::StatusOr<Listener> ListenOn(const std::string& interface) {
  const auto interfaces = Interfaces();
  const auto found = interfaces.find(interface);
  if (found == interfaces.end()) {
    return Error(
        ErrorCode::kInvalidOption,
        absl::StrCat(
            "nccl: the network device '", interface, "' is not here, is down or has no address; use one of: ",
            absl::StrJoin(interfaces, ", ", [](std::string* out, const auto& i) { absl::StrAppend(out, i.first); })));
  }
  Listener listener;
  listener.ip = found->second.front();
  SocketAddress address = SocketAddressOf(listener.ip, 0);
  listener.socket = Descriptor(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  auto* raw = reinterpret_cast<sockaddr*>(&address.storage);
  if (listener.socket.get() < 0 || bind(listener.socket.get(), raw, address.size) != 0 ||
      listen(listener.socket.get(), kBacklog) != 0 || getsockname(listener.socket.get(), raw, &address.size) != 0) {
    return SystemError(absl::StrCat("listening at ", listener.ip));
  }
  listener.port = ntohs(raw->sa_family == AF_INET ? reinterpret_cast<sockaddr_in*>(raw)->sin_port
                                                  : reinterpret_cast<sockaddr_in6*>(raw)->sin6_port);
  return listener;
}

Descriptor TakeConnection(const Listener& listener) {
  Descriptor socket(accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.get() >= 0) Tune(socket.get());
  return socket;
}

absl::StatusOr<Descriptor> Dial(const std::string& ip, uint16_t port, absl::Time deadline) {
  const SocketAddress address = SocketAddressOf(ip, port);
  Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return SystemError("connect: socket");
  Tune(socket.get());
  int error = 0;
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) error = errno;
  if (error == EINPROGRESS || error == EINTR) {
    pollfd event{socket.get(), POLLOUT, 0};
    int ready = 0;
    do {
      const timespec wait = absl::ToTimespec(std::max(deadline - absl::Now(), absl::ZeroDuration()));
      ready = ppoll(&event, 1, deadline == absl::InfiniteFuture() ? nullptr : &wait, nullptr);
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) return Error(ErrorCode::kDeadline, "nccl: connect: the peer's host does not answer");
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return socket;
  return Error(ErrorCode::kPeerLost,
               absl::StrCat("nccl: connect: nobody listens there any more, or it cannot be reached from here (both "
                            "ends use loopback only, unless `devices` says otherwise): ",
                            strerror(error)));
}

void Connection::Queue(const wire::Frame& frame) {
  if (written_ == out_.size()) {
    out_.clear();
    written_ = 0;
  }
  const std::string text = frame.SerializeAsString();
  for (size_t i = 0; i < kLengthBytes; ++i) out_.push_back(static_cast<char>(text.size() >> (8 * i)));
  out_ += text;
}

bool Connection::Flush() {
  while (unwritten()) {
    const ssize_t sent = send(socket(), out_.data() + written_, out_.size() - written_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    written_ += sent;
  }
  return true;
}

bool Connection::Read(std::vector<wire::Frame>* frames, size_t max_frames) {
  bool open = true;
  for (size_t reads = 0; open && reads < kMaxReads; ++reads) {
    const size_t before = in_.size();
    in_.resize(before + kReadBytes);
    const ssize_t got = recv(socket(), &in_[before], kReadBytes, 0);
    in_.resize(before + std::max<ssize_t>(got, 0));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    open = got > 0;
  }
  size_t at = 0;
  for (size_t taken = 0; taken < max_frames && in_.size() - at >= kLengthBytes; ++taken) {
    size_t size = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) size |= size_t{static_cast<unsigned char>(in_[at + i])} << (8 * i);
    if (size > kMaxFrameBytes) return false;
    if (in_.size() - at - kLengthBytes < size) break;
    wire::Frame frame;
    if (!frame.ParseFromArray(&in_[at + kLengthBytes], static_cast<int>(size))) return false;
    frames->push_back(std::move(frame));
    at += kLengthBytes + size;
  }
  in_.erase(0, at);
  return open;
}

}  // namespace headrace::nccl
