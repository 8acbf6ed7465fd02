#ifndef HEADRACE_BENCH_ONE_COPY_FLOOR_H_
#define HEADRACE_BENCH_ONE_COPY_FLOOR_H_

// The least that a refit on one host can cost: each copy of the plan once, out of the publishers' mapped slots into the
// engine's buffers, with no sums, sessions or votes; and the least that a broadcast can, which brings every byte to
// every worker.

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "loader/slot.h"
#include "loader/transport/transport.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

// The regions that a transport maps, in the order of the Map calls.
using MappedRegions = std::vector<std::shared_ptr<const Mapping>>;

// Passes everything on to `transport` and keeps what it maps alive in `regions`, so that the floor reads the very pages
// that the receiver under test reads. `regions` outlives the transport.
std::unique_ptr<Transport> KeepMappings(std::unique_ptr<Transport> transport, MappedRegions* regions);

enum class FloorCopy {
  kMemcpy,  // one memcpy for each contiguous run
  kKernel,  // kernels::Copy
};

class OneCopyFloor {
 public:
  // Of the worker `destination_rank`. Keeps references. `regions` are the worker's, in the order in which
  // Receiver::Join maps them: by edge, then by slot.
  OneCopyFloor(const Manifest& manifest, const Plan& plan, int64_t destination_rank, const MappedRegions& regions);

  // Copies `generation` into `destination` (the first element of each buffer, by its index in manifest.destination).
  // kGenerationChanged when an edge has no slot with the generation.
  absl::Status Run(uint64_t generation, FloorCopy how, const std::map<int, std::byte*>& destination) const;
  // The least that a broadcast costs this worker: one memcpy of each slot, whole, whatever the worker wants of it.
  // `destination` has bytes_of_slots() bytes.
  absl::Status RunWhole(uint64_t generation, absl::Span<std::byte> destination) const;
  // Of the slots that the worker reads, one for each publisher.
  int64_t bytes_of_slots() const;

 private:
  // The slot of the e-th edge that holds `generation`.
  absl::StatusOr<const std::byte*> SlotOf(size_t e, uint64_t generation) const;

  const Plan& plan_;
  const MappedRegions& regions_;
  std::vector<std::pair<Edge, SlotLayout>> edges_;
};

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_ONE_COPY_FLOOR_H_
