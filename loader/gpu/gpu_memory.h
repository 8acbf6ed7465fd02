#ifndef HEADRACE_LOADER_GPU_GPU_MEMORY_H_
#define HEADRACE_LOADER_GPU_GPU_MEMORY_H_

// Which of a member's buffers are in the memory of its GPU.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/gpu/device_copies.h"
#include "planner/manifest.h"

namespace headrace {

struct GpuMemory {
  std::unique_ptr<DeviceCopies> copies;  // null where the member names no GPU
  std::set<std::string> buffers;         // by name

  bool has(const std::string& buffer) const { return buffers.contains(buffer); }
};

// Asks where each buffer is; without `gpu` none is asked, no CUDA is loaded, and all are the host's. `memory` may lack
// buffers, and give null. kTransport: no CUDA runtime; kInvalidOption: no such GPU, or a buffer of another one.
absl::StatusOr<GpuMemory> FindGpuMemory(std::optional<int> gpu, const std::vector<Buffer>& buffers,
                                        const std::map<std::string, const std::byte*>& memory);

// A stream of a member without a GPU is nobody's: kInvalidOption unless it is null.
absl::Status AwaitStream(const GpuMemory& memory, cuda::Stream stream, absl::Time deadline);

}  // namespace headrace

#endif  // HEADRACE_LOADER_GPU_GPU_MEMORY_H_
