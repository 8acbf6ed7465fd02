#ifndef HEADRACE_LOADER_SNAPSHOT_H_
#define HEADRACE_LOADER_SNAPSHOT_H_

// Writes one publisher's generation into a slot: copies (or converts) the boxes that the plan reads and sums each
// edge's copies on the way.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "loader/slot.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

class SnapshotWriter {
 public:
  // Keeps references to the manifest and the plan. `memory` holds the first element of each source buffer of the rank
  // that the plan reads, by its index in manifest.source.
  SnapshotWriter(const Manifest& manifest, const Plan& plan, int64_t source_rank,
                 std::map<int, const std::byte*> memory);

  const SlotLayout& layout() const { return layout_; }

  // The weights must not change until it returns. `slot` has layout().bytes() bytes. Uses the calling thread alone.
  void Write(absl::Span<std::byte> slot, uint64_t incarnation, uint64_t generation) const;

 private:
  // A box that one or more copies read, with the places of their sums.
  struct Tile {
    const Copy* copy;
    std::vector<int64_t> sums;
  };

  void Convert(int source, Dtype to, std::byte* snapshot) const;

  const Manifest& manifest_;
  const SlotLayout layout_;
  const std::map<int, const std::byte*> memory_;
  std::vector<Tile> tiles_;                             // by source buffer and offset
  std::map<std::string, Dtype> dtypes_;                 // of the tensors, by name
  std::map<std::pair<int, Dtype>, int64_t> converted_;  // source buffers to convert, to which dtype, and where to
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SNAPSHOT_H_
