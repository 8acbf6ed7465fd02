#ifndef HEADRACE_CLI_DEMO_GPU_MIRROR_H_
#define HEADRACE_CLI_DEMO_GPU_MIRROR_H_

// A member's weights in GPU memory, with host memory as their mirror, and the stream that the member computes on.

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/gpu/device_copies.h"
#include "loader/gpu/device_memory.h"

namespace headrace {

// OK, or what is missing for weights in GPU memory: kTransport: the CUDA runtime, a driver, a GPU.
absl::Status CheckForGpus();

class GpuMirror {
 public:
  // The memory of the number-th member; members take the GPUs in turn. As many bytes as `host`, which outlives this; it
  // is pinned where the driver does that, else copies are slower. kOutOfMemory: how much is needed and what is free.
  static absl::StatusOr<std::unique_ptr<GpuMirror>> Create(int number, absl::Span<std::byte> host);
  // Waits for what is on the stream.
  ~GpuMirror();
  GpuMirror(const GpuMirror&) = delete;
  GpuMirror& operator=(const GpuMirror&) = delete;

  int gpu() const { return gpu_; }
  cuda::Stream stream() const { return stream_; }
  std::byte* data() const { return memory_->data(); }

  // Enqueue some milliseconds of computing, and a copy of all bytes to the GPU, or back, behind it.
  absl::Status Upload();
  absl::Status Download();
  // Until all that was enqueued is done.
  absl::Status Wait();

 private:
  GpuMirror(const CudaRuntime& cuda, int gpu, absl::Span<std::byte> host) : cuda_(cuda), gpu_(gpu), host_(host) {}
  absl::Status Enqueue(std::byte* to, const std::byte* from, int kind);

  const CudaRuntime& cuda_;
  const int gpu_;
  const absl::Span<std::byte> host_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<PinnedMemory> pinned_;
  cuda::Stream stream_ = nullptr;
};

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_GPU_MIRROR_H_
