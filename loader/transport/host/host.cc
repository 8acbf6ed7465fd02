#include "loader/transport/host/host.h"

#include <utility>

#include "loader/transport/host/endpoint.h"
#include "loader/transport/host/region.h"
#include "loader/transport/host/remote.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Transport>> NewHostTransport() {
  Capabilities capabilities;
  capabilities.map = true;
  capabilities.read_reason = host::WhyNothingCanBeRead();
  capabilities.read = capabilities.read_reason.empty();
  return host::NewEndpoint("host", std::move(capabilities), host::NewSealedMemory());
}

}  // namespace headrace
