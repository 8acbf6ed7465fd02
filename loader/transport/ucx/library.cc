#include "loader/transport/ucx/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "planner/status.h"

namespace headrace::ucx {
namespace {

constexpr char kSoname[] = "libucp.so.0";

constexpr std::pair<const char*, const char*> kEnvironment[] = {
    {"UCX_MEM_EVENTS", "n"},       {"UCX_MEM_MMAP_HOOK_MODE", "none"}, {"UCX_MEM_MALLOC_HOOKS", "n"},
    {"UCX_MEM_MALLOC_RELOC", "n"}, {"UCX_MEM_CUDA_HOOK_MODE", "none"}, {"UCX_ERROR_SIGNALS", ""},
    {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"},           {"UCX_VFS_ENABLE", "n"},
    {"UCX_LOG_FILE", "stderr"},    {"UCX_LOG_LEVEL", "fatal"},
};

// Paths of the mapped files that are a libucp. Wheels rename their copies to libucp-<hash>.so.
std::set<std::string> MappedCopies() {
  std::set<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        absl::string_view path(info->dlpi_name);
        absl::string_view file = path.substr(path.rfind('/') + 1);
        if (absl::StartsWith(file, "libucp.so") || absl::StartsWith(file, "libucp-")) {
          static_cast<std::set<std::string>*>(out)->emplace(path);
        }
        return 0;
      },
      &paths);
  return paths;
}

absl::StatusOr<Library> Load() {
  const std::set<std::string> mapped = MappedCopies();
  if (mapped.size() > 1) {
    return Error(ErrorCode::kTransport, absl::StrCat("ucx: several copies of libucp are mapped into this process: ",
                                                     absl::StrJoin(mapped, ", "), ": load only one of them"));
  }
  Library library;
  void* handle;
  if (!mapped.empty()) {
    library.path = *mapped.begin();
    handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
  } else {
    for (const auto& [name, value] : kEnvironment) setenv(name, value, /*overwrite=*/0);
    library.path = kSoname;
    handle = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  }
  if (handle == nullptr) {
    return Error(ErrorCode::kTransport, absl::StrCat("ucx: cannot load ", library.path, ": ", dlerror(),
                                                     ": install the package libucx0 (Debian, Ubuntu) or ucx (Fedora), "
                                                     "or put its folder into LD_LIBRARY_PATH"));
  }
  std::vector<absl::string_view> missing;
#define HEADRACE_UCX_RESOLVE(function)                                                       \
  library.function = reinterpret_cast<decltype(library.function)>(dlsym(handle, #function)); \
  if (library.function == nullptr) missing.push_back(#function);
  HEADRACE_UCX_FUNCTIONS(HEADRACE_UCX_RESOLVE)
#undef HEADRACE_UCX_RESOLVE
  if (!missing.empty()) {
    return Error(ErrorCode::kTransport, absl::StrCat("ucx: ", library.path, " lacks ", absl::StrJoin(missing, ", "),
                                                     ": UCX 1.13 or later is needed"));
  }
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(library.ucp_init_version), &where) != 0) library.path = where.dli_fname;
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
