#include "loader/published_memory.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "loader/gpu/gpu_box_work.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Nothing of it is read.
bool OffersNothing(const Buffer& b) { return SpanElements(b) == 0 || b.pieces.empty(); }

}  // namespace

absl::StatusOr<std::unique_ptr<PublishedMemory>> PublishedMemory::Create(const PublisherOptions& options,
                                                                         const Manifest& part,
                                                                         std::map<std::string, const std::byte*> memory,
                                                                         const Transport& transport) {
  std::unique_ptr<PublishedMemory> published(new PublishedMemory(options, std::move(memory)));
  published->slots_on_gpu_ = transport.capabilities().region_gpu.has_value();
  HR_ASSIGN_OR_RETURN(published->gpu_memory_, FindGpuMemory(options.gpu, part.source, published->memory_));
  if (published->slots_on_gpu_) HR_RETURN_IF_ERROR(published->CheckSlotsOnGpu(part, transport));
  if (published->hold()) HR_RETURN_IF_ERROR(published->CheckHeld(part, transport));
  HR_RETURN_IF_ERROR(published->MakeWork(transport));
  return published;
}

// What cannot be held.
absl::Status PublishedMemory::CheckHeld(const Manifest& part, const Transport& transport) const {
  for (const Buffer& b : part.source) {
    const std::string about = absl::StrCat("publisher rank ", options_.rank, ", buffer \"", b.name, "\" is ");
    const auto refuse = [&](const std::string& why) {
      return About(Error(ErrorCode::kInvalidOption, absl::StrCat(about, why)), {.buffer = b.name, .rank = b.rank});
    };
    if (b.convert_rne) return refuse("converted, which takes a copy: it cannot be held. Publish by snapshot");
    if (gpu_memory_.buffers.empty() || OffersNothing(b)) continue;
    if (!gpu_memory_.has(b.name)) {
      return refuse(absl::StrCat("in host memory and \"", *gpu_memory_.buffers.begin(), "\" in that of GPU ",
                                 *options_.gpu, ": what is held is all in one of them. Publish by snapshot"));
    }
    if (transport.capabilities().map) {
      return refuse(absl::StrCat("in the memory of GPU ", *options_.gpu,
                                 ", which receivers cannot read over the transport ", transport.name(),
                                 ": it cannot be held. Publish by snapshot, or over a transport of messages"));
    }
  }
  return absl::OkStatus();
}

// What cannot be with slots on a GPU.
absl::Status PublishedMemory::CheckSlotsOnGpu(const Manifest& part, const Transport& transport) const {
  const int gpu = *transport.capabilities().region_gpu;
  const std::string rank = absl::StrCat("publisher rank ", options_.rank);
  const std::string over = absl::StrCat("over the transport ", transport.name(), " all bytes stay on GPU ", gpu);
  if (hold()) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat(rank, ": ", over,
                                                         ", in memory of its own: weights cannot be held. Publish by "
                                                         "snapshot"));
  }
  if (options_.gpu != gpu) {
    return Error(
        ErrorCode::kInvalidOption,
        absl::StrCat(rank, " names ", options_.gpu.has_value() ? absl::StrCat("GPU ", *options_.gpu) : "no GPU", "; ",
                     over, ": name that one"));
  }
  for (const Buffer& b : part.source) {
    const auto refuse = [&](const std::string& why) {
      return About(Error(ErrorCode::kInvalidOption, absl::StrCat(rank, ", buffer \"", b.name, "\" is ", why)),
                   {.buffer = b.name, .rank = b.rank});
    };
    if (OffersNothing(b)) continue;
    if (!gpu_memory_.has(b.name)) {
      return refuse(absl::StrCat("in host memory; ", over, ": keep it there, or take another transport"));
    }
    if (b.convert_rne && reinterpret_cast<uintptr_t>(memory_.at(b.name)) % (DtypeBits(b.dtype) / 8) != 0) {
      return refuse(
          absl::StrCat("converted on GPU ", gpu, ", and its elements are not aligned to their size: align them"));
    }
  }
  return absl::OkStatus();
}

absl::Status PublishedMemory::MakeWork(const Transport& transport) {
  const bool held_on_gpu = hold() && !gpu_memory_.buffers.empty();
  if (slots_on_gpu_ || held_on_gpu) {
    HR_ASSIGN_OR_RETURN(published_, GpuBoxWork::WithoutChunks(*options_.gpu));
  }
  if (held_on_gpu) {
    HR_ASSIGN_OR_RETURN(packing_,
                        GpuBoxWork::Create(*options_.gpu, transport, options_.chunk_bytes, options_.staging_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<int, const std::byte*>> PublishedMemory::Of(const Manifest& manifest, int64_t rank) const {
  std::map<int, const std::byte*> first;
  for (size_t i = 0; i < manifest.source.size(); ++i) {
    const Buffer& b = manifest.source[i];
    if (b.rank != rank) continue;
    const auto it = memory_.find(b.name);
    if (it != memory_.end() && it->second != nullptr) {
      first[static_cast<int>(i)] = it->second;
    } else if (!OffersNothing(b)) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat("publisher rank ", options_.rank,
                                                           " was given no memory for its buffer \"", b.name, "\""));
    }
  }
  return first;
}

SnapshotMeans PublishedMemory::MeansFor(const Manifest& manifest, const std::map<int, const std::byte*>& memory) const {
  SnapshotMeans means;
  if (published_ != nullptr) means.work = published_.get();
  if (slots_on_gpu_) means.regions = means.work;
  if (slots_on_gpu_ || hold()) return means;
  for (const auto& [index, first] : memory) {
    if (gpu_memory_.has(manifest.source[index].name)) means.on_gpu.insert(index);
  }
  means.gpu = gpu_memory_.copies.get();
  return means;
}

std::unique_ptr<PinnedMemory> PublishedMemory::PinSlot(absl::Span<std::byte> slot) const {
  if (slots_on_gpu_ || hold() || gpu_memory_.buffers.empty()) return nullptr;
  return gpu_memory_.copies->Pin(slot);
}

absl::Status PublishedMemory::AwaitTrainer(cuda::Stream stream, absl::Time deadline) const {
  return AwaitStream(gpu_memory_, stream, deadline);
}

}  // namespace headrace
