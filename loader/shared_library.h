#ifndef HEADRACE_LOADER_SHARED_LIBRARY_H_
#define HEADRACE_LOADER_SHARED_LIBRARY_H_

// Libraries that are loaded at run time, so that Headrace installs and runs where they are not, and never maps a second
// copy beside one that a framework brought along.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace headrace {

struct LibraryToLoad {
  std::string who;   // begins the errors: "ucx"
  std::string name;  // "libucp": mapped files named <name>.so* or <name>-* (as wheels rename their copies) are copies
  std::vector<std::string> sonames;      // tried in this order by the loader's search path
  std::string path;                      // the file to load instead; empty: as above
  std::string advice;                    // what to install, for the error
  std::function<void()> before = [] {};  // called before a copy is loaded, not where one is mapped already
};

class SharedLibrary {
 public:
  // `path` where given; otherwise the copy that is mapped into this process already; otherwise the first soname that
  // loads (RTLD_LOCAL). Never unloaded. kTransport: names what was tried; two different copies are mapped (names both).
  static absl::StatusOr<SharedLibrary> Load(const LibraryToLoad& wanted);

  // Null when the library has no such function.
  template <typename Function>
  void Resolve(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(Symbol(name));
  }
  // kTransport, naming them and `needed`, when Resolve did not find some functions.
  absl::Status CheckResolved(const std::string& needed) const;
  // The loaded file.
  const std::string& path() const { return path_; }

 private:
  SharedLibrary(std::string who, std::string path, void* handle)
      : who_(std::move(who)), path_(std::move(path)), handle_(handle) {}
  void* Symbol(const char* name);

  std::string who_;
  std::string path_;
  void* handle_;
  std::vector<std::string> missing_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SHARED_LIBRARY_H_
