#ifndef HEADRACE_LOADER_SNAPSHOT_H_
#define HEADRACE_LOADER_SNAPSHOT_H_

// Writes one publisher's generation into a slot: copies (or converts) all that the publisher offers, and sums each copy
// of the plan's direct edges, each part of its streams, and what others offer too on the way. Of a publisher that holds
// its weights it makes the sums alone.
//
// Buffers in GPU memory are copied into a slot of the same GPU, and converted, by its kernels. Into a slot in host
// memory they are copied whole, by the GPU's copy engine, and summed there; what is converted comes piece by piece
// through pinned memory. Where they are held, the GPU sums them in place.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "loader/box_work.h"
#include "loader/gpu/device_copies.h"
#include "loader/lowering.h"
#include "loader/slot.h"
#include "planner/manifest.h"
#include "planner/plan.h"
#include "planner/replicas.h"

namespace headrace {

// Who reads and writes the bytes; all outlive the writer.
struct SnapshotMeans {
  BoxWork* work = OnCpu();     // reaches what is published: the slot, or the weights that are held
  BoxWork* regions = OnCpu();  // reaches the slots and the sums
  // Buffers of a GPU that are copied into a slot in host memory.
  std::set<int> on_gpu = {};
  DeviceCopies* gpu = nullptr;
};

class SnapshotWriter {
 public:
  // Keeps references to the manifest and the plan. `memory` holds the first element of each source buffer of the rank,
  // by its index in manifest.source; buffers without elements may be left out. `replicas` are FindReplicas' of the
  // rank.
  SnapshotWriter(const Manifest& manifest, const Plan& plan, int64_t source_rank,
                 std::map<int, const std::byte*> memory, std::vector<ReplicaSum> replicas = {}, bool hold = false,
                 SnapshotMeans means = {});

  const SlotLayout& layout() const { return layout_; }
  const SumsLayout& sums_layout() const { return sums_layout_; }

  // The weights must not change until it returns. `slot` has layout().bytes() bytes, `sums` sums_layout().slot_bytes().
  // Uses the calling thread alone, and no thread may call another of these meanwhile. Returns the replicas' sums, in
  // their order. kTransport, kOutOfMemory, kInvalidOption: what the GPU failed by; the slot holds no generation then.
  absl::StatusOr<std::vector<uint64_t>> Write(absl::Span<std::byte> slot, absl::Span<std::byte> sums,
                                              uint64_t incarnation, uint64_t generation) const;
  // Where what is published is: in the slot, or in `memory`. Lives as long as the writer and the slot.
  SourceOf Published(absl::Span<const std::byte> slot) const;
  // Whether the slot still holds what these sums were made of. Errors as Write's.
  absl::StatusOr<bool> Agrees(absl::Span<const std::byte> slot, absl::Span<const std::byte> sums,
                              absl::Span<const uint64_t> replica_sums) const;
  // The sums of a slot that was written for another plan, and agrees with its sums. Returns the replicas'. Errors as
  // Write's.
  absl::StatusOr<std::vector<uint64_t>> SumAgain(absl::Span<const std::byte> slot, absl::Span<std::byte> sums) const;

 private:
  // A box that one or more copies or parts read, with the places of their sums.
  struct Tile {
    Copy box;
    std::vector<int64_t> sums;
  };
  struct Whole {
    int source;
    int64_t snapshot;
    std::vector<BufferBox> boxes;
  };
  // A box of a replica, or what the tiles whose sums add to its sum leave of it.
  struct ReplicaBox {
    Copy box;
    size_t sum;  // index into replicas_
    bool fused;  // copied and summed at once; otherwise summed in the slot
  };

  // Of a slot, while they are made.
  struct Sums {
    std::vector<uint64_t> tiles;
    std::vector<uint64_t> replicas;  // but of what tiles add to them
  };
  Sums NoSums() const { return {std::vector<uint64_t>(tiles_.size()), std::vector<uint64_t>(replicas_.size())}; }

  void AddTiles(const Plan& plan, int64_t source_rank);
  // Also by which tiles and boxes the replicas are summed.
  void AddWholes();
  void AddReplicaBox(Copy box, size_t sum, bool fused);
  // The tensor pieces of a source buffer whose elements travel in `dtype`.
  Buffer Offered(int source, Dtype dtype) const;
  absl::Status Convert(int source, Dtype to, std::byte* snapshot) const;
  absl::Status CopyWholes(std::byte* slot) const;
  // Copies what is summed on the way.
  absl::Status CopyFused(std::byte* slot, Sums* sums) const;
  // Sums where it is published what was not summed on the way, or all of it.
  absl::Status SumPublished(absl::Span<const std::byte> slot, bool all, Sums* sums) const;
  absl::Status StoreSums(const Sums& sums, absl::Span<std::byte> region, std::vector<uint64_t>* replica_sums) const;

  const Manifest& manifest_;
  const SlotLayout layout_;
  const SumsLayout sums_layout_;
  const std::map<int, const std::byte*> memory_;
  const bool hold_;
  const SnapshotMeans means_;
  std::map<std::string, Dtype> dtypes_;  // of the tensors, by name
  std::vector<Tile> tiles_;              // by source buffer and offset
  std::vector<bool> fused_;              // by tile: copied and summed at once; otherwise summed where it is published
  std::vector<Whole> wholes_;            // copied before: on the GPU, or not made up exactly by tiles or replicas
  const std::vector<ReplicaSum> replicas_;
  std::vector<int> replica_of_tile_;  // by tile: index into replicas_, to which its sum adds; -1: none
  std::vector<ReplicaBox> replica_boxes_;
  std::map<std::pair<int, Dtype>, int64_t> converted_;  // source buffers to convert, to which dtype, and where to
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SNAPSHOT_H_
