#include "loader/control/listen_address.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(ListenAddress, AddressesOfBothKindsAndNames) {
  const auto host = [](const std::string& given) {
    const auto where = ResolveListenAddress(given, 7);
    return where.ok() ? where->HostPort(where->port) + (where->loopback ? " stays" : " leaves")
                      : std::string(where.status().message());
  };
  EXPECT_EQ(host("127.0.0.1"), "127.0.0.1:7 stays");
  EXPECT_EQ(host("127.9.9.9"), "127.9.9.9:7 stays");
  EXPECT_EQ(host("::1"), "[::1]:7 stays");
  EXPECT_EQ(host("[::1]"), "[::1]:7 stays");
  EXPECT_EQ(host("0.0.0.0"), "0.0.0.0:7 leaves");
  EXPECT_EQ(host("::"), "[::]:7 leaves");
  EXPECT_EQ(host("2001:db8::5"), "[2001:db8::5]:7 leaves");
  EXPECT_EQ(host("::ffff:127.0.0.1"), "[::ffff:127.0.0.1]:7 stays");
  EXPECT_THAT(host("localhost"), AnyOf("127.0.0.1:7 stays", "[::1]:7 stays"));
}

TEST(ListenAddress, WhatCannotBeResolvedIsNamed) {
  for (const char* host : {"no-such-host.invalid", "300.1.1.1", "1:2:3", "-"}) {
    const absl::Status status = ResolveListenAddress(host, 0).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(host));
    EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1")) << "the addresses that there are";
  }
  for (const char* host : {"", "[]"})
    EXPECT_TRUE(HasCode(ResolveListenAddress(host, 0).status(), ErrorCode::kInvalidOption));
  for (int port : {-1, 65536})
    EXPECT_TRUE(HasCode(ResolveListenAddress("127.0.0.1", port).status(), ErrorCode::kInvalidOption));
}

TEST(ListenAddress, WhatStaysOnThisMachine) {
  for (const char* address : {"127.0.0.1:4711", "127.3.2.1:1", "[::1]:4711", "[::1]", "::1", "localhost:4711",
                              "LocalHost:1", "[::ffff:127.0.0.1]:5", "127.0.0.1"})
    EXPECT_TRUE(StaysOnThisMachine(address)) << address;
  for (const char* address :
       {"10.0.0.1:4711", "128.0.0.1:1", "[2001:db8::1]:4711", "trainer:4711", "localhost.example:1", "0.0.0.0:1",
        "[::]:1", "127.0.0.1.example:1", "", ":", "dns:///127.0.0.1:1", "unix:127.0.0.1", "127.0.0.1:1,10.0.0.1:1",
        "ipv4:10.0.0.1:1,127.0.0.1:1"})
    EXPECT_FALSE(StaysOnThisMachine(address)) << address;
}

TEST(ListenAddress, TheHostOfAnAddress) {
  EXPECT_EQ(HostOf("trainer:4711"), "trainer");
  EXPECT_EQ(HostOf("[fe80::1%eth0]:4711"), "fe80::1%eth0");
  EXPECT_EQ(HostOf("[::1]"), "::1");
  EXPECT_EQ(HostOf("fe80::2"), "fe80::2");
  EXPECT_EQ(HostOf("trainer"), "trainer");
  EXPECT_EQ(HostOf(":1"), "");
}

}  // namespace
}  // namespace headrace
