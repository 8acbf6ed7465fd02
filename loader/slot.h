#ifndef HEADRACE_LOADER_SLOT_H_
#define HEADRACE_LOADER_SLOT_H_

// A snapshot slot: one publisher's bytes of one generation, in one region, and their sums, in another. Both ends
// compute the same layouts; the receiver reads them mapped, or gets its edges streamed (edge_stream.h).
//
// The slot depends on the publisher's own part of the manifest alone: it holds all that this publisher offers, so that
// a membership that changes finds there what it needs.
//
//   [0, 64)   header: SlotHeader
//   [64, ..)  the publisher's source buffers, each at a multiple of 4096 bytes, with the buffer's strides and the
//             tensor's dtype; a buffer that is converted to two dtypes is there twice. The elements of its tensor
//             pieces are written.
//
// The sums depend on the plan, so their region is the epoch's: for each slot one uint64 for each copy of this
// publisher's direct edges, and one for each part of its streams, each in plan order.
//
// Memory order: a generation is written between two stamps. `begin` is stored before the first byte changes, `end`
// after the last one; a reader takes both before its first byte and again after its last (generation_changed).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "loader/box_work.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

struct SlotHeader {
  uint64_t magic = 0;        // kSlotMagic
  uint64_t incarnation = 0;  // IncarnationStamp of the job's incarnation
  uint64_t begin = 0;        // generations
  uint64_t end = 0;
};
inline constexpr uint64_t kSlotMagic = 0x6561644852616365;

// Slots of each publisher: one is read while the other is written.
inline constexpr int kSnapshotSlots = 2;

uint64_t IncarnationStamp(const std::string& incarnation);

// A publisher that holds its weights copies nothing: its slot is the header alone.
class SlotLayout {
 public:
  SlotLayout(const Manifest& manifest, int64_t source_rank, bool hold = false);

  // Bytes of the region; at least the header.
  int64_t bytes() const { return bytes_; }
  // The snapshot of a source buffer (by its index in manifest.source) in a dtype: its first element.
  int64_t BufferOffset(int source, Dtype dtype) const { return buffers_.at({source, dtype}); }
  // The snapshot that a copy of this rank reads.
  int64_t BufferOffset(const Copy& copy) const { return BufferOffset(copy.source, dtypes_[copy.tensor]); }
  // All snapshots and where they are.
  const std::map<std::pair<int, Dtype>, int64_t>& buffers() const { return buffers_; }

 private:
  std::vector<Dtype> dtypes_;                         // of the manifest's tensors
  std::map<std::pair<int, Dtype>, int64_t> buffers_;  // by source buffer and snapshot dtype
  int64_t bytes_ = 0;
};

class SumsLayout {
 public:
  SumsLayout(const Plan& plan, int64_t source_rank);

  // Bytes of the region.
  int64_t bytes() const { return kSnapshotSlots * slot_bytes_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  // Where the sums of an edge of this rank begin, for one slot. On a direct edge copy edge.first + i has its sum at
  // + 8 * i; all edges of a stream share the sums of its parts, and a copy's is at + 8 * Copy::part.
  int64_t Offset(const Edge& edge) const {
    return edge.stream < 0 ? edges_.at(edge.destination_rank) : streams_.at(edge.stream);
  }
  int64_t OffsetOfStream(int stream) const { return streams_.at(stream); }
  // Where the sum of a copy of an edge is, by its index in the plan.
  int64_t OffsetOfCopy(const Plan& plan, const Edge& edge, size_t copy) const {
    const size_t sum = edge.stream < 0 ? copy - edge.first : static_cast<size_t>(plan.copies[copy].part);
    return Offset(edge) + static_cast<int64_t>(sum * sizeof(uint64_t));
  }
  // The sums of one slot.
  absl::Span<std::byte> Of(int slot, absl::Span<std::byte> region) const {
    return region.subspan(slot * slot_bytes_, slot_bytes_);
  }
  absl::Span<const std::byte> Of(int slot, absl::Span<const std::byte> region) const {
    return region.subspan(slot * slot_bytes_, slot_bytes_);
  }

 private:
  std::map<int64_t, int64_t> edges_;  // direct ones, by destination rank
  std::map<int, int64_t> streams_;    // by index in the plan
  int64_t slot_bytes_ = 0;
};

// Where a copy's bytes are: the first element of its source buffer, in a slot or in the weights themselves.
using SourceOf = std::function<const std::byte*(const Copy& copy)>;

// The stamps of a slot. Open/Close bracket a write; Check is the reader's look, before and after. `work` reaches the
// slot, whose errors these are. Whatever it was asked to do in the slot before is finished.
absl::Status OpenSlot(absl::Span<std::byte> slot, uint64_t incarnation, uint64_t generation, BoxWork* work = OnCpu());
absl::Status CloseSlot(absl::Span<std::byte> slot, uint64_t generation, BoxWork* work = OnCpu());
// kGenerationChanged: the slot does not hold exactly this generation of this incarnation, complete. `owner` names the
// publisher for the message.
absl::Status CheckSlot(absl::Span<const std::byte> slot, uint64_t incarnation, uint64_t generation,
                       absl::string_view owner, BoxWork* work = OnCpu());

}  // namespace headrace

#endif  // HEADRACE_LOADER_SLOT_H_
