#include "loader/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "loader/testing/idle_transport.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

testing::IdleTransport Sized(int64_t max_message_bytes) {
  Capabilities capabilities;
  capabilities.max_message_bytes = max_message_bytes;
  return testing::IdleTransport("sized", capabilities);
}

// "code: message", or "ok".
std::string Outcome(int64_t max_message_bytes, int64_t chunk_bytes, int64_t staging_bytes) {
  const absl::Status s = CheckStaging(Sized(max_message_bytes), chunk_bytes, staging_bytes);
  return s.ok() ? "ok" : std::string(CodeOf(s)) + ": " + std::string(s.message());
}

TEST(CheckStaging, TakesChunksFrom64BytesToTheTransportsLargestMessage) {
  for (int64_t chunk : {64, 65, 999, 1000}) EXPECT_EQ(Outcome(1000, chunk, 1000), "ok") << chunk;
  for (int64_t chunk : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{63}, int64_t{1001}, INT64_MAX}) {
    EXPECT_EQ(Outcome(1000, chunk, INT64_MAX),
              "invalid_option: chunks of " + std::to_string(chunk) + " bytes; sized takes 64 to 1000");
  }
  EXPECT_EQ(Outcome(64, 64, 64), "ok");
  EXPECT_EQ(Outcome(INT64_MAX, INT64_MAX, INT64_MAX), "ok");
}

TEST(CheckStaging, TakesATransportWithoutRoomForAChunkForNone) {
  EXPECT_THAT(Outcome(63, 63, 1000), HasSubstr("invalid_option"));
  EXPECT_THAT(Outcome(63, 64, 1000), HasSubstr("invalid_option"));
}

TEST(CheckStaging, WantsACapOfOneChunk) {
  EXPECT_EQ(Outcome(1000, 500, 500), "ok");
  EXPECT_EQ(Outcome(1000, 500, INT64_MAX), "ok");
  for (int64_t cap : {int64_t{499}, int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_THAT(Outcome(1000, 500, cap),
                AllOf(HasSubstr("staging_too_small"), HasSubstr("cap is " + std::to_string(cap) + " bytes"),
                      HasSubstr("500 bytes is needed")));
  }
}

TEST(CheckStaging, ABadChunkIsNamedBeforeASmallCap) { EXPECT_THAT(Outcome(1000, 63, 1), HasSubstr("invalid_option")); }

}  // namespace
}  // namespace headrace
