#ifndef HEADRACE_PLANNER_STATUS_H_
#define HEADRACE_PLANNER_STATUS_H_

// Typed errors. Every error that leaves Headrace is an absl::Status whose payload carries one stable code; the
// message names the tensor, buffer, rank or peer and says what to do. The absl code says what the caller can do:
// kInvalidArgument - fix the input; kUnavailable - a peer is gone, start again at a higher level;
// kFailedPrecondition - fix the state first; kDeadlineExceeded - a wait ended; kPermissionDenied - credentials;
// kResourceExhausted - memory, files or disk; kDataLoss - bytes that arrived are not the bytes that were sent.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace headrace {

// Stable: the spelling (CodeName) is part of the CLI's JSON output. Add, never rename.
enum class ErrorCode {
  // Manifest errors, in the order in which they are looked for.
  kMalformed,
  kUnknownTensor,
  kShapeMismatch,
  kOutOfBounds,
  kDtypeMismatch,
  kOverlap,
  kMisalignedBlock,
  kConflict,
  kUncovered,
  kUnwanted,
  // Planning and session errors.
  kPlanInvalid,      // the coverage proof refused a plan: a defect of the planner, or a plan that was tampered with
  kPlanMismatch,     // two ends of an edge made different plans
  kWrongJob,         // a peer of another job, or of another incarnation of this job
  kUnauthenticated,  // the job token is wrong
  kStaleEpoch,       // a message of an epoch that is over
  kGenerationNotGrowing,  // publish(g) with g not above the last generation of this incarnation
  kPeerLost,              // a process of the job died or fell silent
  kDeadline,              // a wait ended without its event
  kVerificationFailed,    // a tile's sum differs from the publisher's
  kReplicaDivergence,     // replicas of one shard hold different bytes
  kDestinationMoved,      // the engine's buffers are not where they were declared
  kGenerationChanged,     // a snapshot changed while it was read
  kPoisoned,              // live weights are partly written; nothing may be served until a full generation commits
  kAborted,               // the generation was given up; the old one still serves
  // Machine errors.
  kOutOfMemory,      // memory, a file-size limit or a full file system; says the bytes that were needed
  kStagingTooSmall,  // the staging cap is below one indivisible unit
  kAddressInUse,
  kIo,         // a file cannot be read or written, or is not what it claims to be
  kTransport,  // the transport's own failure
  kInvalidOption,
  kInternal,
};

// "malformed", "unknown_tensor", ...
absl::string_view CodeName(ErrorCode code);

// A status of the absl code that belongs to `code`, with the payload set.
absl::Status Error(ErrorCode code, absl::string_view message);

// The code of a status made by Error; "internal" for a non-OK status without payload, "" for OK.
absl::string_view CodeOf(const absl::Status& status);
bool HasCode(const absl::Status& status, ErrorCode code);

// The error that a peer reported by name and message; an unknown name becomes kInternal.
absl::Status ErrorFromName(absl::string_view name, absl::string_view message);

// What an error is about, for programs; the message says it in words. Empty where it does not apply.
struct ErrorSubject {
  std::string tensor = {};
  std::string buffer = {};
  std::optional<int64_t> rank = {};  // of the side that the message names
  std::string peer = {};             // a member of the job: "publisher 0 (host a, pid 7)"

  friend bool operator==(const ErrorSubject&, const ErrorSubject&) = default;
};

// `status` with what it is about. Fields that it names already stay as they are; OK stays OK.
absl::Status About(absl::Status status, const ErrorSubject& subject);
ErrorSubject SubjectOf(const absl::Status& status);

// `status` with another message: the code and the subject stay. OK stays OK.
absl::Status WithMessage(const absl::Status& status, absl::string_view message);

// Returns from the enclosing function when `expr` is not OK.
#define HR_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status hr_status = (expr); !hr_status.ok()) return hr_status; \
  } while (false)

// HR_ASSIGN_OR_RETURN(auto x, F()): moves F()'s value into x or returns its status.
#define HR_CONCAT_INNER(a, b) a##b
#define HR_CONCAT(a, b) HR_CONCAT_INNER(a, b)
#define HR_ASSIGN_OR_RETURN(lhs, expr) HR_ASSIGN_OR_RETURN_IMPL(HR_CONCAT(hr_statusor_, __LINE__), lhs, expr)
#define HR_ASSIGN_OR_RETURN_IMPL(var, lhs, expr) \
  auto var = (expr);                             \
  if (!var.ok()) return var.status();            \
  lhs = *std::move(var)

}  // namespace headrace

#endif  // HEADRACE_PLANNER_STATUS_H_
