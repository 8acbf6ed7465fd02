#include "loader/held_edge.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner/status.h"

namespace headrace {

HeldEdge::HeldEdge(const Plan& plan, HoldSplit split, std::map<int, std::shared_ptr<RemoteMemory>> memory,
                   std::shared_ptr<PackRingReader> ring, int64_t chunk_bytes)
    : plan_(plan),
      split_(std::move(split)),
      stream_(split_.packed, split_.packed.edges[0], chunk_bytes),
      memory_(std::move(memory)),
      ring_(std::move(ring)) {}

void HeldEdge::Begin(const Request& request) {
  request_ = request;
  read_ = 0;
  message_ = 0;
  wanted_.assign(split_.packed_copies.size(), 0);
  got_.assign(split_.packed_copies.size(), 0);
}

absl::StatusOr<int64_t> HeldEdge::Step(absl::Duration max_wait,
                                       absl::FunctionRef<absl::Status(size_t copy, uint64_t sum)> copied) {
  if (read_ < split_.reads.size()) {
    const HoldSplit::Read& read = split_.reads[read_++];
    const Copy& copy = plan_.copies[read.copy];
    HR_ASSIGN_OR_RETURN(const uint64_t sum, copier_.Run(copy, read.form, *memory_.at(copy.source), /*source_first=*/0,
                                                        request_.destination->at(copy.destination), request_.deadline));
    HR_RETURN_IF_ERROR(copied(read.copy, sum));
    return copy.bytes();
  }
  const auto slot = ring_->Next(request_.generation, {absl::Now() + max_wait, nullptr});
  if (HasCode(slot.status(), ErrorCode::kDeadline)) return 0;
  HR_RETURN_IF_ERROR(slot.status());
  const auto bytes = static_cast<int64_t>(slot->size());
  if (bytes != stream_.message_bytes(message_)) {
    return Error(ErrorCode::kTransport,
                 absl::StrCat("ring: a message of ", bytes, " bytes came, not of ", stream_.message_bytes(message_)));
  }
  stream_.Unpack(
      message_, *slot, [&](int buffer) { return request_.destination->at(buffer); }, absl::MakeSpan(wanted_),
      absl::MakeSpan(got_));
  ring_->Release();
  if (++message_ == stream_.messages()) {
    for (size_t i = 0; i < got_.size(); ++i) HR_RETURN_IF_ERROR(copied(split_.packed_copies[i], got_[i]));
  }
  return bytes;
}

}  // namespace headrace
