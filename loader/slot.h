#ifndef HEADRACE_LOADER_SLOT_H_
#define HEADRACE_LOADER_SLOT_H_

// A snapshot slot: one publisher's bytes of one generation, in one region. Both ends compute the same layout from the
// plan; the receiver reads it mapped, or gets its edges streamed (edge_stream.h).
//
//   [0, 64)   header: SlotHeader
//   [64, ..)  sums: one uint64 for each copy of this publisher's edges, in plan order
//   [.., ..)  the publisher's source buffers, each at a multiple of 4096 bytes, with the buffer's strides and the
//             tensor's dtype; a buffer that is converted to two dtypes is there twice. Only the boxes that the plan
//             reads are written; of a buffer that is converted, all tensor pieces.
//
// Memory order: a generation is written between two stamps. `begin` is stored before the first byte changes, `end`
// after the last one; a reader takes both before its first byte and again after its last (generation_changed).

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
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

class SlotLayout {
 public:
  SlotLayout(const Manifest& manifest, const Plan& plan, int64_t source_rank);

  // Bytes of the region; at least the header.
  int64_t bytes() const { return bytes_; }
  // The snapshot that a copy of this rank reads: the first element of its source buffer, in the tensor's dtype.
  int64_t BufferOffset(const Copy& copy) const { return buffers_.at({copy.source, dtypes_[copy.tensor]}); }
  // Where the sums of an edge of this rank begin: copy edge.first + i has its sum at + 8 * i.
  int64_t SumsOffset(const Edge& edge) const { return sums_.at(edge.destination_rank); }

 private:
  std::vector<Dtype> dtypes_;                         // of the manifest's tensors
  std::map<std::pair<int, Dtype>, int64_t> buffers_;  // by source buffer and snapshot dtype
  std::map<int64_t, int64_t> sums_;                   // by destination rank
  int64_t bytes_ = 0;
};

// The stamps of a slot. Open/Close bracket a write; Check is the reader's look, before and after.
void OpenSlot(absl::Span<std::byte> slot, uint64_t incarnation, uint64_t generation);
void CloseSlot(absl::Span<std::byte> slot, uint64_t generation);
// kGenerationChanged: the slot does not hold exactly this generation of this incarnation, complete. `owner` names the
// publisher for the message.
absl::Status CheckSlot(absl::Span<const std::byte> slot, uint64_t incarnation, uint64_t generation,
                       absl::string_view owner);

}  // namespace headrace

#endif  // HEADRACE_LOADER_SLOT_H_
