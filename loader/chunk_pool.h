#ifndef HEADRACE_LOADER_CHUNK_POOL_H_
#define HEADRACE_LOADER_CHUNK_POOL_H_

// The chunks of one end of a transfer in messages, under one cap. Those of data are made by what packs or unpacks
// (box_work.h), and kept to be used again. Sums are the host's, wherever the data is: their chunks are made and freed
// each time, so that kept ones of data always make room for them, and nothing that waits for sums waits for ever.
//
// Used by one thread at a time.

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/box_work.h"
#include "loader/transport/transport.h"

namespace headrace {

// Chunks that were given to operations of one transport, which were cancelled and have not completed: they stay valid,
// and count as staging. Outlives the transport, which may end operations by being destroyed, and not what made them.
class CancelledChunks {
 public:
  // `bytes`: what it counts as.
  void Keep(OpId op, Chunk chunk, int64_t bytes);
  // An operation completed: gives its chunk back, if it is one of these.
  void Complete(OpId op);
  int64_t bytes() const { return bytes_; }

 private:
  struct Kept {
    Chunk chunk;
    int64_t bytes;
  };
  std::unordered_map<OpId, Kept> kept_;
  int64_t bytes_ = 0;
};

class ChunkPool {
 public:
  enum class Kind { kData, kSums };

  // Chunks of `chunk_bytes` each, at most `staging_bytes` of them together with those of `cancelled`, if there is one.
  // `work` makes those of data. Both outlive this.
  ChunkPool(BoxWork* work, int64_t chunk_bytes, int64_t staging_bytes, const CancelledChunks* cancelled = nullptr)
      : work_(work), chunk_bytes_(chunk_bytes), staging_bytes_(staging_bytes), cancelled_(cancelled) {}

  // Null: there is none now; what is given back makes room. Errors: those of BoxWork::NewChunk.
  absl::StatusOr<Chunk> Take(Kind kind);
  // One that Take gave for this kind.
  void GiveBack(Kind kind, Chunk chunk);

  // Whether the cap holds so many chunks, of any kinds, in use at one time.
  bool Holds(int64_t chunks) const { return chunks <= (staging_bytes_ - cancelled_bytes()) / chunk_bytes_; }
  // The most that its own chunks, the kept ones too, took at one time.
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  int64_t cancelled_bytes() const { return cancelled_ == nullptr ? 0 : cancelled_->bytes(); }

  BoxWork* const work_;
  const int64_t chunk_bytes_;
  const int64_t staging_bytes_;
  const CancelledChunks* const cancelled_;
  std::vector<Chunk> kept_;  // of data
  int64_t allocated_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_CHUNK_POOL_H_
