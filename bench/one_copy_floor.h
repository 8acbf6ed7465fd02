#ifndef HEADRACE_BENCH_ONE_COPY_FLOOR_H_
#define HEADRACE_BENCH_ONE_COPY_FLOOR_H_

// The least that a refit on one host can cost: each copy of the plan once, out of the publishers' mapped slots into the
// engine's buffers, with no sums, sessions or votes.

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
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

 private:
  const Plan& plan_;
  const MappedRegions& regions_;
  std::vector<std::pair<Edge, SlotLayout>> edges_;
};

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_ONE_COPY_FLOOR_H_
