#include "loader/control/grpc_status.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

std::string AuthorizationValue(absl::string_view token) { return absl::StrCat("Bearer ", token); }

absl::Status CheckToken(absl::string_view token) {
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; });
  if (!token.empty() && token.size() <= 4096 && printable) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, "the job token must be 1 to 4096 printable ASCII characters without spaces");
}

std::string NeedsTls() { return "; use TLS, or set trust_network if nobody else can read that network"; }

absl::Status FromGrpc(const grpc::Status& status, absl::string_view peer) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::UNAUTHENTICATED:
      return Error(ErrorCode::kUnauthenticated, absl::StrCat(peer, " refused the job token"));
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      return Error(ErrorCode::kPeerLost, absl::StrCat("connection to ", peer, " closed: ", status.error_message()));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Error(ErrorCode::kDeadline, absl::StrCat(peer, ": ", status.error_message()));
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Error(ErrorCode::kInvalidOption,
                   absl::StrCat("a control message to or from ", peer, " is too large: ", status.error_message()));
    case grpc::StatusCode::UNIMPLEMENTED:
      return Error(ErrorCode::kTransport, absl::StrCat(peer, " is no Headrace coordinator: ", status.error_message()));
    default:
      return Error(ErrorCode::kTransport, absl::StrCat(peer, ": ", status.error_message()));
  }
}

}  // namespace headrace
