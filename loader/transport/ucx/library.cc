#include "loader/transport/ucx/library.h"

#include <cstdlib>
#include <utility>

#include "loader/shared_library.h"
#include "planner/status.h"

namespace headrace::ucx {
namespace {

constexpr std::pair<const char*, const char*> kEnvironment[] = {
    {"UCX_MEM_EVENTS", "n"},       {"UCX_MEM_MMAP_HOOK_MODE", "none"}, {"UCX_MEM_MALLOC_HOOKS", "n"},
    {"UCX_MEM_MALLOC_RELOC", "n"}, {"UCX_MEM_CUDA_HOOK_MODE", "none"}, {"UCX_ERROR_SIGNALS", ""},
    {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"},           {"UCX_VFS_ENABLE", "n"},
    {"UCX_LOG_FILE", "stderr"},    {"UCX_LOG_LEVEL", "fatal"},
};

absl::StatusOr<Library> Load() {
  HR_ASSIGN_OR_RETURN(
      SharedLibrary file,
      SharedLibrary::Load({.who = "ucx",
                           .name = "libucp",
                           .sonames = {"libucp.so.0"},
                           .path = {},
                           .advice = "install the package libucx0 (Debian, Ubuntu) or ucx (Fedora), or put its folder "
                                     "into LD_LIBRARY_PATH",
                           .before = [] {
                             for (const auto& [name, value] : kEnvironment) setenv(name, value, /*overwrite=*/0);
                           }}));
  Library library;
#define HEADRACE_UCX_RESOLVE(function) file.Resolve(#function, &library.function);
  HEADRACE_UCX_FUNCTIONS(HEADRACE_UCX_RESOLVE)
#undef HEADRACE_UCX_RESOLVE
  HR_RETURN_IF_ERROR(file.CheckResolved("UCX 1.13 or later"));
  library.path = file.path();
  return library;
}

}  // namespace

absl::StatusOr<const Library*> LoadLibrary() {
  // Never destroyed: endpoints may end after main.
  static const auto* const library = new absl::StatusOr<Library>(Load());
  if (!library->ok()) return library->status();
  return &**library;
}

}  // namespace headrace::ucx
