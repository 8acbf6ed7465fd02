#include "loader/transport/factory.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/transport/cuda/cuda.h"
#include "loader/transport/host/host.h"
#include "loader/transport/nccl/nccl.h"
#include "loader/transport/ucx/ucx.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Transport>> NewTransport(absl::string_view name, const TransportOptions& options) {
  for (const std::string& device : options.devices) {
    // UCX would take a list in it apart, and skip an empty name.
    if (device.empty() || absl::StrContains(device, ','))
      return Error(ErrorCode::kInvalidOption, absl::StrCat("'", device, "' is not the name of one network device"));
  }
  if (name == "ucx") {
    UcxOptions ucx;
    ucx.devices = absl::StrJoin(options.devices, ",");
    return NewUcxTransport(ucx);
  }
  if (name == "nccl") {
    NcclOptions nccl;
    nccl.gpu = options.gpu;
    if (options.devices.size() > 1)
      return Error(ErrorCode::kInvalidOption, "transport 'nccl' listens at one network device: name one");
    if (!options.devices.empty()) nccl.device = options.devices.front();
    return NewNcclTransport(nccl);
  }
  if (name != "host" && name != "cuda")
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("transport '", name,
                              "' is not known: use \"host\" (processes of one host), \"cuda\" (their "
                              "GPUs), \"ucx\" or \"nccl\""));
  if (!options.devices.empty())
    return Error(ErrorCode::kInvalidOption, absl::StrCat("transport '", name,
                                                         "' uses no network devices; only \"ucx\" "
                                                         "and \"nccl\" do"));
  if (name == "host") return NewHostTransport();
  CudaOptions cuda;
  cuda.gpu = options.gpu;
  return NewCudaTransport(cuda);
}

}  // namespace headrace
