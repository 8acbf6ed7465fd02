#ifndef HEADRACE_LOADER_BOX_WORK_H_
#define HEADRACE_LOADER_BOX_WORK_H_

// What the two ends of a transfer in messages do with bytes: pack strided boxes into chunks, unpack and sum them. On
// the CPU each is done at once; on a GPU (gpu/gpu_box_work.h) they are collected, and Finish does them all.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/strided_copy.h"

namespace headrace {

// Memory of one message. Goes back to whom it came from.
using Chunk = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

// Of the host.
Chunk NewHostChunk(int64_t bytes);

// Used by one thread at a time. Boxes, chunks and sums stay valid until Finish returned.
class BoxWork {
 public:
  virtual ~BoxWork() = default;

  // A chunk for packed bytes, in memory that this work and the transport reach. kOutOfMemory, kTransport.
  virtual absl::StatusOr<Chunk> NewChunk(int64_t bytes) = 0;
  // As kernels::Pack, UnpackAndSum and Sum; what is summed is added to *sum, by Finish at the latest. Until Finish no
  // byte of a chunk that was packed may be sent, and none of one that is unpacked may change.
  virtual void Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) = 0;
  virtual void Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in,
                      uint64_t* sum) = 0;
  virtual void Sum(const kernels::StridedCopy& box, uint64_t* sum) = 0;
  // All that was asked for is done, or has failed: kOutOfMemory, kTransport.
  virtual absl::Status Finish() = 0;
};

// Boxes in memory of the host. Any number of threads may share it.
BoxWork* OnCpu();

}  // namespace headrace

#endif  // HEADRACE_LOADER_BOX_WORK_H_
