#ifndef HEADRACE_LOADER_TRANSPORT_NCCL_LIBRARY_H_
#define HEADRACE_LOADER_TRANSPORT_NCCL_LIBRARY_H_

// libnccl, loaded at run time.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/transport/nccl/nccl_abi.h"

namespace headrace::nccl {

struct Library {
  std::string path;  // of the loaded file
  int version = 0;   // 22809 is 2.28.9
#define HEADRACE_NCCL_DECLARE(name, parameters) Result(*name) parameters = nullptr;
  HEADRACE_NCCL_FUNCTIONS(HEADRACE_NCCL_DECLARE)
#undef HEADRACE_NCCL_DECLARE
#define HEADRACE_NCCL_DECLARE(name, parameters) const char*(*name)parameters = nullptr;
  HEADRACE_NCCL_TEXT_FUNCTIONS(HEADRACE_NCCL_DECLARE)
#undef HEADRACE_NCCL_DECLARE

  // OK also for kInProgress. kPeerLost for what a dead peer or its network causes (ncclRemoteError, ncclSystemError),
  // kTransport for the rest.
  absl::Status Check(Result result, absl::string_view what) const;
};

// Loaded once, never unloaded; any thread. `path` as in LoadCudaRuntime. kTransport: names what was tried and what to
// install; the library is older than 2.27.
absl::StatusOr<const Library*> LoadLibrary(const std::string& path);

}  // namespace headrace::nccl

#endif  // HEADRACE_LOADER_TRANSPORT_NCCL_LIBRARY_H_
