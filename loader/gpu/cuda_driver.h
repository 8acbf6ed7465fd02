#ifndef HEADRACE_LOADER_GPU_CUDA_DRIVER_H_
#define HEADRACE_LOADER_GPU_CUDA_DRIVER_H_

// The CUDA driver, loaded at run time: what the runtime has no functions for.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/gpu/cuda_driver_abi.h"

namespace headrace {

struct CudaDriver {
  std::string path;  // of the loaded file
#define HEADRACE_CUDA_DECLARE(name, parameters) cuda::Result(*name) parameters = nullptr;
  HEADRACE_CUDA_DRIVER_FUNCTIONS(HEADRACE_CUDA_DECLARE)
#undef HEADRACE_CUDA_DECLARE

  // OK, kOutOfMemory, or kTransport: "no memory for a shadow: CUDA_ERROR_...: ...".
  absl::Status Check(cuda::Result result, absl::string_view what) const;
};

// Loaded and initialized (cuInit) once, never unloaded; any thread. `path`: the file to load; empty: the libcuda that
// is mapped already, or the loader's. The first call decides. kTransport: names what was tried and what to install, or
// says why the driver did not begin.
absl::StatusOr<const CudaDriver*> LoadCudaDriver(const std::string& path);

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_CUDA_DRIVER_H_
