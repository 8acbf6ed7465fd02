#ifndef HEADRACE_LOADER_TRANSPORT_UCX_ADDRESS_H_
#define HEADRACE_LOADER_TRANSPORT_UCX_ADDRESS_H_

// Transport::address() of ucx: "headrace-ucx/1/", the endpoint id (4 bytes, little-endian), the FNV-1a hash of what
// follows (8 bytes, little-endian), UCX's worker address. UCX trusts a worker address blindly: a damaged one must not
// reach it.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headrace::ucx {

std::string FormatAddress(uint32_t endpoint_id, absl::string_view worker_address);

// kTransport when `address` is not an address of this transport, or is damaged.
absl::Status ParseAddress(absl::string_view address, uint32_t* endpoint_id, std::string* worker_address);

}  // namespace headrace::ucx

#endif  // HEADRACE_LOADER_TRANSPORT_UCX_ADDRESS_H_
