#include "loader/gpu/gpu_memory.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::StatusOr<GpuMemory> FindGpuMemory(std::optional<int> gpu, const std::vector<Buffer>& buffers,
                                        const std::map<std::string, const std::byte*>& memory) {
  GpuMemory found;
  if (!gpu.has_value()) return found;
  HR_ASSIGN_OR_RETURN(found.copies, DeviceCopies::Create(*gpu));
  for (const Buffer& b : buffers) {
    const auto first = memory.find(b.name);
    if (first == memory.end() || first->second == nullptr || SpanElements(b) == 0) continue;
    const absl::StatusOr<bool> on_device = found.copies->IsOnDevice(first->second);
    if (!on_device.ok()) {
      return About(
          WithMessage(on_device.status(), absl::StrCat("buffer \"", b.name, "\": ", on_device.status().message())),
          {.buffer = b.name, .rank = b.rank});
    }
    if (*on_device) found.buffers.insert(b.name);
  }
  return found;
}

absl::Status AwaitStream(const GpuMemory& memory, cuda::Stream stream, absl::Time deadline) {
  if (memory.copies != nullptr) return memory.copies->AwaitStream(stream, deadline);
  if (stream == nullptr) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, "a stream was given, and no GPU was named when this member joined: name it");
}

}  // namespace headrace
