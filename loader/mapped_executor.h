#ifndef HEADRACE_LOADER_MAPPED_EXECUTOR_H_
#define HEADRACE_LOADER_MAPPED_EXECUTOR_H_

// Transfers over transports that map: every receiver reads the publishers' slots, or what they hold (held_edge.h).
//
// Streams need no relay here. Each rank of a chain maps the slot that the stream's bytes are in and makes its own
// copies of them, checked against the sums of the stream's parts; a rank that would only pass bytes on does nothing.

#include <cstdint>
#include <optional>
#include <vector>

#include "loader/executor.h"

namespace headrace {

class MappedExecutor : public Executor {
 public:
  // `work` reaches the slots and the destinations.
  MappedExecutor(const Manifest& manifest, const Plan& plan, std::vector<IncomingEdge> edges, uint64_t incarnation,
                 BoxWork* work)
      : Executor(manifest, plan, std::move(edges)), incarnation_(incarnation), work_(work) {}

  void Begin(Request request) override;
  std::optional<absl::Status> Step(absl::Duration max_wait) override;
  void Decline(const Request&) override {}

 private:
  // The edge whose copies are being made, or the end.
  bool MoreCopies();
  absl::Status OrderPacking();
  absl::Status MakeStep(absl::Duration max_wait);
  absl::Status LoadSums();
  absl::Status MakeCopies();
  absl::Status CheckCopy(size_t copy, uint64_t sum);
  absl::Status CheckSlotOf(size_t edge) const;
  absl::Span<const std::byte> SlotOf(size_t edge) const;
  absl::Status CheckSlots();

  const uint64_t incarnation_;
  BoxWork* const work_;
  // Where the transfer is: in copy `copy_` of edge `edge_`, before its part `part_`.
  size_t edge_ = 0, copy_ = 0;
  Index part_ = 0;
  bool edge_begun_ = false, ordered_ = false;
  uint64_t sum_ = 0;              // of the copy's parts so far
  std::vector<uint64_t> wanted_;  // the publisher's sums of the edge
  absl::Time begin_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_MAPPED_EXECUTOR_H_
