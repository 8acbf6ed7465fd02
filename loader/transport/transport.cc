#include "loader/transport/transport.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status NoRead(const Transport& transport) {
  return Error(ErrorCode::kTransport, absl::StrCat("read: ", transport.capabilities().read_reason));
}

}  // namespace

// What a transport without `read` says.
absl::StatusOr<std::unique_ptr<Registration>> Transport::Register(absl::Span<const std::byte>) { return NoRead(*this); }
absl::Status Transport::CheckRead(PeerId) const { return NoRead(*this); }
absl::StatusOr<std::unique_ptr<RemoteMemory>> Transport::OpenRemote(PeerId, absl::string_view, absl::Time) {
  return NoRead(*this);
}

absl::Status CheckRanges(absl::Span<const ReadRange> ranges, int64_t bytes) {
  for (const ReadRange& range : ranges) {
    if (range.offset >= 0 && range.bytes >= 0 && range.offset <= bytes && range.bytes <= bytes - range.offset) continue;
    return Error(ErrorCode::kOutOfBounds, absl::StrCat("read: ", range.bytes, " bytes at ", range.offset,
                                                       " are not in the ", bytes, " bytes that the peer registered"));
  }
  return absl::OkStatus();
}

}  // namespace headrace
