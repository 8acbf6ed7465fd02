#include "loader/mapped_executor.h"

#include <algorithm>
#include <deque>
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

// Copies are cut into parts of about this size.
constexpr Index kPartBytes = 64 << 20;

// A copy is cut along its outermost loop, or its run.
Index RowsOfPart(const Copy& copy) {
  const Index parts = copy.bytes() / kPartBytes + 1;
  return (copy.loops[0].extent + parts - 1) / parts;
}

Index Parts(const Copy& copy) {
  if (copy.loops.empty()) return std::max<Index>((copy.run_bytes + kPartBytes - 1) / kPartBytes, 1);
  const Index rows = RowsOfPart(copy);
  return (copy.loops[0].extent + rows - 1) / rows;
}

Copy PartOf(const Copy& copy, Index index) {
  Copy part = copy;
  if (copy.loops.empty()) {
    const Index done = index * kPartBytes;
    part.run_bytes = std::min(kPartBytes, copy.run_bytes - done);
    part.source_offset += done;
    part.destination_offset += done;
    part.position += done;
    return part;
  }
  const CopyLoop& outer = copy.loops[0];
  const Index row = index * RowsOfPart(copy);
  part.loops[0].extent = std::min(RowsOfPart(copy), outer.extent - row);
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
  if (first) HR_RETURN_IF_ERROR(LoadSums());
  if (edge.held == nullptr) return MakeCopies();
  if (first) edge.held->Begin({request_.generation, &request_.destination, request_.deadline});
  const auto arrived = edge.held->Step(max_wait, [&](size_t copy, uint64_t sum) {
    ++copy_;
    return CheckCopy(copy, sum);
  });
  if (!arrived.ok()) return Naming(edge, arrived.status());
  streamed_bytes_ += *arrived;
  return absl::OkStatus();
}

absl::Status MappedExecutor::LoadSums() {
  const IncomingEdge& edge = edges_[edge_];
  const size_t sums = edge.edge.stream < 0 ? edge.edge.count : plan_.streams[edge.edge.stream].parts.size();
  const std::byte* const slot = edge.sums_layout->Of(request_.slot_of_edge[edge_], edge.sums->bytes()).data();
  wanted_.resize(sums);
  return work_->LoadWords(slot + edge.sums_layout->Offset(edge.edge), absl::MakeSpan(wanted_));
}

// As many as are worth a Finish, and the rest of the edge's at most.
absl::Status MappedExecutor::MakeCopies() {
  const IncomingEdge& edge = edges_[edge_];
  const std::byte* const slot = SlotOf(edge_).data();
  const size_t first = copy_;
  std::deque<uint64_t> sums = {part_ == 0 ? 0 : sum_};  // those that copies are added to stay where they are
  Index bytes = 0;
  while (copy_ < edge.edge.count && bytes < work_->batch_bytes()) {
    const Copy& copy = plan_.copies[edge.edge.first + copy_];
    const Copy part = PartOf(copy, part_);
    work_->Copy(Lower(part, slot + edge.layout->BufferOffset(copy), request_.destination.at(copy.destination)),
                &sums.back());
    bytes += part.bytes();
    if (++part_ < Parts(copy)) continue;
    ++copy_;
    part_ = 0;
    sums.push_back(0);
  }
  HR_RETURN_IF_ERROR(work_->Finish());
  sum_ = sums.back();
  streamed_bytes_ += bytes;
  for (size_t i = first; i < copy_; ++i) HR_RETURN_IF_ERROR(CheckCopy(edge.edge.first + i, sums[i - first]));
  return absl::OkStatus();
}

absl::Status MappedExecutor::CheckCopy(size_t copy, uint64_t sum) {
  const IncomingEdge& edge = edges_[edge_];
  const int64_t at = edge.sums_layout->OffsetOfCopy(plan_, edge.edge, copy) - edge.sums_layout->Offset(edge.edge);
  const uint64_t wanted = wanted_[at / sizeof(uint64_t)];
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
  return CheckSlot(SlotOf(edge), incarnation_, request_.generation, edges_[edge].name, work_);
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
