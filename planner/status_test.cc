#include "planner/status.h"

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(Status, EveryCodeHasItsOwnNameAndSurvivesTheWire) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const std::string name(CodeName(code));
    EXPECT_TRUE(names.insert(name).second) << name;
    const absl::Status status = Error(code, "message");
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(CodeOf(status), name);
    EXPECT_TRUE(HasCode(status, code));
    EXPECT_EQ(status.message(), "message");
    EXPECT_EQ(ErrorFromName(name, "message"), status);
  }
}

TEST(Status, ManifestCodesAreSpelledAsDocumented) {
  const char* const names[] = {"malformed", "unknown_tensor",   "shape_mismatch", "out_of_bounds", "dtype_mismatch",
                               "overlap",   "misaligned_block", "conflict",       "uncovered",     "unwanted"};
  for (size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(CodeName(static_cast<ErrorCode>(i)), names[i]);
    EXPECT_EQ(Error(static_cast<ErrorCode>(i), "").code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Status, AbslCodesSayWhatTheCallerCanDo) {
  EXPECT_EQ(Error(ErrorCode::kPeerLost, "").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Error(ErrorCode::kDeadline, "").code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Error(ErrorCode::kWrongJob, "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Error(ErrorCode::kOutOfMemory, "").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Error(ErrorCode::kReplicaDivergence, "").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Error(ErrorCode::kDestinationMoved, "").code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Status, ForeignStatusesAreInternal) {
  EXPECT_EQ(CodeOf(absl::OkStatus()), "");
  EXPECT_EQ(CodeOf(absl::NotFoundError("x")), "internal");
  EXPECT_EQ(CodeOf(ErrorFromName("no such code", "x")), "internal");
  absl::Status status = absl::NotFoundError("x");
  status.SetPayload("headrace/code", absl::Cord("no such code"));
  EXPECT_EQ(CodeOf(status), "internal");
}

absl::StatusOr<int> Half(int x) {
  if (x % 2) return Error(ErrorCode::kInvalidOption, "odd");
  return x / 2;
}

absl::Status Quarter(int x, int* out) {
  HR_ASSIGN_OR_RETURN(const int half, Half(x));
  HR_ASSIGN_OR_RETURN(*out, Half(half));
  HR_RETURN_IF_ERROR(absl::OkStatus());
  return absl::OkStatus();
}

TEST(Status, MacrosReturnTheFirstError) {
  int out = 0;
  EXPECT_TRUE(Quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  EXPECT_TRUE(HasCode(Quarter(6, &out), ErrorCode::kInvalidOption));
  EXPECT_TRUE(HasCode(Quarter(5, &out), ErrorCode::kInvalidOption));
}

}  // namespace
}  // namespace headrace
