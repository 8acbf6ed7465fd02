#ifndef HEADRACE_LOADER_GPU_DEVICE_COPIES_H_
#define HEADRACE_LOADER_GPU_DEVICE_COPIES_H_

// Copies of strided boxes between the memory of one GPU and that of the host, and clears, on a stream of their own.
//
//   copies->AwaitStream(trainer_stream, deadline);  // what was enqueued on it before has ended
//   copies->FromDevice(box); ...                    // enqueue
//   copies->Finish();                               // all are done, or the first error
//
// Every box becomes calls of cudaMemcpyAsync, cudaMemcpy2DAsync and their memsets: the loop with the most steps is the
// rows of one 2D copy, each step of the others is a call of its own. Host memory may be pageable; it is faster pinned.
//
// Thread rules: AwaitStream, the copies and Finish from one thread at a time; the rest from any. Needs a driver: a CUDA
// context of the GPU is made in this process.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/strided_copy.h"
#include "loader/gpu/cuda_runtime.h"
#include "loader/lowering.h"

namespace headrace {

// Host memory that the GPU reaches without a copy by the driver, until this is destroyed. The memory outlives it.
class PinnedMemory {
 public:
  PinnedMemory(const CudaRuntime& cuda, std::byte* memory) : cuda_(cuda), memory_(memory) {}
  ~PinnedMemory() { cuda_.cudaHostUnregister(memory_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  const CudaRuntime& cuda_;
  std::byte* const memory_;
};

class DeviceCopies {
 public:
  // `bounce_bytes`: of the host memory through which ReadInPieces reads. kTransport: no CUDA runtime (the environment
  // may name one: gpu_options.h). kInvalidOption: no such GPU.
  static absl::StatusOr<std::unique_ptr<DeviceCopies>> Create(int gpu, int64_t bounce_bytes = int64_t{8} << 20);
  // Waits for what is in flight; for the work of a stream whose wait expired a few seconds at most.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  int gpu() const { return gpu_; }

  // Whether `pointer` is memory of this GPU (or managed memory); false: memory of the host. kInvalidOption: of another
  // GPU.
  absl::StatusOr<bool> IsOnDevice(const void* pointer) const;
  // Null where the driver does not pin it: copies from and to it are slower then.
  std::unique_ptr<PinnedMemory> Pin(absl::Span<std::byte> memory) const;

  // Returns when all that was enqueued on `stream` of this GPU before the call has ended; null: its legacy default
  // stream. Waits without spinning. kDeadline; kTransport: the work failed.
  absl::Status AwaitStream(cuda::Stream stream, absl::Time deadline);

  // Enqueue; the first error is kept for Finish. Both ends stay valid until it returned.
  void FromDevice(const kernels::StridedCopy& box) { Copy(box, cuda::kMemcpyDeviceToHost); }
  void ToDevice(const kernels::StridedCopy& box) { Copy(box, cuda::kMemcpyHostToDevice); }
  void Clear(const BufferBox& box, std::byte* memory);  // of the device
  // Nothing is in flight when it returns, which is why it takes no deadline: copies wait for nothing but the bus.
  // kTransport: some of them failed.
  absl::Status Finish();

  // Calls visit(piece, packed) for boxes that together are `box`, in an order of its own: `packed` is the piece's bytes
  // in host memory, one run behind the other, until visit returns. Runs are cut between elements of `element_bytes`,
  // which `bounce_bytes` is no less than.
  absl::Status ReadInPieces(const BufferBox& box, const std::byte* memory, int64_t element_bytes,
                            const std::function<void(const BufferBox& piece, const std::byte* packed)>& visit);

 private:
  struct Reached;
  struct Mark;

  DeviceCopies(const CudaRuntime& cuda, int gpu, int64_t bounce_bytes);
  absl::Status Start();
  void Copy(const kernels::StridedCopy& box, int kind);
  void Keep(cuda::Error error, absl::string_view what);
  // Until our stream has come to its end of now.
  absl::Status Drain(absl::Time deadline);

  const CudaRuntime& cuda_;
  const int gpu_;
  const int64_t bounce_bytes_;
  cuda::Stream stream_ = nullptr;
  cuda::Event event_ = nullptr;
  const std::shared_ptr<Reached> reached_;  // also the stream's, which may outlive this
  uint64_t marks_ = 0;
  absl::Status error_;
  std::byte* bounce_ = nullptr;  // from the first piece on
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_DEVICE_COPIES_H_
