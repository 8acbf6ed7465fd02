#include "planner/models/hardware.h"

#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

TEST(Hardware, HasWhatPlansNeed) {
  const absl::StatusOr<Hardware> gb200 = HardwareNamed("GB200");
  ASSERT_TRUE(gb200.ok()) << gb200.status();
  EXPECT_EQ(gb200->name, "GB200");
  EXPECT_EQ(gb200->system, "GB200 NVL72");
  EXPECT_EQ(gb200->nvlink_bytes_per_second, 900e9);
  EXPECT_EQ(gb200->nic_bytes_per_second, 50e9);
  EXPECT_EQ(gb200->hbm_bytes_per_second, 8e12);
  EXPECT_EQ(gb200->nvlink_domain, 72);
  EXPECT_EQ(gb200->gpus_per_node, 4);
}

TEST(Hardware, AllMachinesAreSound) {
  EXPECT_EQ(HardwareNames(),
            (std::vector<std::string>{"B200", "B300", "GB200", "GB300", "H100", "H20", "H200", "H800", "VR200"}));
  for (const std::string& name : HardwareNames()) {
    const Hardware h = HardwareNamed(name).value();
    EXPECT_EQ(h.name, name);
    EXPECT_GT(h.nic_bytes_per_second, 10e9) << name;
    EXPECT_GT(h.nvlink_bytes_per_second, h.nic_bytes_per_second) << name;
    EXPECT_GT(h.hbm_bytes_per_second, h.nvlink_bytes_per_second) << name;
    EXPECT_GE(h.nvlink_domain, h.gpus_per_node) << name;
    EXPECT_EQ(h.nvlink_domain % h.gpus_per_node, 0) << name;
  }
}

TEST(Hardware, SaysWhichOnesThereAre) {
  const absl::Status status = HardwareNamed("A100").status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption));
  EXPECT_NE(status.message().find("\"A100\""), std::string::npos) << status;
  EXPECT_NE(status.message().find("GB300"), std::string::npos) << status;
}

}  // namespace
}  // namespace headrace
