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
  return Fill(live, gpu);
}

kernels::CopyTable CommitBoxes::CopiesOnGpu(const std::map<int, std::byte*>& shadow,
                                            const std::map<int, std::byte*>& live) const {
  kernels::CopyTable table;
  for (const Box& t : tensors_) {
    const auto to = live.find(t.destination);
    if (to != live.end()) table.AddCopy(Lower(t.box, shadow.at(t.destination), to->second), 0);
  }
  return table;
}

void CommitBoxes::Fill(const std::map<int, std::byte*>& live) const {
  for (const Box& z : zeros_) {
    const auto at = live.find(z.destination);
    if (at != live.end()) Clear(z.box, at->second);
  }
}

absl::Status CommitBoxes::Fill(const std::map<int, std::byte*>& live, DeviceCopies* gpu) const {
  for (const Box& z : zeros_) {
    const auto at = live.find(z.destination);
    if (at != live.end()) gpu->Clear(z.box, at->second);
  }
  return gpu->Finish();
}

ShadowMemory::ShadowMemory(const Manifest& manifest, int64_t rank, const std::map<int, std::byte*>& unserved)
    : buffers_(unserved) {
  constexpr int64_t kAlignment = 256;  // non-temporal stores and the widest of a GPU want aligned buffers
  for (size_t i = 0; i < manifest.destination.size(); ++i) {
    const Buffer& b = manifest.destination[i];
    if (b.rank != rank || b.alias_of || unserved.contains(static_cast<int>(i))) continue;
    offsets_[static_cast<int>(i)] = bytes_;
    bytes_ += (SpanBytes(b, b.dtype) + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void ShadowMemory::Place(std::byte* memory) {
  memory_ = memory;
  for (const auto& [index, offset] : offsets_) buffers_[index] = memory + offset;
}

absl::StatusOr<std::unique_ptr<ShadowMemory>> ShadowMemory::Allocate(const Manifest& manifest, int64_t rank,
                                                                     const std::map<int, std::byte*>& unserved) {
  std::unique_ptr<ShadowMemory> shadow(new ShadowMemory(manifest, rank, unserved));
  if (shadow->bytes_ == 0) {
    shadow->Place(nullptr);
  } else {
    HR_RETURN_IF_ERROR(shadow->AllocateOnHost(rank));
  }
  return shadow;
}

absl::Status ShadowMemory::AllocateOnHost(int64_t rank) {
  // Committing more than there is ends in the kernel's killing a process.
  if (absl::Status fits = CheckMemoryAvailable(bytes_); !fits.ok()) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("rank ", rank, ", shadow buffers: ", fits.message(), ", or run without a shadow"));
  }
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat("rank ", rank, ": the shadow buffers need ", bytes_, " bytes of host memory (",
                              std::strerror(errno), "). Free memory, raise the limit, or run without a shadow"));
  }
  Place(static_cast<std::byte*>(p));
  madvise(p, bytes_, MADV_HUGEPAGE);  // best effort
  std::memset(p, 0, bytes_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShadowMemory>> ShadowMemory::AllocateOnGpu(const Manifest& manifest, int64_t rank,
                                                                          const CudaRuntime& cuda, int gpu) {
  std::unique_ptr<ShadowMemory> shadow(new ShadowMemory(manifest, rank, {}));
  if (shadow->bytes_ > 0) {
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
        DeviceMemory::Allocate(cuda, gpu, shadow->bytes_, absl::StrCat("rank ", rank, ", shadow buffers"));
    if (HasCode(memory.status(), ErrorCode::kOutOfMemory)) {
      return WithMessage(memory.status(),
                         absl::StrCat(memory.status().message(), ". Leave the engine less of it, take ",
                                      "a shadow in host memory, or none"));
    }
    HR_RETURN_IF_ERROR(memory.status());
    shadow->on_gpu_ = *std::move(memory);
  }
  shadow->Place(shadow->on_gpu_ == nullptr ? nullptr : shadow->on_gpu_->data());
  return shadow;
}

ShadowMemory::~ShadowMemory() {
  if (memory_ != nullptr && on_gpu_ == nullptr) munmap(memory_, bytes_);
}

}  // namespace headrace
