#include "planner/layout/engines.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

TEST(AddEngine, RanksFollowAndAreNamed) {
  const TensorSpec t = {"t", {2}, Dtype::kBF16};
  Manifest m;
  ASSERT_TRUE(AddEngine(m, "large", {{WholeBuffer(0, t)}, {WholeBuffer(1, t)}}).ok());
  ASSERT_TRUE(AddEngine(m, "small", {{WholeBuffer(0, t)}}).ok());
  ASSERT_TRUE(AddEngine(m, "idle", {{}}).ok());
  ASSERT_EQ(m.destination.size(), 3u);
  for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(m.destination[r].rank, r);
  ASSERT_EQ(m.topology.destination.size(), 4u);
  const char* engines[] = {"large", "large", "small", "idle"};
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_EQ(m.topology.destination[r].rank, r);
    EXPECT_EQ(m.topology.destination[r].engine, engines[r]);
  }
  EXPECT_EQ(CodeOf(AddEngine(m, "small", {})), "invalid_option");
  EXPECT_EQ(CodeOf(AddEngine(m, "", {})), "invalid_option");
  m.destination.push_back(WholeBuffer(9, t));
  EXPECT_EQ(CodeOf(AddEngine(m, "next", {})), "malformed");
}

}  // namespace
}  // namespace headrace
