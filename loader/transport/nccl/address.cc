#include "loader/transport/nccl/address.h"

#include <arpa/inet.h>

#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

constexpr absl::string_view kPrefix = "headrace-nccl/1/";

bool IsHex(absl::string_view text) {
  for (char c : text) {
    if (!absl::ascii_isxdigit(c)) return false;
  }
  return true;
}

bool IsIp(const std::string& text) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 || inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

}  // namespace

std::string FormatAddress(const Address& address) {
  const absl::string_view cookie(reinterpret_cast<const char*>(address.cookie.data()), address.cookie.size());
  return absl::StrCat(kPrefix, absl::BytesToHexString(cookie), "/", address.ip, "/", address.port);
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  uint32_t port = 0;
  if (absl::ConsumePrefix(&text, kPrefix)) {
    const std::vector<std::string> parts = absl::StrSplit(text, '/');
    if (parts.size() == 3 && parts[0].size() == 2 * address.cookie.size() && IsHex(parts[0]) && IsIp(parts[1]) &&
        absl::SimpleAtoi(parts[2], &port) && port > 0 && port <= 65535) {
      const std::string raw = absl::HexStringToBytes(parts[0]);
      std::memcpy(address.cookie.data(), raw.data(), raw.size());
      address.ip = parts[1];
      address.port = static_cast<uint16_t>(port);
      return address;
    }
  }
  return Error(ErrorCode::kTransport, "connect: not an address of the nccl transport");
}

}  // namespace headrace::nccl
