#include "loader/transport/nccl/address.h"

#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace::nccl {
namespace {

Address Example(const std::string& ip) {
  Address address{{}, ip, 45678};
  for (size_t i = 0; i < address.cookie.size(); ++i) address.cookie[i] = static_cast<unsigned char>(7 * i + 200);
  return address;
}

TEST(NcclAddressTest, RoundTrips) {
  for (const char* ip : {"127.0.0.1", "10.1.2.3", "fd00::5"}) {
    const auto parsed = ParseAddress(FormatAddress(Example(ip)));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->cookie, Example(ip).cookie);
    EXPECT_EQ(parsed->ip, ip);
    EXPECT_EQ(parsed->port, 45678);
  }
}

TEST(NcclAddressTest, WhatIsNoAddressIsRefusedAndNotRepeated) {
  const std::string good = FormatAddress(Example("127.0.0.1"));
  std::vector<std::string> bad = {"headrace-nccl/1/", good + "9", good + "/1", good.substr(0, good.rfind('/')) + "/0"};
  for (size_t size = 0; size < good.size() - 4; ++size) bad.push_back(good.substr(0, size));
  for (size_t i = 0; i < good.rfind('/'); ++i) bad.push_back(good.substr(0, i) + "z" + good.substr(i + 1));
  for (const std::string& text : bad) {
    const absl::Status status = ParseAddress(text).status();
    EXPECT_TRUE(HasCode(status, ErrorCode::kTransport)) << text;
    EXPECT_EQ(std::string(status.message()).find("c8cfd6"), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace headrace::nccl
