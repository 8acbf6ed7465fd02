#ifndef HEADRACE_LOADER_TRANSPORT_FACTORY_H_
#define HEADRACE_LOADER_TRANSPORT_FACTORY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/transport/transport.h"

namespace headrace {

struct TransportOptions {
  // "ucx": the network devices to listen on and to send through, each as UCX names it: "eth0", "mlx5_0:1". Empty: see
  // UcxOptions::devices. "nccl": the one to listen at; empty: loopback. Other transports have none.
  std::vector<std::string> devices;
  // "nccl", "cuda": the GPU, modulo the number of GPUs here. None: the calling thread's current device.
  std::optional<int> gpu;
};

// An endpoint that reaches other processes: "host" (host/host.h), "cuda" (cuda/cuda.h), "ucx" (ucx/ucx.h) or "nccl"
// (nccl/nccl.h).
// kInvalidOption: any other name, and the known ones are listed; devices for a transport that has none, or more than it
// can use; a device that is no single name. Otherwise the backend's errors.
absl::StatusOr<std::unique_ptr<Transport>> NewTransport(absl::string_view name, const TransportOptions& options = {});

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_FACTORY_H_
