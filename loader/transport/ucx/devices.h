#ifndef HEADRACE_LOADER_TRANSPORT_UCX_DEVICES_H_
#define HEADRACE_LOADER_TRANSPORT_UCX_DEVICES_H_

// The network devices that UCX may use. UCX 1.13 only logs a warning about a device that is not there, goes on without
// a network, and says "unreachable" when it is too late to see why.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace headrace::ucx {

struct Device {
  std::string name;  // as in UCX_NET_DEVICES: "eth0", "mlx5_0:1"
  std::string what;  // "10.0.0.5, fd00::5" or "RDMA"
};

// Network interfaces that are up and have an address, and RDMA ports.
std::vector<Device> DevicesHere();

// kInvalidOption unless `list` is "all" or names some of `here`, separated by commas; names the first that is not
// there, those that are, and `origin`, which said so.
absl::Status CheckDevices(absl::string_view list, absl::Span<const Device> here, absl::string_view origin);

}  // namespace headrace::ucx

#endif  // HEADRACE_LOADER_TRANSPORT_UCX_DEVICES_H_
