#include "loader/testing/nccl_checker/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

namespace headrace::nccl_checker {
namespace {

constexpr size_t kMostDescriptors = 253;  // SCM_MAX_FD

socklen_t AddressOf(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());  // a leading zero byte: abstract
  return offsetof(sockaddr_un, sun_path) + 1 + name.size();
}

}  // namespace

std::string RandomSocketName() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device device;
  std::string name = "headrace-nccl-checker-";
  for (int i = 0; i < 32; ++i) name.push_back(kDigits[device() % 16]);
  return name;
}

int ListenAt(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = AddressOf(name, &address);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(fd, 256) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

int ConnectTo(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t size = AddressOf(name, &address);
  if (fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

bool SendMessage(int socket, const void* data, size_t bytes, const std::vector<int>& descriptors) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

bool ReceiveMessage(int socket, void* data, size_t bytes, std::vector<int>* descriptors) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  std::vector<int> received;
  if (got >= 0) {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      received.resize(count);
      std::memcpy(received.data(), CMSG_DATA(header), count * sizeof(int));
    }
  }
  if (got == static_cast<ssize_t>(bytes) && descriptors != nullptr) {
    *descriptors = received;
    return true;
  }
  for (const int fd : received) close(fd);
  return got == static_cast<ssize_t>(bytes);
}

bool HungUp(int descriptor) {
  pollfd event{descriptor, POLLIN, 0};
  return poll(&event, 1, 0) == 1 && (event.revents & (POLLHUP | POLLERR | POLLIN)) != 0;
}

}  // namespace headrace::nccl_checker
