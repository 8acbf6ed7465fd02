#ifndef HEADRACE_PLANNER_CLUSTER_TESTING_CARRY_OUT_H_
#define HEADRACE_PLANNER_CLUSTER_TESTING_CARRY_OUT_H_

// Test only. Carries out the plans of all ranks, literally: bytes in memories, messages in queues.
//
// Independent of the planner: it reads cluster and rank plans as data. Each tensor of each instance has a pattern of
// its own (testing/element_oracle.h); destinations start as 0xA5 bytes. Every rank does its passages strictly one after
// the other, in the order of its plan; between two ranks messages arrive in the order in which they were sent, without
// a name. So ranks that disagree about an order mix bytes up or wait for ever.

#include <string>
#include <vector>

#include "planner/cluster/cluster.h"
#include "planner/cluster/rank_plan.h"

namespace headrace {

// senders[r] is of source rank r, receivers[r] of destination rank r. Empty, or the first fault: a rank that waits for
// ever, a message of another length, bytes outside of a buffer, and last of all a byte of a destination that is not
// what it must be.
std::string CarryOut(const Cluster& cluster, const std::vector<RankPlan>& senders,
                     const std::vector<RankPlan>& receivers);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_TESTING_CARRY_OUT_H_
