#include "bench/rank_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::bench {

absl::StatusOr<RankMemory> RankMemory::Allocate(const std::vector<Buffer>& buffers, int64_t rank) {
  RankMemory memory;
  std::map<int, size_t> offsets;
  size_t bytes = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].rank != rank) continue;
    offsets[static_cast<int>(i)] = bytes;
    bytes += (static_cast<size_t>(SpanBytes(buffers[i], buffers[i].dtype)) + 63) / 64 * 64;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) {
    return Error(ErrorCode::kOutOfMemory, absl::StrCat("the rank's buffers need ", bytes, " bytes"));
  }
  memory.bytes_ = {static_cast<std::byte*>(data), bytes};
  for (const auto& [i, offset] : offsets) memory.first_[i] = memory.bytes_.data() + offset;
  return memory;
}

void RankMemory::Clear() const { std::memset(bytes_.data(), 0, bytes_.size()); }

}  // namespace headrace::bench
