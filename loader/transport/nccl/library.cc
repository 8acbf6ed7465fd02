#include "loader/transport/nccl/library.h"

#include "absl/strings/str_cat.h"
#include "loader/shared_library.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

absl::StatusOr<Library> Load(const std::string& path) {
  HR_ASSIGN_OR_RETURN(SharedLibrary file,
                      SharedLibrary::Load({.who = "nccl",
                                           .name = "libnccl",
                                           .sonames = {"libnccl.so.2"},
                                           .path = path,
                                           .advice = "install NCCL (the wheel nvidia-nccl-cu13, or the package "
                                                     "libnccl2), put its folder into LD_LIBRARY_PATH, or name the "
                                                     "file in HEADRACE_NCCL"}));
  Library library;
#define HEADRACE_NCCL_RESOLVE(name, parameters) file.Resolve(#name, &library.name);
  HEADRACE_NCCL_FUNCTIONS(HEADRACE_NCCL_RESOLVE)
  HEADRACE_NCCL_TEXT_FUNCTIONS(HEADRACE_NCCL_RESOLVE)
#undef HEADRACE_NCCL_RESOLVE
  HR_RETURN_IF_ERROR(file.CheckResolved("NCCL 2.27 or later"));
  library.path = file.path();
  HR_RETURN_IF_ERROR(library.Check(library.ncclGetVersion(&library.version), "no version"));
  if (library.version < kMinVersion) {
    return Error(ErrorCode::kTransport,
                 absl::StrCat("nccl: ", library.path, " is version ", library.version, ": 2.27 or later is needed"));
  }
  return library;
}

}  // namespace

absl::Status Library::Check(Result result, absl::string_view what) const {
  if (result == kSuccess || result == kInProgress) return absl::OkStatus();
  const bool peer = result == kRemoteError || result == kSystemError;
  const char* last = ncclGetLastError(nullptr);
  return Error(peer ? ErrorCode::kPeerLost : ErrorCode::kTransport,
               absl::StrCat("nccl: ", what, ": ", ncclGetErrorString(result),
                            last == nullptr || *last == '\0' ? "" : absl::StrCat(": ", last)));
}

absl::StatusOr<const Library*> LoadLibrary(const std::string& path) {
  // Never destroyed: endpoints may end after main.
  static const auto* const library = new absl::StatusOr<Library>(Load(path));
  if (!library->ok()) return library->status();
  return &**library;
}

}  // namespace headrace::nccl
