#ifndef HEADRACE_LOADER_GPU_CUDA_RUNTIME_H_
#define HEADRACE_LOADER_GPU_CUDA_RUNTIME_H_

// The CUDA runtime, loaded at run time.

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/gpu/cuda_abi.h"

namespace headrace {

struct CudaRuntime {
  std::string path;  // of the loaded file
#define HEADRACE_CUDA_DECLARE(name, parameters) cuda::Error(*name) parameters = nullptr;
  HEADRACE_CUDA_FUNCTIONS(HEADRACE_CUDA_DECLARE)
#undef HEADRACE_CUDA_DECLARE
#define HEADRACE_CUDA_DECLARE(name, parameters) const char*(*name)parameters = nullptr;
  HEADRACE_CUDA_TEXT_FUNCTIONS(HEADRACE_CUDA_DECLARE)
#undef HEADRACE_CUDA_DECLARE

  // OK, kOutOfMemory, or kTransport: "nccl: no stream: cudaError...: ...".
  absl::Status Check(cuda::Error error, absl::string_view what) const;
};

// Loaded once, never unloaded; any thread. `path`: the file to load; empty: the libcudart that is mapped already, or
// the loader's. The first call decides. kTransport: names what was tried and what to install.
absl::StatusOr<const CudaRuntime*> LoadCudaRuntime(const std::string& path);

// kInvalidOption: this process sees no such GPU. kTransport: there is none at all, or no driver.
absl::Status CheckGpu(const CudaRuntime& cuda, int gpu);

// The GPU of an endpoint of the transport `name`: `wanted` modulo the number of GPUs here; none: the calling thread's
// current device. kTransport: there is no GPU, or no driver. kInvalidOption: a negative number.
absl::StatusOr<int> GpuOfEndpoint(const CudaRuntime& cuda, std::optional<int> wanted, absl::string_view name);

// Makes a device the calling thread's current one, and takes that back. Threads of our own stay there: in one that has
// not used CUDA before, taking it back would make a context on GPU 0, some hundreds of megabytes for each process.
// Scopes of different devices are not nested there.
class CurrentDevice {
 public:
  // The calling thread is one of ours. Loads nothing.
  static void OfOurThread() { ours_ = true; }

  CurrentDevice(const CudaRuntime& cuda, int device) : cuda_(cuda) {
    cuda_.cudaGetDevice(&before_);
    if (before_ != device) cuda_.cudaSetDevice(device);
    changed_ = before_ != device && !ours_;
  }
  ~CurrentDevice() {
    if (changed_) cuda_.cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  static inline thread_local bool ours_ = false;
  const CudaRuntime& cuda_;
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_CUDA_RUNTIME_H_
