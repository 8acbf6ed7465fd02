#ifndef HEADRACE_LOADER_TRANSPORT_HOST_ENDPOINT_H_
#define HEADRACE_LOADER_TRANSPORT_HOST_ENDPOINT_H_

// An endpoint whose peers are processes of the same host: it hands them the descriptors of its regions, whatever these
// are made of.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "loader/transport/host/region.h"
#include "loader/transport/transport.h"

namespace headrace::host {

// `capabilities`: what the endpoint says of itself; where it has `read`, registered memory is that of the process.
// kTransport: no socket, eventfd or random numbers to be had.
absl::StatusOr<std::unique_ptr<Transport>> NewEndpoint(std::string name, Capabilities capabilities,
                                                       std::unique_ptr<RegionMemory> memory);

}  // namespace headrace::host

#endif  // HEADRACE_LOADER_TRANSPORT_HOST_ENDPOINT_H_
