#include "loader/live_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/gpu/gpu_box_work.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<std::unique_ptr<LiveMemory>> LiveMemory::Create(const ReceiverOptions& options, const Manifest& part,
                                                               std::map<std::string, BufferMemory> memory,
                                                               const Transport& transport, bool standby) {
  std::unique_ptr<LiveMemory> live(new LiveMemory(options, std::move(memory)));
  HR_RETURN_IF_ERROR(live->CheckDeclared(part));
  HR_ASSIGN_OR_RETURN(live->gpu_memory_, FindGpuMemory(options.gpu, part.destination, live->first_bytes()));
  HR_RETURN_IF_ERROR(live->CheckGpuMemory(part, transport, standby));
  HR_RETURN_IF_ERROR(live->MakeWork(transport));
  return live;
}

absl::Status LiveMemory::CheckDeclared(const Manifest& part) const {
  for (const Buffer& b : part.destination) {
    auto it = memory_.find(b.name);
    const bool right = it != memory_.end() && it->second.shape == b.shape && it->second.strides == b.strides &&
                       (it->second.data != nullptr || SpanElements(b) == 0);
    if (right) continue;
    return About(
        Error(ErrorCode::kDestinationMoved,
              absl::StrCat("engine ", options_.engine, " worker ", options_.worker, ", buffer \"", b.name,
                           "\" is declared with shape [", absl::StrJoin(b.shape, ", "), "] and ",
                           it == memory_.end() ? "has no memory" : "its memory has another shape, strides or none")),
        {.buffer = b.name, .rank = b.rank});
  }
  // Bytes that are written through one name must be those that are read through another.
  std::map<std::string, std::pair<std::string, const std::byte*>> storages;
  for (const Buffer& b : part.destination) {
    auto apart = [&](const std::string& other) {
      return About(Error(ErrorCode::kDestinationMoved,
                         absl::StrCat("engine ", options_.engine, " worker ", options_.worker, ", buffer \"", b.name,
                                      "\" is declared to share the memory of \"", other, "\" but lies elsewhere")),
                   {.buffer = b.name, .rank = b.rank});
    };
    const std::byte* first = memory_.at(b.name).data;
    if (b.alias_of && memory_.contains(*b.alias_of) && memory_.at(*b.alias_of).data != first) return apart(*b.alias_of);
    if (!b.storage || SpanElements(b) == 0) continue;
    const std::byte* storage = first - b.storage->offset_bytes;
    const auto [it, fresh] = storages.emplace(b.storage->id, std::make_pair(b.name, storage));
    if (!fresh && it->second.second != storage) return apart(it->second.first);
  }
  return absl::OkStatus();
}

// What cannot be with buffers on a GPU, or a shadow there.
absl::Status LiveMemory::CheckGpuMemory(const Manifest& part, const Transport& transport, bool standby) const {
  const std::string worker = absl::StrCat("engine ", options_.engine, " worker ", options_.worker);
  const auto refuse = [&](const Buffer& b, const std::string& why) {
    return About(
        Error(ErrorCode::kInvalidOption,
              absl::StrCat(worker, ", buffer \"", b.name, "\" is in ",
                           gpu_memory_.has(b.name) ? absl::StrCat("the memory of GPU ", *options_.gpu) : "host memory",
                           why)),
        {.buffer = b.name, .rank = options_.worker});
  };
  if (options_.shadow == Shadow::kDevice && !options_.gpu.has_value()) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat(worker, ": a shadow on a GPU, and no GPU was named: name it"));
  }
  const Capabilities& can = transport.capabilities();
  for (const Buffer& b : part.destination) {
    const bool on_gpu = gpu_memory_.has(b.name);
    if (SpanElements(b) == 0) continue;
    if (on_gpu && standby) {
      return refuse(b, ", which other engines cannot read: it can be no standby. Join without one");
    }
    if (can.region_gpu.has_value() && (!on_gpu || !streams_into_gpu() || *can.region_gpu != *options_.gpu)) {
      return refuse(b, absl::StrCat(". Over the transport ", transport.name(), " all bytes stay on GPU ",
                                    *can.region_gpu, ": take a shadow there or none, and buffers in its memory"));
    }
    if (!streams_into_gpu()) continue;
    if (!on_gpu) {
      return refuse(b, ": bytes are streamed into a GPU for all buffers or for none. Take a shadow in host memory");
    }
    if (can.map && !can.region_gpu.has_value()) {
      return refuse(b, absl::StrCat(", into which the transport ", transport.name(), " streams nothing: take a shadow ",
                                    "in host memory, the transport cuda, or one of messages"));
    }
  }
  return absl::OkStatus();
}

bool LiveMemory::streams_into_gpu() const {
  return options_.shadow == Shadow::kDevice || (options_.shadow == Shadow::kOff && !gpu_memory_.buffers.empty());
}

absl::Status LiveMemory::MakeWork(const Transport& transport) {
  if (!streams_into_gpu()) return absl::OkStatus();
  HR_ASSIGN_OR_RETURN(work_,
                      GpuBoxWork::Create(*options_.gpu, transport, options_.chunk_bytes, options_.staging_bytes));
  if (options_.shadow == Shadow::kDevice) {
    HR_ASSIGN_OR_RETURN(commits_, GpuCopies::Create(*options_.gpu));
  }
  return absl::OkStatus();
}

