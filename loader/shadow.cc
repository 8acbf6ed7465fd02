#include "loader/shadow.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/transport/anonymous_memory.h"
#include "planner/status.h"

namespace headrace {

CommitBoxes::CommitBoxes(const Manifest& manifest, const Plan& plan, int64_t rank) {
  for (size_t i = 0; i < manifest.destination.size(); ++i) {
    const Buffer& b = manifest.destination[i];
    if (b.rank != rank || b.alias_of) continue;
    for (BufferBox& box : BoxesOf(b, PieceKind::kTensor, b.dtype)) {
      Index bytes = box.run_bytes;
      for (const auto& [extent, stride] : box.loops) bytes *= extent;
      copied_bytes_ += bytes;
      tensors_.push_back({static_cast<int>(i), std::move(box)});
    }
  }
  for (const ZeroFill& z : plan.zero_fills) {
    if (manifest.destination[z.destination].rank == rank) zeros_.push_back({z.destination, BoxOf(z)});
  }
}

void CommitBoxes::CopyAndFill(const std::map<int, std::byte*>& shadow, const std::map<int, std::byte*>& live) const {
  for (const Box& t : tensors_) {
    const auto to = live.find(t.destination);
    if (to == live.end()) continue;
    std::byte* const from = shadow.at(t.destination);
    if (from != to->second) kernels::Copy(Lower(t.box, from, to->second));
  }
  Fill(live);
}

absl::Status CommitBoxes::CopyAndFill(const std::map<int, std::byte*>& shadow, const std::map<int, std::byte*>& live,
                                      DeviceCopies* gpu) const {
  for (const Box& t : tensors_) {
    const auto to = live.find(t.destination);
    if (to != live.end()) gpu->ToDevice(Lower(t.box, shadow.at(t.destination), to->second));
  }
  for (const Box& z : zeros_) {
    const auto at = live.find(z.destination);
    if (at != live.end()) gpu->Clear(z.box, at->second);
  }
  return gpu->Finish();
}

void CommitBoxes::Fill(const std::map<int, std::byte*>& live) const {
  for (const Box& z : zeros_) {
    const auto at = live.find(z.destination);
    if (at != live.end()) Clear(z.box, at->second);
  }
}

absl::StatusOr<std::unique_ptr<ShadowMemory>> ShadowMemory::Allocate(const Manifest& manifest, int64_t rank,
                                                                     const std::map<int, std::byte*>& unserved) {
  std::unique_ptr<ShadowMemory> shadow(new ShadowMemory);
  std::map<int, int64_t> offsets;
  for (size_t i = 0; i < manifest.destination.size(); ++i) {
    const Buffer& b = manifest.destination[i];
    if (b.rank != rank || b.alias_of || unserved.contains(static_cast<int>(i))) continue;
    offsets[static_cast<int>(i)] = shadow->bytes_;
    shadow->bytes_ += (SpanBytes(b, b.dtype) + 63) / 64 * 64;  // non-temporal stores want aligned buffers
  }
  if (shadow->bytes_ > 0) {
    // Committing more than there is ends in the kernel's killing a process.
    if (absl::Status fits = CheckMemoryAvailable(shadow->bytes_); !fits.ok()) {
      return Error(ErrorCode::kOutOfMemory,
                   absl::StrCat("rank ", rank, ", shadow buffers: ", fits.message(), ", or run without a shadow"));
    }
    void* p = mmap(nullptr, shadow->bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      return Error(ErrorCode::kOutOfMemory,
                   absl::StrCat("rank ", rank, ": the shadow buffers need ", shadow->bytes_, " bytes of host memory (",
                                std::strerror(errno), "). Free memory, raise the limit, or run without a shadow"));
    }
    shadow->memory_ = static_cast<std::byte*>(p);
    madvise(p, shadow->bytes_, MADV_HUGEPAGE);  // best effort
    std::memset(p, 0, shadow->bytes_);
  }
  shadow->buffers_ = unserved;
  for (const auto& [index, offset] : offsets) shadow->buffers_[index] = shadow->memory_ + offset;
  return shadow;
}

ShadowMemory::~ShadowMemory() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

}  // namespace headrace
