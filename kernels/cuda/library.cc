#include "kernels/cuda/library.h"

#include <dlfcn.h>

namespace headrace::kernels {

KernelLibrary LoadKernelLibrary(const std::string& path) {
  KernelLibrary library;
  auto fail = [&](LibraryError error, const std::string& message) {
    library.error = error;
    library.message = path + ": " + message;
    return library;
  };
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return fail(LibraryError::kNotLoaded, why == nullptr ? "not loaded" : why);
  }
  const auto function = reinterpret_cast<HeadraceKernelsFunction>(dlsym(handle, HEADRACE_KERNELS_SYMBOL));
  if (function == nullptr) return fail(LibraryError::kForeign, "no Headrace kernels: no " HEADRACE_KERNELS_SYMBOL);
  const HeadraceKernelsV1* const kernels = function();
  if (kernels->version != HEADRACE_KERNELS_VERSION) {
    return fail(LibraryError::kVersion, "has version " + std::to_string(kernels->version) +
                                            " of the kernels, needed is " + std::to_string(HEADRACE_KERNELS_VERSION) +
                                            ": install the matching one");
  }
  library.kernels = kernels;
  return library;
}

}  // namespace headrace::kernels