absl::StatusOr<LiveBuffers> LiveMemory::Prepare(const Manifest& manifest, const Plan& plan, int64_t rank) {
  LiveBuffers buffers;
  for (size_t i = 0; i < manifest.destination.size(); ++i) {
    const Buffer& b = manifest.destination[i];
    if (b.rank != rank || b.alias_of) continue;
    (gpu_memory_.has(b.name) ? buffers.on_gpu : buffers.live)[static_cast<int>(i)] = memory_.at(b.name).data;
  }
  buffers.boxes.emplace(manifest, plan, rank);
  if (options_.shadow == Shadow::kOff) return buffers;
  if (shadow_ == nullptr) HR_RETURN_IF_ERROR(MakeShadow(manifest, rank, buffers));
  for (const auto* of : {&buffers.live, &buffers.on_gpu}) {
    for (const auto& [index, data] : *of) buffers.shadow[index] = shadow_of_.at(manifest.destination[index].name);
  }
  return buffers;
}

absl::Status LiveMemory::MakeShadow(const Manifest& manifest, int64_t rank, const LiveBuffers& buffers) {
  std::unique_ptr<ShadowMemory> shadow;
  if (options_.shadow == Shadow::kDevice) {
    HR_ASSIGN_OR_RETURN(shadow, ShadowMemory::AllocateOnGpu(manifest, rank, commits_->cuda(), *options_.gpu));
    HR_ASSIGN_OR_RETURN(commit_, commits_->Upload(buffers.boxes->CopiesOnGpu(shadow->buffers(), buffers.on_gpu)));
  } else {
    std::map<int, std::byte*> unserved;
    for (const auto& [index, data] : buffers.live) {
      if (!memory_.at(manifest.destination[index].name).live) unserved[index] = data;
    }
    HR_ASSIGN_OR_RETURN(shadow, ShadowMemory::Allocate(manifest, rank, unserved));
    if (!buffers.on_gpu.empty()) pinned_ = gpu_memory_.copies->Pin(shadow->memory());
  }
  shadow_ = std::move(shadow);
  for (const auto& [index, data] : shadow_->buffers()) shadow_of_[manifest.destination[index].name] = data;
  return absl::OkStatus();
}

std::map<std::string, const std::byte*> LiveMemory::first_bytes() const {
  std::map<std::string, const std::byte*> first;
  for (const auto& [name, buffer] : memory_) first[name] = buffer.data;
  return first;
}

bool LiveMemory::StageWrites() const {
  return options_.shadow == Shadow::kOff ||
         std::any_of(memory_.begin(), memory_.end(), [](const auto& buffer) { return !buffer.second.live; });
}

absl::Status LiveMemory::CheckUnmoved(const std::map<std::string, BufferMemory>& now) const {
  for (const auto& [name, was] : memory_) {
    auto moved = [&, &name = name](absl::string_view how) {
      return About(
          Error(ErrorCode::kDestinationMoved,
                absl::StrCat("engine ", options_.engine, " worker ", options_.worker, ", buffer \"", name, "\" ", how,
                             " since it was declared. Nothing was written; declare the buffers anew")),
          {.buffer = name, .rank = options_.worker});
    };
    auto it = now.find(name);
    if (it == now.end()) return moved("is gone");
    if (it->second.data != was.data) return moved("moved to another address");
    if (it->second.shape != was.shape) return moved("has another shape");
    if (it->second.strides != was.strides) return moved("has other strides");
  }
  return absl::OkStatus();
}

absl::Status LiveMemory::AwaitSteps(cuda::Stream stream, absl::Time deadline) const {
  return AwaitStream(gpu_memory_, stream, deadline);
}

const std::map<int, std::byte*>& LiveMemory::Destination(const LiveBuffers& buffers) const {
  if (options_.shadow != Shadow::kOff) return buffers.shadow;
  return work_ == nullptr ? buffers.live : buffers.on_gpu;
}

absl::Status LiveMemory::FillLive(const LiveBuffers& buffers) const {
  buffers.boxes->Fill(buffers.live);
  return buffers.on_gpu.empty() ? absl::OkStatus() : buffers.boxes->Fill(buffers.on_gpu, gpu_memory_.copies.get());
}

absl::Status LiveMemory::CopyToLive(const LiveBuffers& buffers) const {
  switch (options_.shadow) {
    case Shadow::kOff:
      return absl::OkStatus();
    case Shadow::kDevice:
      HR_RETURN_IF_ERROR(commits_->Run(commit_));
      return FillLive(buffers);
    case Shadow::kHost:
      break;
  }
  buffers.boxes->CopyAndFill(buffers.shadow, buffers.live);
  if (buffers.on_gpu.empty()) return absl::OkStatus();
  return buffers.boxes->CopyAndFill(buffers.shadow, buffers.on_gpu, gpu_memory_.copies.get());
}

}  // namespace headrace
