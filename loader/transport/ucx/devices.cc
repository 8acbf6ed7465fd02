#include "loader/transport/ucx/devices.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/status.h"

namespace headrace::ucx {

std::vector<Device> DevicesHere() {
  std::map<std::string, std::vector<std::string>> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || (~i->ifa_flags & (IFF_UP | IFF_RUNNING)) != 0) continue;
      const int family = i->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      char host[NI_MAXHOST];
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(i->ifa_addr, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) continue;
      interfaces[i->ifa_name].push_back(host);
    }
    freeifaddrs(list);
  }
  std::vector<Device> devices;
  for (const auto& [name, addresses] : interfaces) devices.push_back({name, absl::StrJoin(addresses, ", ")});
  std::error_code none;  // no RDMA
  for (const auto& adapter : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    for (const auto& port : std::filesystem::directory_iterator(adapter.path() / "ports", none))
      devices.push_back(
          {absl::StrCat(adapter.path().filename().string(), ":", port.path().filename().string()), "RDMA"});
  }
  return devices;
}

absl::Status CheckDevices(absl::string_view list, absl::Span<const Device> here, absl::string_view origin) {
  if (list == "all") return absl::OkStatus();
  for (absl::string_view name : absl::StrSplit(list, ',')) {
    if (std::any_of(here.begin(), here.end(), [&](const Device& device) { return device.name == name; })) continue;
    const std::string known = absl::StrJoin(here, "; ", [](std::string* out, const Device& device) {
      absl::StrAppend(out, device.name, " (", device.what, ")");
    });
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("ucx: ", origin, " names the network device '", name,
                              "', which is not here, is down or has no address; use some of: ",
                              known.empty() ? "none is up" : known));
  }
  return absl::OkStatus();
}

}  // namespace headrace::ucx
