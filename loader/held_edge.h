#ifndef HEADRACE_LOADER_HELD_EDGE_H_
#define HEADRACE_LOADER_HELD_EDGE_H_

// The receiver's end of an edge out of weights that their publisher holds, on transports that map: some copies it reads
// out of the publisher's memory, the others it takes out of the ring that the publisher packs them into.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "loader/edge_stream.h"
#include "loader/hold_path.h"
#include "loader/pack_ring.h"
#include "loader/remote_copy.h"
#include "loader/transport/transport.h"
#include "planner/plan.h"

namespace headrace {

// Used by one thread, the transport's.
class HeldEdge {
 public:
  // Keeps a reference to the plan. memory: of the buffers that split.reads read, by index, each registered from its
  // first element on. ring: where anything is packed; its slots are of `chunk_bytes`.
  HeldEdge(const Plan& plan, HoldSplit split, std::map<int, std::shared_ptr<RemoteMemory>> memory,
           std::shared_ptr<PackRingReader> ring, int64_t chunk_bytes);

  // Whether the publisher is to be ordered to pack.
  bool packs() const { return !split_.packed_copies.empty(); }

  struct Request {
    uint64_t generation = 0;
    const std::map<int, std::byte*>* destination;  // by index in manifest.destination
    absl::Time deadline;
  };
  void Begin(const Request& request);
  bool over() const { return read_ == split_.reads.size() && (!packs() || message_ == stream_.messages()); }
  // One copy that is read or one slot of the ring, for which it waits for at most `max_wait`. `copied` is called for
  // each copy that is complete, by its index in the plan, with the sum of what arrived. Returns the bytes that arrived,
  // 0: none came in time. Errors are `copied`'s, and those of RemoteMemory::Read and PackRingReader::Next.
  absl::StatusOr<int64_t> Step(absl::Duration max_wait,
                               absl::FunctionRef<absl::Status(size_t copy, uint64_t sum)> copied);

 private:
  const Plan& plan_;
  const HoldSplit split_;
  const EdgeStream stream_;  // of what is packed
  const std::map<int, std::shared_ptr<RemoteMemory>> memory_;
  const std::shared_ptr<PackRingReader> ring_;
  RemoteCopier copier_;
  // Of a transfer.
  Request request_;
  size_t read_ = 0;
  int64_t message_ = 0;
  std::vector<uint64_t> wanted_, got_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_HELD_EDGE_H_
