#ifndef HEADRACE_LOADER_GPU_GPU_COPIES_H_
#define HEADRACE_LOADER_GPU_GPU_COPIES_H_

// Runs tables of copies and conversions (kernels/cuda/*_table.h) on one GPU, on a stream of its own. The kernels are
// loaded at run time: the file that HEADRACE_CUDA_KERNELS names, or libheadrace_cuda.so beside the file that holds this
// code, or the loader's.
//
// All that launches need is allocated at Create and Upload: nothing is while messages travel, since that may wait for
// kernels that wait for this thread.
//
// Thread rules: Run from one thread at a time; Upload from any.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/cuda/backend_api.h"
#include "kernels/cuda/copy_table.h"
#include "kernels/cuda/elementwise_table.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/gpu/device_memory.h"

namespace headrace {

class GpuCopies {
 public:
  // Of a table that is run once: bytes of its image, and sums.
  static constexpr int64_t kMostImageBytes = int64_t{1} << 20;
  static constexpr int64_t kMostSums = 8192;

  // kTransport: no CUDA runtime or no kernels: says what was tried and what to install; or the kernels do not run on
  // the GPU. kInvalidOption: no such GPU.
  static absl::StatusOr<std::unique_ptr<GpuCopies>> Create(int gpu);
  ~GpuCopies();
  GpuCopies(const GpuCopies&) = delete;
  GpuCopies& operator=(const GpuCopies&) = delete;

  int gpu() const { return gpu_; }
  const CudaRuntime& cuda() const { return cuda_; }

  // A table that stays on the GPU, to be run often.
  struct Uploaded {
    std::unique_ptr<DeviceMemory> image;  // null: an empty one
    HeadraceTable table = {};
  };
  absl::StatusOr<Uploaded> Upload(const kernels::CopyTable& table) const;

  // Return when all is copied, or has failed: kTransport, kOutOfMemory. They take no deadline: the kernels wait for
  // nothing.
  absl::Status Run(const Uploaded& table);
  // A table of at most kMostImageBytes; adds its sums to `sums`, at most kMostSums (none: nothing is summed).
  absl::Status Run(const kernels::CopyTable& table, absl::Span<uint64_t> sums);
  absl::Status Run(const kernels::ElementwiseTable& table);
  // Between the host and memory that the GPU reaches.
  absl::Status Load(const std::byte* from, absl::Span<std::byte> to);
  absl::Status Store(absl::Span<const std::byte> from, std::byte* to);

 private:
  GpuCopies(const CudaRuntime& cuda, const HeadraceKernelsV1& kernels, int gpu)
      : cuda_(cuda), kernels_(kernels), gpu_(gpu) {}
  absl::Status Start();
  // CUDA loads a kernel at its first launch, which allocates too; and one that this GPU does not run is to be known
  // now.
  absl::Status LoadEachKernel();
  absl::Status Launch(const HeadraceTable& table, uint64_t* sums);
  // Enqueues the table's copy to the GPU; to be launched behind it.
  template <typename Table>
  absl::StatusOr<HeadraceTable> SendImage(const Table& table);
  absl::Status Failed(absl::string_view what, const HeadraceKernelError& error) const;
  absl::Status CopyNow(void* to, const void* from, size_t bytes, int kind);

  const CudaRuntime& cuda_;
  const HeadraceKernelsV1& kernels_;
  const int gpu_;
  cuda::Stream stream_ = nullptr;
  std::unique_ptr<DeviceMemory> image_, pinned_image_, sums_, pinned_sums_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_GPU_COPIES_H_
