#include "cli/demo/gpu_mirror.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "loader/gpu/gpu_options.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr absl::Duration kComputing = absl::Milliseconds(3);

absl::StatusOr<const CudaRuntime*> Cuda() { return LoadCudaRuntime(GpuOptionsFromEnvironment().cuda_runtime); }

}  // namespace

absl::Status CheckForGpus() {
  HR_ASSIGN_OR_RETURN(const CudaRuntime* cuda, Cuda());
  return CheckGpu(*cuda, 0);
}

absl::StatusOr<std::unique_ptr<GpuMirror>> GpuMirror::Create(int number, absl::Span<std::byte> host) {
  HR_RETURN_IF_ERROR(CheckForGpus());
  HR_ASSIGN_OR_RETURN(const CudaRuntime* cuda, Cuda());
  int gpus = 0;
  HR_RETURN_IF_ERROR(cuda->Check(cuda->cudaGetDeviceCount(&gpus), "counting the GPUs"));
  std::unique_ptr<GpuMirror> mirror(new GpuMirror(*cuda, number % gpus, host));
  HR_ASSIGN_OR_RETURN(mirror->memory_, DeviceMemory::Allocate(*cuda, mirror->gpu_, static_cast<int64_t>(host.size()),
                                                              "the demo's weights"));
  const CurrentDevice current(*cuda, mirror->gpu_);
  if (cuda->Check(cuda->cudaHostRegister(host.data(), host.size(), cuda::kHostRegisterPortable), "pinning").ok()) {
    mirror->pinned_ = std::make_unique<PinnedMemory>(*cuda, host.data());
  }
  // Not ordered with the legacy default stream: who is to wait for it has to be given it.
  HR_RETURN_IF_ERROR(
      cuda->Check(cuda->cudaStreamCreateWithFlags(&mirror->stream_, cuda::kStreamNonBlocking), "making a stream"));
  return mirror;
}

GpuMirror::~GpuMirror() {
  if (stream_ == nullptr) return;
  const CurrentDevice current(cuda_, gpu_);
  cuda_.cudaStreamSynchronize(stream_);
  cuda_.cudaStreamDestroy(stream_);
}

absl::Status GpuMirror::Upload() { return Enqueue(memory_->data(), host_.data(), cuda::kMemcpyHostToDevice); }

absl::Status GpuMirror::Download() { return Enqueue(host_.data(), memory_->data(), cuda::kMemcpyDeviceToHost); }

absl::Status GpuMirror::Enqueue(std::byte* to, const std::byte* from, int kind) {
  const CurrentDevice current(cuda_, gpu_);
  // A tiny model's copy alone would be over before the loader is called: it would show nothing to forget the stream.
  const cuda::HostFunction compute = [](void*) { absl::SleepFor(kComputing); };
  HR_RETURN_IF_ERROR(cuda_.Check(cuda_.cudaLaunchHostFunc(stream_, compute, nullptr), "computing"));
  return cuda_.Check(cuda_.cudaMemcpyAsync(to, from, host_.size(), kind, stream_), "copying weights");
}

absl::Status GpuMirror::Wait() {
  const CurrentDevice current(cuda_, gpu_);
  return cuda_.Check(cuda_.cudaStreamSynchronize(stream_), "waiting for a stream");
}

}  // namespace headrace
