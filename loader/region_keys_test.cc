#include "loader/region_keys.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;

// Publisher 0 has what worker 0 of two engines wants, in two of its three buffers.
EpochPlan PlanOf() {
  const TensorSpec a{"a", {8}, Dtype::kF32}, b{"b", {4}, Dtype::kF32}, c{"c", {2}, Dtype::kF32};
  proto::EpochStart start;
  Manifest source;
  source.tensors = {a, b, c};
  source.source = {WholeBuffer(0, a), WholeBuffer(0, b), WholeBuffer(0, c)};
  source.topology.source = {{0, "", "", ""}};
  source.ignore = {"b"};
  auto* publisher = start.add_members();
  *publisher->mutable_id() = MemberKey::Publisher(0).ToProto();
  publisher->mutable_layout()->set_manifest_fragment(EncodeFragment(source));
  for (int engine : {0, 1}) {
    Manifest part;
    part.destination = {WholeBuffer(engine, a), WholeBuffer(engine, c)};
    part.topology.destination = {{engine, "", "", ""}};
    auto* receiver = start.add_members();
    *receiver->mutable_id() = MemberKey::Receiver(engine, 0).ToProto();
    receiver->mutable_layout()->set_manifest_fragment(EncodeFragment(part));
  }
  auto plan = EpochPlan::Make(start);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(RegionKeysTest, BothEndsKnowTheOrder) {
  const EpochPlan plan = PlanOf();
  const MemberKey first = MemberKey::Receiver(0, 0), second = MemberKey::Receiver(1, 0);
  EXPECT_THAT(ReceiversOf(plan, 0), ElementsAre(first, second));
  ASSERT_EQ(BuffersReadOf(plan, 0).size(), 2u);
  RegionKeys keys;
  keys.slots = {"header"};
  keys.sums = "sums";
  keys.rings = {{first, "ring 0"}, {second, "ring 1"}};
  for (int buffer : BuffersReadOf(plan, 0)) keys.memory[buffer] = "memory of " + plan.manifest().source[buffer].name;
  const std::vector<std::string> list = ToList(keys);
  EXPECT_THAT(list, ElementsAre("header", "sums", "ring 0", "ring 1", "memory of a", "memory of c"));
  const auto back = RegionKeysOf(list, plan, 0, /*hold=*/true);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToList(*back), list);
  EXPECT_EQ(back->rings.at(second), "ring 1");
  EXPECT_EQ(RegionKeysOf({"slot 0", "slot 1", "sums"}, plan, 0, /*hold=*/false)->sums, "sums");
}

TEST(RegionKeysTest, AnotherNumberOfKeysIsAnError) {
  const EpochPlan plan = PlanOf();
  for (size_t count = 0; count < 9; ++count) {
    const std::vector<std::string> list(count);
    EXPECT_EQ(RegionKeysOf(list, plan, 0, true).ok(), count == 6);
    EXPECT_EQ(RegionKeysOf(list, plan, 0, false).ok(), count == 3);
  }
  EXPECT_TRUE(HasCode(RegionKeysOf({}, plan, 0, true).status(), ErrorCode::kMalformed));
}

}  // namespace
}  // namespace headrace
