#include "loader/mapped_executor.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/strided_copy.h"
#include "loader/lowering.h"
#include "planner/status.h"

namespace headrace {
namespace {

// A copy is one step between two looks at `interrupted`; longer ones are cut into steps of about this size.
constexpr Index kStepBytes = 64 << 20;

// Steps of a copy, which is cut along its outermost loop, or its run.
Index RowsOfStep(const Copy& copy) {
  const Index steps = copy.bytes() / kStepBytes + 1;
  return (copy.loops[0].extent + steps - 1) / steps;
}

Index Steps(const Copy& copy) {
  if (copy.loops.empty()) return std::max<Index>((copy.run_bytes + kStepBytes - 1) / kStepBytes, 1);
  const Index rows = RowsOfStep(copy);
  return (copy.loops[0].extent + rows - 1) / rows;
}

Copy StepOf(const Copy& copy, Index step) {
  Copy part = copy;
  if (copy.loops.empty()) {
    const Index done = step * kStepBytes;
    part.run_bytes = std::min(kStepBytes, copy.run_bytes - done);
    part.source_offset += done;
    part.destination_offset += done;
    part.position += done;
    return part;
  }
  const CopyLoop& outer = copy.loops[0];
  const Index row = step * RowsOfStep(copy);
  part.loops[0].extent = std::min(RowsOfStep(copy), outer.extent - row);
  part.source_offset += row * outer.source_stride;
  part.destination_offset += row * outer.destination_stride;
  part.position += row * outer.position_stride;
  return part;
}

// An error of the way to what a publisher holds, with its name.
absl::Status Naming(const IncomingEdge& edge, const absl::Status& status) {
  if (HasCode(status, ErrorCode::kVerificationFailed) || HasCode(status, ErrorCode::kGenerationChanged)) return status;
  return About(WithMessage(status, absl::StrCat("receiving from ", edge.name, ": ", status.message())),
               {.peer = edge.name});
}

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

}  // namespace

void MappedExecutor::Begin(Request request) {
  request_ = std::move(request);
  stats_ = {};
  streamed_bytes_ = 0;
  edge_ = copy_ = 0;
  part_ = 0;
  edge_begun_ = ordered_ = false;
  begin_ = absl::Now();
}

std::optional<absl::Status> MappedExecutor::Step(absl::Duration max_wait) {
  if (MoreCopies()) {
    if (absl::Status made = MakeStep(max_wait); !made.ok()) return made;
    if (MoreCopies()) return std::nullopt;
  }
  stats_.transfer_seconds = Seconds(begin_);
  return CheckSlots();
}

bool MappedExecutor::MoreCopies() {
  while (edge_ < edges_.size() && copy_ == edges_[edge_].edge.count) {
    ++edge_;
    copy_ = 0;
    edge_begun_ = false;
  }
  return edge_ < edges_.size();
}

// All publishers pack at once, each as far as its ring reaches.
absl::Status MappedExecutor::OrderPacking() {
  std::set<std::string> ordered;
  for (size_t e = 0; e < edges_.size(); ++e) {
    if (edges_[e].held == nullptr || !edges_[e].held->packs() || !ordered.insert(edges_[e].address).second) continue;
    HR_RETURN_IF_ERROR(request_.start(e));
  }
  return absl::OkStatus();
}

absl::Status MappedExecutor::MakeStep(absl::Duration max_wait) {
  const IncomingEdge& edge = edges_[edge_];
  HR_RETURN_IF_ERROR(request_.interrupted());
  if (absl::Now() > request_.deadline) {
    return Error(ErrorCode::kDeadline, absl::StrCat("the transfer from ", edge.name, " did not end in time"));
  }
  if (!std::exchange(ordered_, true)) HR_RETURN_IF_ERROR(OrderPacking());
  const bool first = !std::exchange(edge_begun_, true);
  if (first) HR_RETURN_IF_ERROR(CheckSlotOf(edge_));
  if (edge.held == nullptr) return MakePartOfCopy();
  if (first) edge.held->Begin({request_.generation, &request_.destination, request_.deadline});
  const auto arrived = edge.held->Step(max_wait, [&](size_t copy, uint64_t sum) {
    ++copy_;
    return CheckCopy(copy, sum);
  });
  if (!arrived.ok()) return Naming(edge, arrived.status());
  streamed_bytes_ += *arrived;
  return absl::OkStatus();
}

absl::Status MappedExecutor::MakePartOfCopy() {
  const IncomingEdge& edge = edges_[edge_];
  const size_t index = edge.edge.first + copy_;
  const Copy& copy = plan_.copies[index];
  const Copy part = StepOf(copy, part_);
  if (part_ == 0) sum_ = 0;
  sum_ += kernels::CopyAndSum(
      Lower(part, SlotOf(edge_).data() + edge.layout->BufferOffset(copy), request_.destination.at(copy.destination)));
  streamed_bytes_ += part.bytes();
  if (++part_ < Steps(copy)) return absl::OkStatus();
  ++copy_;
  part_ = 0;
  return CheckCopy(index, sum_);
}

absl::Status MappedExecutor::CheckCopy(size_t copy, uint64_t sum) {
  const IncomingEdge& edge = edges_[edge_];
  const std::byte* sums = edge.sums_layout->Of(request_.slot_of_edge[edge_], edge.sums->bytes()).data();
  uint64_t wanted = 0;
  std::memcpy(&wanted, sums + edge.sums_layout->OffsetOfCopy(plan_, edge.edge, copy), sizeof wanted);
  // Sums that differ because the slot was overwritten, or the weights changed, meanwhile are no corruption.
  if (wanted != sum) HR_RETURN_IF_ERROR(CheckSlotOf(edge_));
  HR_RETURN_IF_ERROR(CheckSum(edge, copy, wanted, sum));
  CountCopy(copy);
  return absl::OkStatus();
}

absl::Span<const std::byte> MappedExecutor::SlotOf(size_t edge) const {
  return edges_[edge].slots[request_.slot_of_edge[edge]]->bytes();
}

absl::Status MappedExecutor::CheckSlotOf(size_t edge) const {
  return CheckSlot(SlotOf(edge), incarnation_, request_.generation, edges_[edge].name);
}

absl::Status MappedExecutor::CheckSlots() {
  const absl::Time verify = absl::Now();
  for (size_t e = 0; e < edges_.size(); ++e) {
    if (edges_[e].edge.count > 0) HR_RETURN_IF_ERROR(CheckSlotOf(e));
  }
  stats_.verify_seconds = Seconds(verify);
  return absl::OkStatus();
}

}  // namespace headrace
