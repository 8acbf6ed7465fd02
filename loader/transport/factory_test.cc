#include "loader/transport/factory.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

TEST(Factory, MakesWhatIsNamed) {
  for (absl::string_view name : {"host", "ucx"}) {
    auto transport = NewTransport(name);
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->name(), name);
  }
}

TEST(Factory, ListsTheKnownNames) {
  for (absl::string_view name : {"", "Host", "memory", "tcp"}) {
    const absl::Status status = NewTransport(name).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), testing::AllOf(testing::HasSubstr("host"), testing::HasSubstr("ucx")));
  }
}

TEST(Factory, UsesTheDevicesThatAreNamed) {
  const auto transport = NewTransport("ucx", {.devices = {"lo"}});
  EXPECT_TRUE(transport.ok()) << transport.status();
  // The one that is not there is found out, also beside one that is.
  const absl::Status status = NewTransport("ucx", {.devices = {"lo", "nosuch0"}}).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("nosuch0"));
}

TEST(Factory, RefusesDevicesThatAreNone) {
  for (const char* device : {"", "lo,eth0", ","}) {
    const absl::Status status = NewTransport("ucx", {.devices = {device}}).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("one network device"));
  }
  const absl::Status status = NewTransport("host", {.devices = {"lo"}}).status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("ucx"));
}

}  // namespace
}  // namespace headrace
