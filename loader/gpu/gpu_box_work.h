#ifndef HEADRACE_LOADER_GPU_GPU_BOX_WORK_H_
#define HEADRACE_LOADER_GPU_GPU_BOX_WORK_H_

// Byte work on boxes in the memory of a GPU (box_work.h): Finish, or a batch that is full, is one launch for each of
// what is converted, what is summed, and the rest.
//
// Chunks are in the GPU's own memory where the transport's messages may be there (Capabilities::gpu), and otherwise in
// pinned memory of the host, which the kernels read and write over the bus.

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/copy_table.h"
#include "kernels/cuda/elementwise_table.h"
#include "loader/box_work.h"
#include "loader/gpu/gpu_copies.h"
#include "loader/transport/transport.h"

namespace headrace {

class GpuBoxWork final : public BoxWork {
 public:
  // With chunks for the transport's messages, where it has any: as many of `chunk_bytes` as `staging_bytes` hold,
  // allocated here. Errors are those of GpuCopies, and kOutOfMemory.
  static absl::StatusOr<std::unique_ptr<GpuBoxWork>> Create(int gpu, const Transport& transport, int64_t chunk_bytes,
                                                            int64_t staging_bytes);
  static absl::StatusOr<std::unique_ptr<GpuBoxWork>> WithoutChunks(int gpu);

  void Copy(const kernels::StridedCopy& box, uint64_t* sum) override;
  void Cast(kernels::FloatType from, kernels::FloatType to, const kernels::StridedCast& cast) override;
  // Of chunk_bytes at most; those that are out at one time are within staging_bytes, and none outlives this.
  absl::StatusOr<Chunk> NewChunk(int64_t bytes) override;
  void Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) override;
  void Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in, uint64_t* sum) override;
  void Sum(const kernels::StridedCopy& box, uint64_t* sum) override;
  absl::Status Finish() override;
  // A millisecond of a GPU's memory.
  int64_t batch_bytes() const override { return int64_t{1} << 30; }
  absl::Status LoadWords(const std::byte* from, absl::Span<uint64_t> to) override;
  absl::Status StoreWords(absl::Span<const uint64_t> from, std::byte* to) override;

 private:
  explicit GpuBoxWork(std::unique_ptr<GpuCopies> copies) : copies_(std::move(copies)) {}
  // The sum's place in the batch.
  int64_t SlotOf(uint64_t* sum);
  void RunIfFull();
  void RunBatch();

  const std::unique_ptr<GpuCopies> copies_;
  std::unique_ptr<DeviceMemory> chunk_memory_;
  std::vector<std::byte*> free_chunks_;
  // The batch.
  kernels::CopyTable unsummed_;
  kernels::CopyTable summed_;
  kernels::ElementwiseTable casts_;
  std::vector<uint64_t*> sums_;  // by slot of summed_
  absl::Status error_;           // of the batches since the last Finish
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_GPU_BOX_WORK_H_
