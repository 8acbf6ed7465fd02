#ifndef HEADRACE_PLANNER_PLAN_H_
#define HEADRACE_PLANNER_PLAN_H_

// The copies that turn source buffers into destination buffers. A plan is a pure function of the manifest: every rank
// that builds it from the same manifest gets the same bytes (compare digests, digest.h). It is immutable, and holds
// indices into the manifest's lists, so it is used together with the manifest that it was built from.

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/manifest.h"

namespace headrace {

// One loop around a contiguous run. Strides in bytes; extent >= 2.
struct CopyLoop {
  Index extent = 0;
  Index source_stride = 0;
  Index destination_stride = 0;
  Index position_stride = 0;

  bool operator==(const CopyLoop&) const = default;
};

inline constexpr size_t kMaxCopyLoops = 4;

// One strided copy: `run_bytes` contiguous bytes in source, destination and tensor, repeated by the loops, outermost
// first. Offsets are in bytes from the buffer's first element; a source buffer's bytes are those of its snapshot, which
// has the buffer's strides and the tensor's dtype. `position` is the place in the tensor's own row-major bytes.
struct Copy {
  int tensor = 0;       // index into manifest.tensors
  int source = 0;       // index into manifest.source
  int destination = 0;  // index into manifest.destination
  Index source_offset = 0;
  Index destination_offset = 0;
  Index position = 0;
  Index run_bytes = 0;
  absl::InlinedVector<CopyLoop, 2> loops;  // at most kMaxCopyLoops

  Index bytes() const;
};

// A box of a destination buffer that is zero after each generation; loops carry destination strides only.
struct ZeroFill {
  int destination = 0;
  Index destination_offset = 0;
  Index run_bytes = 0;
  absl::InlinedVector<CopyLoop, 2> loops;
};

enum class TransferKind { kReshard, kBroadcast };
enum class InstallKind { kDirect, kLoader };

absl::string_view TransferName(TransferKind kind);
absl::string_view InstallName(InstallKind kind);

// How one tensor travels and lands, and why.
struct Decision {
  TransferKind transfer = TransferKind::kReshard;
  InstallKind install = InstallKind::kDirect;
  std::string reason;
};

// Copies [first, first + count) of a plan go from one source rank to one destination rank.
struct Edge {
  int64_t source_rank = 0;
  int64_t destination_rank = 0;
  size_t first = 0;
  size_t count = 0;
};

struct Plan {
  // By destination rank, source rank, destination buffer, destination offset.
  std::vector<Copy> copies;
  std::vector<ZeroFill> zero_fills;  // by destination buffer
  std::vector<Decision> decisions;   // one per tensor
  std::vector<Edge> edges;           // in the order of copies
};

// Validates the manifest, plans it and proves the plan (coverage.h). Errors: those of Validate, Intersect and
// ProveCoverage. Time and memory grow with pieces and copies, not with elements.
absl::StatusOr<Plan> BuildPlan(const Manifest& manifest);

// What a plan moves. "Needed" are the destinations' tensor bytes, "wire" the payload that enters destination ranks.
// Sums past 2^63 - 1 are 2^63 - 1.
struct PlanFigures {
  Index tensors = 0;
  Index copies = 0;
  Index needed_bytes = 0;
  Index wire_bytes = 0;
  Index reshard_bytes = 0;
  Index broadcast_bytes = 0;
  Index direct_bytes = 0;
  Index loader_bytes = 0;
  Index zero_bytes = 0;
  Index busiest_sender_bytes = 0;
  double sender_max_over_mean = 1.0;  // over the source ranks that hold a piece
};
PlanFigures Measure(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_PLAN_H_
