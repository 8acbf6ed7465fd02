#ifndef HEADRACE_LOADER_CONTROL_GRPC_STATUS_H_
#define HEADRACE_LOADER_CONTROL_GRPC_STATUS_H_

// What both ends of a control stream need to know of gRPC. Private to this folder.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headrace {

inline constexpr char kAuthorizationKey[] = "authorization";
// In the server's initial metadata of a stream that was accepted.
inline constexpr char kAcceptedKey[] = "headrace-accepted";

// "Bearer <token>".
std::string AuthorizationValue(absl::string_view token);

// kInvalidOption unless the token is 1 to 4096 printable ASCII characters without spaces: what metadata can carry.
absl::Status CheckToken(absl::string_view token);

// What to do where a token would travel in clear; the end of a sentence.
std::string NeedsTls();

// OK, kUnauthenticated, kPeerLost, kDeadline, kInvalidOption (a message beyond the size limit) or kTransport; `peer`
// names the other end.
absl::Status FromGrpc(const grpc::Status& status, absl::string_view peer);

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_GRPC_STATUS_H_
