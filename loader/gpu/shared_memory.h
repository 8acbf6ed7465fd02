#ifndef HEADRACE_LOADER_GPU_SHARED_MEMORY_H_
#define HEADRACE_LOADER_GPU_SHARED_MEMORY_H_

// Memory of a GPU that several processes map: of our own, made by CUDA's virtual memory management and exported as a
// file descriptor, for processes of the host, and as a fabric handle, for those of the NVLink domain, where driver and
// machine do that. Which of them an allocation has is found out when it is made.
//
// Not by cudaIpc*: to free there what another process has open is undefined. This memory lives as long as anyone has it
// mapped, in whatever process, so what reads it stays safe when its owner is gone.
// Source: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "loader/gpu/cuda_driver.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/transport/descriptor.h"

namespace headrace {

// A mapping for one GPU, of this process's memory or another's. Nothing uses it any more when it is destroyed.
class SharedMemory {
 public:
  SharedMemory(const CudaDriver& driver, std::byte* data, int64_t mapped_bytes)
      : driver_(driver), data_(data), mapped_bytes_(mapped_bytes) {}
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  const CudaDriver& driver_;
  std::byte* const data_;
  const int64_t mapped_bytes_;
};

// What others map an allocation by; at least one of the two.
struct SharedHandles {
  Descriptor fd;
  std::optional<cuda::FabricHandle> fabric;
};

// Makes and maps such memory on one GPU. Any thread.
class SharedMemoryOf {
 public:
  // kTransport: no CUDA runtime or driver, or a GPU or a driver that cannot share memory. kInvalidOption: no such GPU.
  static absl::StatusOr<SharedMemoryOf> Gpu(const CudaRuntime& cuda, const CudaDriver& driver, int gpu);

  int gpu() const { return gpu_; }
  // Whether the GPU's driver knows file descriptors.
  bool has_fd() const { return fd_; }
  // Whether the GPU and its driver know fabric handles; whether the machine does, an allocation tells.
  bool may_have_fabric() const { return fabric_; }

  // At least `bytes` >= 1, zero-filled, written and read by the GPU. kOutOfMemory: the bytes that are needed and those
  // that are free. kTransport: no handle of either type could be made.
  absl::StatusOr<std::pair<std::unique_ptr<SharedMemory>, SharedHandles>> Allocate(int64_t bytes) const;
  // For reading. kTransport: not such a handle, or of a GPU that this one does not reach, or of fewer bytes. kPeerLost:
  // a fabric handle of memory that is gone; which one of another domain cannot be told from.
  absl::StatusOr<std::unique_ptr<SharedMemory>> Map(const Descriptor& fd, int64_t bytes) const;
  absl::StatusOr<std::unique_ptr<SharedMemory>> Map(cuda::FabricHandle handle, int64_t bytes) const;

 private:
  SharedMemoryOf(const CudaRuntime& cuda, const CudaDriver& driver, int gpu, bool fd, bool fabric)
      : cuda_(&cuda), driver_(&driver), gpu_(gpu), fd_(fd), fabric_(fabric) {}
  cuda::AllocationProp Properties(int handle_types) const;
  absl::StatusOr<int64_t> RoundUp(int64_t bytes) const;
  absl::Status CheckFree(int64_t bytes) const;
  absl::Status Clear(std::byte* data, int64_t bytes) const;
  absl::StatusOr<SharedHandles> Export(cuda::AllocationHandle handle, int types) const;
  // Takes the handle, which the mapping outlives.
  absl::StatusOr<std::unique_ptr<SharedMemory>> MapHandle(cuda::AllocationHandle handle, int64_t bytes,
                                                          int access) const;

  const CudaRuntime* cuda_;
  const CudaDriver* driver_;
  int gpu_;
  bool fd_, fabric_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_SHARED_MEMORY_H_
