#include "loader/chunk_pool.h"

#include <algorithm>
#include <utility>

#include "planner/status.h"

namespace headrace {

void CancelledChunks::Keep(OpId op, Chunk chunk, int64_t bytes) {
  kept_.emplace(op, Kept{std::move(chunk), bytes});
  bytes_ += bytes;
}

void CancelledChunks::Complete(OpId op) {
  const auto kept = kept_.find(op);
  if (kept == kept_.end()) return;
  bytes_ -= kept->second.bytes;
  kept_.erase(kept);
}

absl::StatusOr<Chunk> ChunkPool::Take(Kind kind) {
  if (kind == Kind::kData && !kept_.empty()) {
    Chunk chunk = std::move(kept_.back());
    kept_.pop_back();
    return chunk;
  }
  while (allocated_bytes_ + cancelled_bytes() + chunk_bytes_ > staging_bytes_) {
    if (kept_.empty()) return Chunk();
    kept_.pop_back();
    allocated_bytes_ -= chunk_bytes_;
  }
  Chunk chunk;
  if (kind == Kind::kSums) {
    chunk = NewHostChunk(chunk_bytes_);
  } else {
    HR_ASSIGN_OR_RETURN(chunk, work_->NewChunk(chunk_bytes_));
  }
  allocated_bytes_ += chunk_bytes_;
  peak_bytes_ = std::max(peak_bytes_, allocated_bytes_);
  return chunk;
}

void ChunkPool::GiveBack(Kind kind, Chunk chunk) {
  if (kind == Kind::kData) {
    kept_.push_back(std::move(chunk));
  } else {
    allocated_bytes_ -= chunk_bytes_;
  }
}

}  // namespace headrace
