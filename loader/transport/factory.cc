#include "loader/transport/factory.h"

#include "absl/strings/str_cat.h"
#include "loader/transport/host/host.h"
#include "loader/transport/ucx/ucx.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<Transport>> NewTransport(absl::string_view name) {
  if (name == "host") return NewHostTransport();
  if (name == "ucx") return NewUcxTransport();
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat("transport '", name, "' is not known: use \"host\" (processes of one host) or \"ucx\""));
}

}  // namespace headrace
