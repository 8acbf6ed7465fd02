#ifndef HEADRACE_PLANNER_PLAN_H_
#define HEADRACE_PLANNER_PLAN_H_

// The copies that turn source buffers into destination buffers. A plan is a pure function of the manifest and the
// options: every rank that builds it from the same ones gets the same bytes (compare digests, digest.h). It is
// immutable, and holds indices into the manifest's lists, so it is used together with the manifest that it was built
// from.
//
// Bytes go one of two ways. On a *direct* edge a source rank's bytes go to one destination rank. Through a *stream*
// bytes that several places want travel once along a chain of destination ranks, each of which passes on what it gets:
//
//   source rank 0 --parts--> destination rank 2 --parts--> destination rank 3     Stream{0, chain {2, 3}, parts}
//                            | copies of edge             | copies of edge
//                            | (0, 2, stream)             | (0, 3, stream)
//
// The copies of all edges, direct ones and those of streams, together write each destination byte exactly once.

#include <cstdint>
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
  int part = -1;        // on an edge of a stream: index into the stream's parts; otherwise -1
  Index source_offset = 0;
  Index destination_offset = 0;
  Index position = 0;
  Index run_bytes = 0;
  absl::InlinedVector<CopyLoop, 2> loops;  // at most kMaxCopyLoops

  Index bytes() const;
};

struct PartLoop {
  Index extent = 0;  // >= 2
  Index source_stride = 0;
  Index position_stride = 0;

  bool operator==(const PartLoop&) const = default;
};

// A box of a source buffer as a stream carries it: the runs one behind the other, in the order of the loops, outermost
// first. Numbers as those of a Copy. Each copy of the part (Copy::part) has exactly this source side: the same tensor,
// source, source_offset, position and run_bytes, and loops of the same extents, source and position strides in the same
// order. So the n-th run of the part, n * run_bytes behind the part's beginning, is the n-th run of the copy.
struct Part {
  int tensor = 0;  // index into manifest.tensors
  int source = 0;  // index into manifest.source
  Index source_offset = 0;
  Index position = 0;
  Index run_bytes = 0;
  absl::InlinedVector<PartLoop, 2> loops;  // at most kMaxCopyLoops

  Index bytes() const;
};

// Bytes that travel once from a source rank along a chain of destination ranks. The source rank sends to chain[0], each
// rank passes every byte on to the next. All are of one engine: engines take generations when they like, and none may
// hold up another.
struct Stream {
  int64_t source_rank = 0;
  std::vector<int64_t> chain;  // destination ranks, not empty, all different
  std::vector<Part> parts;     // one behind the other; each is wanted by a copy of some rank of the chain

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

// Copies [first, first + count) of a plan, whose bytes come from one source rank to one destination rank.
struct Edge {
  int64_t source_rank = 0;
  int64_t destination_rank = 0;
  size_t first = 0;
  size_t count = 0;
  int stream = -1;  // index into the plan's streams by which the bytes come; -1: direct, private to the two ranks
};

struct Plan {
  // In the order of edges. On a direct edge by destination buffer and destination offset; on an edge of a stream by
  // part, then destination buffer and offset.
  std::vector<Copy> copies;
  std::vector<ZeroFill> zero_fills;  // by destination buffer
  std::vector<Decision> decisions;   // one per tensor
  // By destination rank, source rank, stream. At most one direct edge for a pair of ranks, never empty; exactly one
  // edge for each rank of a stream's chain, also where the rank only passes bytes on (count 0).
  std::vector<Edge> edges;
  std::vector<Stream> streams;
};

// Which tensors are broadcast rather than resharded.
enum class Policy {
  kAuto,    // none: everything is resharded
  kHybrid,  // QKV and Mamba weights, by their names (broadcast_policy.h)
};

absl::string_view PolicyName(Policy policy);
// kInvalidOption for a name that is none of PolicyName's.
absl::StatusOr<Policy> ParsePolicy(absl::string_view name);

struct PlanOptions {
  Policy policy = Policy::kAuto;
};

// Validates the manifest, plans it and proves the plan (coverage.h). Errors: those of Validate, Intersect and
// ProveCoverage. Time and memory grow with pieces and copies, not with elements.
//
// Which source rank sends what: see balance.h. Where a source rank of the destination's own host (Placement::host)
// offers the bytes, only such ranks are candidates.
//
// A resharded tensor's bytes go on direct edges, except for those that two or more places on one host want and that no
// source rank of that host offers: these are relayed through streams, so that each distinct byte enters a host once.
// The chain of such a stream are the ranks that want all of it, and chains of one host begin at different ranks, so
// that the bytes that enter the host are shared among its ranks. Where all ranks are on one host nothing is relayed.
//
// A broadcast tensor goes through streams, each byte gathered once from one source rank. The chain are all destination
// ranks that hold any of the tensor, those of the source rank's host first, then by host, domain and rank.
absl::StatusOr<Plan> BuildPlan(const Manifest& manifest, const PlanOptions& options = {});

// What a plan moves. "Needed" are the destinations' tensor bytes, "wire" the payload that enters destination ranks: a
// stream enters each rank of its chain whole. Sums past 2^63 - 1 are 2^63 - 1.
struct PlanFigures {
  Index tensors = 0;
  Index copies = 0;
  Index streams = 0;
  Index needed_bytes = 0;
  Index wire_bytes = 0;
  Index reshard_bytes = 0;    // of wire_bytes
  Index broadcast_bytes = 0;  // of wire_bytes
  Index host_wire_bytes = 0;  // what enters destination hosts from other hosts
  // Tensor bytes that destination hosts want and none of their own sources offers, once for each engine of the host.
  Index distinct_host_bytes = 0;
  Index direct_bytes = 0;  // of what is written
  Index loader_bytes = 0;  // of what is written
  Index zero_bytes = 0;
  Index busiest_sender_bytes = 0;     // of what source ranks send: a stream counts once
  double sender_max_over_mean = 1.0;  // over the source ranks that hold a piece
};
// `plan` is one that BuildPlan made from `manifest`.
PlanFigures Measure(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_PLAN_H_
