#include "loader/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "planner/status.h"

namespace headrace {
namespace {

std::set<std::string> MappedCopies(const std::string& name) {
  std::pair<std::string, std::set<std::string>> search = {name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        auto& [name, paths] = *static_cast<decltype(search)*>(out);
        absl::string_view path(info->dlpi_name);
        absl::string_view file = path.substr(path.rfind('/') + 1);
        if (absl::StartsWith(file, name + ".so") || absl::StartsWith(file, name + "-")) paths.emplace(path);
        return 0;
      },
      &search);
  return search.second;
}

}  // namespace

absl::StatusOr<SharedLibrary> SharedLibrary::Load(const LibraryToLoad& wanted) {
  const std::set<std::string> mapped = wanted.path.empty() ? MappedCopies(wanted.name) : std::set<std::string>();
  if (mapped.size() > 1) {
    return Error(ErrorCode::kTransport,
                 absl::StrCat(wanted.who, ": several copies of ", wanted.name,
                              " are mapped into this process: ", absl::StrJoin(mapped, ", "), ": load only one"));
  }
  if (!mapped.empty()) {
    const std::string& path = *mapped.begin();
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
    if (handle != nullptr) return SharedLibrary(wanted.who, path, handle);
    return Error(ErrorCode::kTransport, absl::StrCat(wanted.who, ": cannot use ", path, ": ", dlerror()));
  }
  wanted.before();
  std::vector<std::string> reasons;
  for (const std::string& name : wanted.path.empty() ? wanted.sonames : std::vector<std::string>{wanted.path}) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    link_map* where = nullptr;
    if (handle != nullptr) {
      return SharedLibrary(wanted.who, dlinfo(handle, RTLD_DI_LINKMAP, &where) == 0 ? where->l_name : name, handle);
    }
    reasons.push_back(dlerror());
  }
  return Error(ErrorCode::kTransport, absl::StrCat(wanted.who, ": cannot load ", wanted.name, ": ",
                                                   absl::StrJoin(reasons, "; "), ": ", wanted.advice));
}

void* SharedLibrary::Symbol(const char* name) {
  void* symbol = dlsym(handle_, name);
  if (symbol == nullptr) missing_.push_back(name);
  return symbol;
}

absl::Status SharedLibrary::CheckResolved(const std::string& needed) const {
  if (missing_.empty()) return absl::OkStatus();
  return Error(ErrorCode::kTransport,
               absl::StrCat(who_, ": ", path_, " lacks ", absl::StrJoin(missing_, ", "), ": ", needed, " is needed"));
}

}  // namespace headrace
