#ifndef HEADRACE_LOADER_BOX_WORK_H_
#define HEADRACE_LOADER_BOX_WORK_H_

// What the two ends of a transfer do with bytes: copy, convert and sum strided boxes, pack them into the chunks of
// messages and unpack them. On the CPU each is done at once; on a GPU (gpu/gpu_box_work.h) they are collected, and
// Finish does them all.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cast.h"
#include "kernels/strided_copy.h"

namespace headrace {

// Memory of one message. Goes back to whom it came from.
using Chunk = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

// Of the host.
Chunk NewHostChunk(int64_t bytes);

// Used by one thread at a time. Boxes, chunks and sums stay valid until Finish returned. Until then there is no order
// among what was asked for: none of it may read what another writes.
class BoxWork {
 public:
  virtual ~BoxWork() = default;

  // As kernels::CopyAndSum and Cast; what is summed is added to *sum (null: nothing is), by Finish at the latest. A
  // GPU's elements are aligned to their size, otherwise Finish is kInvalidOption.
  virtual void Copy(const kernels::StridedCopy& box, uint64_t* sum) = 0;
  virtual void Cast(kernels::FloatType from, kernels::FloatType to, const kernels::StridedCast& cast) = 0;

  // A chunk for packed bytes, in memory that this work and the transport reach. kOutOfMemory, kTransport.
  virtual absl::StatusOr<Chunk> NewChunk(int64_t bytes) = 0;
  // As kernels::Pack, UnpackAndSum and Sum. Until Finish no byte of a chunk that was packed may be sent, and none of
  // one that is unpacked may change.
  virtual void Pack(const kernels::StridedCopy& box, int64_t first, absl::Span<std::byte> out) = 0;
  virtual void Unpack(const kernels::StridedCopy& box, int64_t first, absl::Span<const std::byte> in,
                      uint64_t* sum) = 0;
  virtual void Sum(const kernels::StridedCopy& box, uint64_t* sum) = 0;
  // All that was asked for is done, or has failed: kOutOfMemory, kTransport.
  virtual absl::Status Finish() = 0;
  // How many bytes to ask for before a Finish, at least: what makes its own cost small.
  virtual int64_t batch_bytes() const = 0;

  // A few words, at once: stamps and sums, which other processes may read or write meanwhile. Words are aligned, and
  // each is read and written whole. kTransport.
  virtual absl::Status LoadWords(const std::byte* from, absl::Span<uint64_t> to) = 0;
  virtual absl::Status StoreWords(absl::Span<const uint64_t> from, std::byte* to) = 0;
};

// Boxes in memory of the host. Any number of threads may share it.
BoxWork* OnCpu();

}  // namespace headrace

#endif  // HEADRACE_LOADER_BOX_WORK_H_
