#ifndef HEADRACE_PLANNER_CLUSTER_MESSAGE_GROUPS_H_
#define HEADRACE_PLANNER_CLUSTER_MESSAGE_GROUPS_H_

// Groups of messages, for transports that launch many at once (NCCL): both ends of a pair of ranks have the same groups
// in the same order, from what each knows of its own part of the plan.
//
// A group is launched when its rank has all that it sends in it, and is over when all of it has arrived. So groups
// could wait for each other in a circle: one with bytes for a relay beside bytes from it. What is in one group
// therefore is of one *round*, an equal part of the order in which the plan sends everything, and equally many legs
// from its sender:
//
//   group (round, legs) of a pair   waits for groups (round, legs - 1) of others, and for earlier ones of the pair
//
// The busiest sender sends about kRoundBytes in a round. Where a pair has more in one than a group may have, the group
// is cut, in the order of the plan; its parts wait for no more than the whole would.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cluster/rank_plan.h"

namespace headrace {

// Of a group, at both ends. The library splits launches of more operations than its plans have room for, and then the
// two ends may split differently.
inline constexpr Index kMaxGroupOperations = 512;
// Of a group that has more than one message: two of each pair are under way.
inline constexpr Index kMaxGroupBytes = Index{64} << 20;
// Shorter rounds fill chains sooner, and take more launches.
inline constexpr Index kRoundBytes = Index{64} << 20;

// A stripe that one rank hands to another.
struct GroupMessage {
  uint32_t passage = 0;  // index into RankPlan::passages
  bool sends = false;    // to the peer; else it comes from there
};

struct MessageGroup {
  Index round = 0;
  int32_t legs = 0;    // of its messages' receivers
  uint32_t first = 0;  // index into PairMessages::messages
  uint32_t count = 0;
  Index bytes = 0;
};

struct PairMessages {
  int32_t peer = 0;                    // a node
  std::vector<GroupMessage> messages;  // in the order of their groups, within a group in the order of the plan
  std::vector<MessageGroup> groups;
};

// Into how many rounds the plan is cut, at least one.
Index RoundsOf(const ClusterPlan& plan);

// All that a rank hands to others, or gets, by peer. `rounds` is RoundsOf the plan that `rank` is a part of.
// O(messages x log(messages)).
std::vector<PairMessages> GroupMessages(const RankPlan& rank, Index rounds);

// How many groups a node takes part in. Errors: those of ReceiverPlan and SenderPlan.
absl::StatusOr<Index> CountGroups(const ClusterPlan& plan, int32_t node);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_MESSAGE_GROUPS_H_
