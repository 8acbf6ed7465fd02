#ifndef HEADRACE_LOADER_GPU_DEVICE_MEMORY_H_
#define HEADRACE_LOADER_GPU_DEVICE_MEMORY_H_

// Memory of one GPU, or pinned memory of the host that the GPU reaches, of our own. Freeing memory of a GPU waits for
// all that runs on it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "loader/gpu/cuda_runtime.h"

namespace headrace {

class DeviceMemory {
 public:
  // At least one byte; not cleared. kOutOfMemory: `what` it is for, the bytes that are needed, and those that are free.
  // kTransport.
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const CudaRuntime& cuda, int gpu, int64_t bytes,
                                                                absl::string_view what);
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocatePinned(const CudaRuntime& cuda, int gpu, int64_t bytes,
                                                                      absl::string_view what);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  DeviceMemory(const CudaRuntime& cuda, int gpu, bool pinned, std::byte* data, int64_t bytes)
      : cuda_(cuda), gpu_(gpu), pinned_(pinned), data_(data), bytes_(bytes) {}
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Make(const CudaRuntime& cuda, int gpu, bool pinned,
                                                            int64_t bytes, absl::string_view what);

  const CudaRuntime& cuda_;
  const int gpu_;
  const bool pinned_;
  std::byte* const data_;
  const int64_t bytes_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_DEVICE_MEMORY_H_
