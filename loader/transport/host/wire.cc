#include "loader/transport/host/wire.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "planner/status.h"

namespace headrace::host {
namespace {

constexpr absl::string_view kAddressPrefix = "headrace-host/1/";
constexpr int kBacklog = 128;

// The abstract name: a zero byte, then text that `ss -x` can show.
socklen_t AbstractName(const Name& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::string text =
      absl::StrCat("headrace-", absl::BytesToHexString({reinterpret_cast<const char*>(name.data()), name.size()}));
  std::memcpy(address->sun_path + 1, text.data(), text.size());
  return offsetof(sockaddr_un, sun_path) + 1 + text.size();
}

bool IsHex(absl::string_view text) {
  for (char c : text) {
    if (!absl::ascii_isxdigit(c)) return false;
  }
  return true;
}

absl::Status SystemError(absl::string_view what) {
  return Error(ErrorCode::kTransport, absl::StrCat("host transport: ", what, ": ", strerror(errno)));
}

}  // namespace

std::string FormatAddress(const Name& name, const Cookie& cookie) {
  std::string raw(name.begin(), name.end());
  raw.append(cookie.begin(), cookie.end());
  return absl::StrCat(kAddressPrefix, absl::BytesToHexString(raw));
}

absl::Status ParseAddress(absl::string_view address, Name* name, Cookie* cookie) {
  const size_t size = name->size() + cookie->size();
  if (!absl::ConsumePrefix(&address, kAddressPrefix) || address.size() != 2 * size || !IsHex(address)) {
    return Error(ErrorCode::kTransport, "connect: not an address of the host transport");
  }
  const std::string raw = absl::HexStringToBytes(address);
  std::memcpy(name->data(), raw.data(), name->size());
  std::memcpy(cookie->data(), raw.data() + name->size(), cookie->size());
  return absl::OkStatus();
}

absl::StatusOr<Descriptor> Listen(const Name& name) {
  Descriptor socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_fd.get() < 0) return SystemError("socket");
  sockaddr_un address;
  const socklen_t size = AbstractName(name, &address);
  if (bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return SystemError("bind");
  if (listen(socket_fd.get(), kBacklog) != 0) return SystemError("listen");
  return socket_fd;
}

absl::StatusOr<Descriptor> ConnectTo(const Name& name, int timeout_ms) {
  Descriptor socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket_fd.get() < 0) return SystemError("socket");
  // A full backlog makes connect wait; the send timeout bounds that.
  const timeval timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000};
  if (setsockopt(socket_fd.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0) {
    return SystemError("setsockopt");
  }
  sockaddr_un address;
  const socklen_t size = AbstractName(name, &address);
  int result;
  do {
    result = connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), size);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return socket_fd;
  if (errno == ECONNREFUSED) {
    return Error(ErrorCode::kPeerLost,
                 "connect: nobody listens at this address: the owner ended, or is in another network namespace");
  }
  if (errno == EAGAIN) return Error(ErrorCode::kDeadline, "connect: the owner does not accept connections");
  return SystemError("connect");
}

bool PeerIsSameUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

pid_t PeerProcess(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

bool SendPacket(int socket, const void* packet, size_t size, int attached) {
  iovec data{const_cast<void*>(packet), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (attached >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &attached, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size);
}

ssize_t ReceivePacket(int socket, void* packet, size_t size, Descriptor* attached) {
  iovec data{packet, size};
  // Room for exactly one descriptor (CMSG_SPACE would have room for two): the kernel closes any further ones.
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    *attached = Descriptor(fd);
  }
  return got;
}

}  // namespace headrace::host
