#include "loader/slot.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int64_t kHeaderBytes = 64;
constexpr int64_t kPageBytes = 4096;
static_assert(sizeof(SlotHeader) <= kHeaderBytes);

int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

constexpr size_t kHeaderWords = sizeof(SlotHeader) / sizeof(uint64_t);
constexpr size_t kEndWord = offsetof(SlotHeader, end) / sizeof(uint64_t);
static_assert(kEndWord + 1 == kHeaderWords && offsetof(SlotHeader, magic) == 0);

}  // namespace

uint64_t IncarnationStamp(const std::string& incarnation) {
  uint64_t h = 0xcbf29ce484222325;  // FNV-1a
  for (unsigned char c : incarnation) h = (h ^ c) * 0x100000001b3;
  return h;
}

SlotLayout::SlotLayout(const Manifest& manifest, int64_t source_rank, bool hold) {
  std::map<std::string, Dtype> dtypes;
  for (const TensorSpec& t : manifest.tensors) {
    dtypes_.push_back(t.dtype);
    dtypes.emplace(t.name, t.dtype);
  }
  for (size_t i = 0; i < manifest.source.size(); ++i) {
    if (manifest.source[i].rank != source_rank) continue;
    for (const Piece& p : manifest.source[i].pieces) {
      if (p.kind == PieceKind::kTensor) buffers_[{static_cast<int>(i), dtypes.at(p.tensor)}] = 0;
    }
  }
  int64_t next = kHeaderBytes;
  if (hold) buffers_.clear();
  for (auto& [snapshot, offset] : buffers_) {
    next = RoundUp(next, kPageBytes);
    offset = next;
    next += SpanBytes(manifest.source[snapshot.first], snapshot.second);
  }
  bytes_ = next;
}

SumsLayout::SumsLayout(const Plan& plan, int64_t source_rank) {
  int64_t next = 0;
  for (const Edge& edge : plan.edges) {
    if (edge.source_rank != source_rank || edge.stream >= 0) continue;
    edges_[edge.destination_rank] = next;
    next += static_cast<int64_t>(edge.count * sizeof(uint64_t));
  }
  for (size_t s = 0; s < plan.streams.size(); ++s) {
    if (plan.streams[s].source_rank != source_rank) continue;
    streams_[static_cast<int>(s)] = next;
    next += static_cast<int64_t>(plan.streams[s].parts.size() * sizeof(uint64_t));
  }
  slot_bytes_ = std::max(RoundUp(next, kHeaderBytes), kHeaderBytes);
}

absl::Status OpenSlot(absl::Span<std::byte> slot, uint64_t incarnation, uint64_t generation, BoxWork* work) {
  const uint64_t opening[] = {kSlotMagic, incarnation, generation};
  HR_RETURN_IF_ERROR(work->StoreWords(opening, slot.data()));
  // No later store may pass the opening stamp.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return absl::OkStatus();
}

absl::Status CloseSlot(absl::Span<std::byte> slot, uint64_t generation, BoxWork* work) {
  std::atomic_thread_fence(std::memory_order_release);
  return work->StoreWords({&generation, 1}, slot.data() + kEndWord * sizeof(uint64_t));
}

absl::Status CheckSlot(absl::Span<const std::byte> slot, uint64_t incarnation, uint64_t generation,
                       absl::string_view owner, BoxWork* work) {
  std::atomic_thread_fence(std::memory_order_acquire);  // earlier reads of the slot's bytes come first
  uint64_t words[kHeaderWords];
  HR_RETURN_IF_ERROR(work->LoadWords(slot.data(), absl::MakeSpan(words)));
  std::atomic_thread_fence(std::memory_order_acquire);  // and later ones after
  const auto& [magic, slot_incarnation, begin, end] = words;
  const bool mine = magic == kSlotMagic && slot_incarnation == incarnation;
  if (mine && begin == generation && end == generation) return absl::OkStatus();
  return Error(ErrorCode::kGenerationChanged,
               absl::StrCat("the snapshot of ", owner, " holds generation ", end,
                            begin == end ? ""
                                         : " and is being "
                                           "overwritten with ",
                            begin == end ? "" : absl::StrCat(begin),
                            mine ? ""
                                 : " of another "
                                   "incarnation",
                            "; generation ", generation, " was wanted. Take a newer generation"));
}

}  // namespace headrace
