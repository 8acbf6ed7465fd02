#ifndef HEADRACE_LOADER_TRANSPORT_FACTORY_H_
#define HEADRACE_LOADER_TRANSPORT_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/transport/transport.h"

namespace headrace {

// An endpoint that reaches other processes, with the backend's default options: "host" (host/host.h) or "ucx"
// (ucx/ucx.h). kInvalidOption for any other name: lists the known ones. Otherwise the backend's errors.
absl::StatusOr<std::unique_ptr<Transport>> NewTransport(absl::string_view name);

}  // namespace headrace

#endif  // HEADRACE_LOADER_TRANSPORT_FACTORY_H_
