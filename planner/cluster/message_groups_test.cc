#include "planner/cluster/message_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cluster/testing/random_cluster.h"

namespace headrace {
namespace {

using testing::ElementsAre;

std::vector<RankPlan> AllPlans(const ClusterPlan& plan) {
  std::vector<RankPlan> out;
  for (int32_t r = 0; r < plan.cluster().source.ranks; ++r) out.push_back(*SenderPlan(plan, r));
  for (int32_t r = 0; r < plan.cluster().destination.ranks; ++r) out.push_back(*ReceiverPlan(plan, r));
  return out;
}

// What identifies a message at both ends.
using Name = std::tuple<ItemId, Index, int32_t, int32_t>;  // item, offset, from, to

// The groups of all pairs, by the lower node of the pair; both ends must say the same.
using Groups = std::map<std::pair<int32_t, int32_t>, std::vector<std::vector<Name>>>;

Groups GroupsOf(const std::vector<RankPlan>& plans, Index rounds) {
  Groups out;
  std::map<std::pair<int32_t, int32_t>, int> ends;
  for (const RankPlan& plan : plans) {
    for (const PairMessages& pair : GroupMessages(plan, rounds)) {
      std::vector<std::vector<Name>> mine;
      for (const MessageGroup& group : pair.groups) {
        Index bytes = 0;
        mine.emplace_back();
        for (uint32_t n = group.first; n < group.first + group.count; ++n) {
          const GroupMessage& message = pair.messages[n];
          const Passage& p = plan.passages[message.passage];
          mine.back().emplace_back(p.item, p.offset, message.sends ? plan.node : pair.peer,
                                   message.sends ? pair.peer : plan.node);
          bytes += p.bytes;
        }
        EXPECT_EQ(bytes, group.bytes);
        EXPECT_LE(group.count, kMaxGroupOperations);
        EXPECT_TRUE(group.count == 1 || group.bytes <= kMaxGroupBytes);
      }
      const auto key = std::minmax(plan.node, pair.peer);
      const auto [it, fresh] = out.try_emplace(key, mine);
      EXPECT_EQ(it->second, mine) << "nodes " << key.first << ", " << key.second;
      ++ends[key];
    }
  }
  for (const auto& [pair, count] : ends) EXPECT_EQ(count, 2) << pair.first << ", " << pair.second;
  return out;
}

// Carries the groups out: a pair's one after the other, each when its senders have all of it. Returns how many are left
// when nothing goes on.
size_t Stuck(const Groups& groups, int32_t source_ranks) {
  std::set<std::tuple<ItemId, Index, int32_t>> has;
  std::map<std::pair<int32_t, int32_t>, size_t> done;
  size_t left = 0;
  for (const auto& [pair, list] : groups) left += list.size();
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [pair, list] : groups) {
      size_t& next = done[pair];
      while (next < list.size() && std::all_of(list[next].begin(), list[next].end(), [&](const Name& m) {
               const auto& [item, offset, from, to] = m;
               return from < source_ranks || has.contains({item, offset, from});
             })) {
        for (const auto& [item, offset, from, to] : list[next]) has.insert({item, offset, to});
        ++next;
        --left;
        moved = true;
      }
    }
  }
  return left;
}

TEST(MessageGroupsTest, BothEndsHaveThemAndNoneWaitsInACircle) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    RandomClusterOptions options;
    options.large = seed % 10 == 0;
    const Cluster cluster = RandomCluster(random, options);
    const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, seed % 2 == 0 ? Policy::kAuto : Policy::kHybrid);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const std::vector<RankPlan> plans = AllPlans(*plan);
    Index most = 0;
    for (const RankPlan& p : plans) {
      Index groups = 0;
      for (const PairMessages& pair : GroupMessages(p, 1)) groups += static_cast<Index>(pair.groups.size());
      EXPECT_EQ(CountGroups(*plan, p.node).value(), groups);  // a round is more than such a cluster sends
      most = std::max(most, groups);
    }
    EXPECT_GT(most, 0);
    for (Index rounds : {Index{1}, Index{3}, Index{50}}) {
      EXPECT_EQ(Stuck(GroupsOf(plans, rounds), cluster.source.ranks), 0u);
    }
    if (testing::Test::HasFailure()) return;
  }
}

// Three senders whose chains begin at different domains. In groups of all that a pair has, whatever its legs, the
// relays wait for each other.
TEST(MessageGroupsTest, WithoutLegsTheyWouldWaitInACircle) {
  Cluster cluster;
  cluster.units.push_back(MatrixUnit("w.{layer}", 512, 512, 1, 1));
  cluster.units[0].source_groups = EvenGroups(1, 1, 3);
  cluster.units[0].destination_groups = EvenGroups(1, 1, 3);
  for (int32_t l = 0; l < 6; ++l) cluster.units[0].instances.push_back({l, -1, 0, 0, 0, 0});
  cluster.source = {3, 1, 1};
  cluster.destination = {3, 1, 1};
  cluster.source_stage.assign(3, 0);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<RankPlan> plans = AllPlans(*plan);
  const Groups groups = GroupsOf(plans, 1);
  EXPECT_EQ(Stuck(groups, 3), 0u);
  Groups merged;
  for (const auto& [pair, list] : groups) {
    std::vector<Name>& all = merged[pair].emplace_back();
    for (const std::vector<Name>& group : list) all.insert(all.end(), group.begin(), group.end());
  }
  EXPECT_GT(Stuck(merged, 3), 0u);
}

// One sender and one receiver: groups are cut by operations, by bytes and by rounds.
TEST(MessageGroupsTest, AreCut) {
  RankPlan plan;
  plan.node = 0;
  for (int32_t n = 0; n < 1200; ++n) {
    Passage p;
    p.item = {0, n, 0};
    p.bytes = 1000;
    p.order = kOrderEnd / 1200 * n;
    p.next_domain = 1;
    plan.passages.push_back(p);
  }
  const auto counts = [&](Index rounds) {
    const std::vector<PairMessages> pairs = GroupMessages(plan, rounds);
    EXPECT_EQ(pairs.size(), 1u);
    std::vector<uint32_t> out;
    for (const MessageGroup& group : pairs[0].groups) out.push_back(group.count);
    return out;
  };
  EXPECT_THAT(counts(1), ElementsAre(512, 512, 176));
  EXPECT_THAT(counts(2), ElementsAre(512, 89, 512, 87));  // the first order behind the middle is that of message 601
  EXPECT_THAT(counts(4), ElementsAre(301, 300, 300, 299));
  for (Passage& p : plan.passages) p.bytes = kMaxGroupBytes / 4;
  plan.passages.resize(6);
  plan.passages[5].bytes = kMaxGroupBytes * 2;
  EXPECT_THAT(counts(1), ElementsAre(4, 1, 1));
}

}  // namespace
}  // namespace headrace
