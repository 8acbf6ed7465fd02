#include "planner/status.h"

#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr absl::string_view kPayloadUrl = "headrace/code";
constexpr absl::string_view kTensorUrl = "headrace/tensor", kBufferUrl = "headrace/buffer", kRankUrl = "headrace/rank",
                            kPeerUrl = "headrace/peer";

struct Entry {
  ErrorCode code;
  absl::string_view name;
  absl::StatusCode status;
};

constexpr std::array kEntries = {
    Entry{ErrorCode::kMalformed, "malformed", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kUnknownTensor, "unknown_tensor", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kShapeMismatch, "shape_mismatch", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kOutOfBounds, "out_of_bounds", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kDtypeMismatch, "dtype_mismatch", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kOverlap, "overlap", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kMisalignedBlock, "misaligned_block", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kConflict, "conflict", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kUncovered, "uncovered", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kUnwanted, "unwanted", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kPlanInvalid, "plan_invalid", absl::StatusCode::kInternal},
    Entry{ErrorCode::kPlanMismatch, "plan_mismatch", absl::StatusCode::kFailedPrecondition},
    Entry{ErrorCode::kWrongJob, "wrong_job", absl::StatusCode::kPermissionDenied},
    Entry{ErrorCode::kUnauthenticated, "unauthenticated", absl::StatusCode::kPermissionDenied},
    Entry{ErrorCode::kStaleEpoch, "stale_epoch", absl::StatusCode::kFailedPrecondition},
    Entry{ErrorCode::kGenerationNotGrowing, "generation_not_growing", absl::StatusCode::kFailedPrecondition},
    Entry{ErrorCode::kPeerLost, "peer_lost", absl::StatusCode::kUnavailable},
    Entry{ErrorCode::kDeadline, "deadline", absl::StatusCode::kDeadlineExceeded},
    Entry{ErrorCode::kVerificationFailed, "verification_failed", absl::StatusCode::kDataLoss},
    Entry{ErrorCode::kReplicaDivergence, "replica_divergence", absl::StatusCode::kDataLoss},
    Entry{ErrorCode::kDestinationMoved, "destination_moved", absl::StatusCode::kFailedPrecondition},
    Entry{ErrorCode::kGenerationChanged, "generation_changed", absl::StatusCode::kDataLoss},
    Entry{ErrorCode::kPoisoned, "poisoned", absl::StatusCode::kFailedPrecondition},
    Entry{ErrorCode::kAborted, "aborted", absl::StatusCode::kAborted},
    Entry{ErrorCode::kOutOfMemory, "out_of_memory", absl::StatusCode::kResourceExhausted},
    Entry{ErrorCode::kStagingTooSmall, "staging_too_small", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kAddressInUse, "address_in_use", absl::StatusCode::kFailedPrecondition},
    Entry{ErrorCode::kIo, "io", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kTransport, "transport", absl::StatusCode::kUnavailable},
    Entry{ErrorCode::kInvalidOption, "invalid_option", absl::StatusCode::kInvalidArgument},
    Entry{ErrorCode::kInternal, "internal", absl::StatusCode::kInternal},
};

const Entry& Find(ErrorCode code) {
  for (const Entry& e : kEntries) {
    if (e.code == code) return e;
  }
  return kEntries.back();
}

}  // namespace

absl::string_view CodeName(ErrorCode code) { return Find(code).name; }

absl::Status Error(ErrorCode code, absl::string_view message) {
  const Entry& entry = Find(code);
  absl::Status status(entry.status, message);
  status.SetPayload(kPayloadUrl, absl::Cord(entry.name));
  return status;
}

absl::string_view CodeOf(const absl::Status& status) {
  if (status.ok()) return "";
  if (auto payload = status.GetPayload(kPayloadUrl); payload.has_value()) {
    for (const Entry& e : kEntries) {
      if (*payload == e.name) return e.name;
    }
  }
  return CodeName(ErrorCode::kInternal);
}

bool HasCode(const absl::Status& status, ErrorCode code) { return CodeOf(status) == CodeName(code); }

absl::Status ErrorFromName(absl::string_view name, absl::string_view message) {
  for (const Entry& e : kEntries) {
    if (e.name == name) return Error(e.code, message);
  }
  return Error(ErrorCode::kInternal, message);
}

absl::Status About(absl::Status status, const ErrorSubject& subject) {
  auto set = [&](absl::string_view url, const std::string& value) {
    if (!value.empty() && !status.GetPayload(url)) status.SetPayload(url, absl::Cord(value));
  };
  if (status.ok()) return status;
  set(kTensorUrl, subject.tensor);
  set(kBufferUrl, subject.buffer);
  if (subject.rank) set(kRankUrl, absl::StrCat(*subject.rank));
  set(kPeerUrl, subject.peer);
  return status;
}

ErrorSubject SubjectOf(const absl::Status& status) {
  auto get = [&](absl::string_view url) { return std::string(status.GetPayload(url).value_or(absl::Cord())); };
  ErrorSubject subject{get(kTensorUrl), get(kBufferUrl), std::nullopt, get(kPeerUrl)};
  int64_t rank;
  if (absl::SimpleAtoi(get(kRankUrl), &rank)) subject.rank = rank;
  return subject;
}

absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status out(status.code(), message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

}  // namespace headrace
