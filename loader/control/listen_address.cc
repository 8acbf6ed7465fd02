#include "loader/control/listen_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

// With its zone, where it has one.
std::string Numeric(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  return getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0 ? host : "?";
}

std::string AddressesHere() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "unknown";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<std::string> found;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (i->ifa_addr->sa_family == AF_INET) found.push_back(Numeric(i->ifa_addr, sizeof(sockaddr_in)));
    if (i->ifa_addr->sa_family == AF_INET6) found.push_back(Numeric(i->ifa_addr, sizeof(sockaddr_in6)));
  }
  return absl::StrJoin(found, ", ");
}

absl::string_view WithoutBrackets(absl::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

}  // namespace

std::string ListenAddress::HostPort(int actual_port) const { return absl::StrCat(host, ":", actual_port); }

absl::StatusOr<ListenAddress> ResolveListenAddress(const std::string& host, int port) {
  if (port < 0 || port > 65535)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("the coordinator's port is ", port, "; give 0 (any) to 65535"));
  const std::string bare(WithoutBrackets(host));
  if (bare.empty())
    return Error(
        ErrorCode::kInvalidOption,
        "the coordinator's host is empty; give an address of this machine, or 127.0.0.1 for members here only");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("cannot listen at '", host, "': the name cannot be resolved (", gai_strerror(error),
                              "); addresses of this machine: ", AddressesHere()));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  ListenAddress result;
  std::memcpy(&result.address, found->ai_addr, found->ai_addrlen);
  result.size = found->ai_addrlen;
  result.host = Numeric(found->ai_addr, found->ai_addrlen);
  if (found->ai_family == AF_INET6) result.host = absl::StrCat("[", result.host, "]");
  result.port = port;
  result.loopback = IsLoopback(found->ai_addr);
  return result;
}

absl::Status WhyNoListen(const ListenAddress& where) {
  const int fd = socket(where.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&where.address), where.size) == 0 && listen(fd, 1) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  const std::string what = absl::StrCat("cannot listen at ", where.host, " port ", where.port, ": ");
  // Free by now: it was in use a moment ago.
  if (bound || error == EADDRINUSE)
    return Error(ErrorCode::kAddressInUse,
                 absl::StrCat(what, "the port is in use; stop the other process or choose another port (0: any)"));
  if (error == EADDRNOTAVAIL)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(what, "this machine does not have the address; it has ", AddressesHere()));
  if (error == EACCES)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(what, "the port needs privileges; choose one from 1024 on, or 0 (any)"));
  const bool link_local = where.address.ss_family == AF_INET6 &&
                          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&where.address)->sin6_addr) &&
                          reinterpret_cast<const sockaddr_in6*>(&where.address)->sin6_scope_id == 0;
  if (link_local)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(what, "a link-local address needs its interface, as in \"", where.host, "%eth0\""));
  return Error(ErrorCode::kIo, absl::StrCat(what, std::strerror(error)));
}

absl::string_view HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  // "::1" has no port; "[::1]" neither.
  if (colon != absl::string_view::npos && (address.find(':') == colon || address.substr(0, colon).back() == ']'))
    address = address.substr(0, colon);
  return WithoutBrackets(address);
}

bool StaysOnThisMachine(absl::string_view address) {
  const std::string host(HostOf(address));
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) return IsLoopback(reinterpret_cast<sockaddr*>(&four));
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  return inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1 && IsLoopback(reinterpret_cast<sockaddr*>(&six));
}

}  // namespace headrace
