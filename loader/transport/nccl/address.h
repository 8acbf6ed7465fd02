#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_ADDRESS_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_ADDRESS_H_

// Transport::address() of nccl: "headrace-nccl/1/", the cookie in hexadecimal, "/", an IP address, "/", a port.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/transport/secret.h"

namespace headrace::nccl {

struct Address {
  Cookie cookie = {};
  std::string ip;  // "127.0.0.1", "fd00::5"
  uint16_t port = 0;
};

std::string FormatAddress(const Address& address);
// kTransport when it is not such a string. The message does not repeat it: it is a secret.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_ADDRESS_H_
