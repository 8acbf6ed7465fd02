#ifndef HEADRACE_KERNELS_CUDA_LIBRARY_H_
#define HEADRACE_KERNELS_CUDA_LIBRARY_H_

// Loads libheadrace_cuda.so. The library needs no other CUDA library to load, and no GPU: without a driver its calls
// return an error.

#include <string>

#include "kernels/cuda/backend_api.h"

namespace headrace::kernels {

enum class LibraryError {
  kNone,
  kNotLoaded,  // no such file, or the dynamic linker refuses it
  kForeign,    // it does not export HEADRACE_KERNELS_SYMBOL
  kVersion,    // it has another version of the interface
};

struct KernelLibrary {
  const HeadraceKernelsV1* kernels = nullptr;  // set where error == kNone; valid until the process ends
  LibraryError error = LibraryError::kNone;
  std::string message;  // what failed, with the path; empty where nothing did
};

// `path` is a file, or a name for the dynamic linker to search. The library stays loaded for good. Thread-safe; loading
// the same library again gives the same pointer.
KernelLibrary LoadKernelLibrary(const std::string& path);

}  // namespace headrace::kernels

#endif  // HEADRACE_KERNELS_CUDA_LIBRARY_H_
