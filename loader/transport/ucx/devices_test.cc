#include "loader/transport/ucx/devices.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace::ucx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<Device> kHere = {{"lo", "127.0.0.1"}, {"eth0", "10.0.0.5, fd00::5"}, {"mlx5_0:1", "RDMA"}};

TEST(Devices, ThoseThatAreHereAreTaken) {
  for (const char* list : {"lo", "eth0", "mlx5_0:1,eth0", "all"})
    EXPECT_TRUE(CheckDevices(list, kHere, "origin").ok()) << list;
  EXPECT_TRUE(CheckDevices("all", {}, "origin").ok());
}

TEST(Devices, OthersAreNamedAndSoIsWhatToUse) {
  for (const char* list : {"eth1", "eth0,eth1", "eth1,eth0"}) {
    const absl::Status status = CheckDevices(list, kHere, "origin");
    EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption)) << list;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'eth1'"), HasSubstr("origin"),
                                                     HasSubstr("eth0 (10.0.0.5, fd00::5); mlx5_0:1 (RDMA)")));
  }
  // UCX 1.13 takes none of these.
  for (const char* list : {"", "eth0,", "eth*", "^eth0", "mlx5_0", "eth0, lo", "10.0.0.5", "all,lo"})
    EXPECT_TRUE(HasCode(CheckDevices(list, kHere, "origin"), ErrorCode::kInvalidOption)) << list;
  EXPECT_THAT(std::string(CheckDevices("lo", {}, "origin").message()), HasSubstr("none is up"));
}

TEST(Devices, LoopbackIsHere) {
  bool loopback = false;
  for (const Device& device : DevicesHere()) {
    EXPECT_FALSE(device.name.empty() || device.what.empty());
    loopback |= device.name == "lo" && device.what.find("127.0.0.1") != std::string::npos;
  }
  EXPECT_TRUE(loopback);
}

}  // namespace
}  // namespace headrace::ucx
