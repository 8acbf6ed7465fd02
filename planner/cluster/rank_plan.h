#ifndef HEADRACE_PLANNER_CLUSTER_RANK_PLAN_H_
#define HEADRACE_PLANNER_CLUSTER_RANK_PLAN_H_

// One rank's own part of a cluster's plan, in full: what it gets from whom, where that goes in its buffers, and what it
// passes on to whom.
//
//   passage of receiver 7: bytes 0..65536 of q_proj of layer 3 that sender 0 sends and receiver 3 passes on to it;
//                          its copies put them into qkv_proj; it passes them on to receivers 11 and 5
//
// Time and memory are in proportion to the rank's own pieces (and, for a sender, to the cells of an instance group for
// each stretch that it sends), times the logarithm of the candidates and consumers.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster_answers.h"
#include "planner/plan.h"

namespace headrace {

class ClusterPlan;

// A stripe of an item on its way through a rank. Nodes are numbered as in cost/flow.h; -1 is nobody.
struct Passage {
  ItemId item;
  Index offset = 0;  // bytes [offset, offset + bytes) of the item
  Index bytes = 0;
  Index order = 0;           // StripeRoute::order
  int32_t sender = 0;        // the source rank whose buffers the bytes are from
  int32_t source_shard = 0;  // which shard it is of the instance's source group
  int32_t from = -1;         // the node that hands them to this one; -1 at the sender
  int32_t next_domain = -1;  // the node to which this one passes them on over the network
  int32_t next_inside = -1;  // and within its domain
  int32_t legs = 0;          // from the sender to here
  uint32_t first_copy = 0;
  uint32_t copies = 0;  // none where the rank only passes the bytes on
};

// Copy::tensor, source and destination are indices into the unit's manifest, Copy::part counts the parts of the stripe.
// Offsets are in bytes from the beginning of the rank's own buffer, and of the sender's. Of a buffer that is stacked
// over experts that is the whole buffer of the instance's layer, in which the experts lie one behind the other.
//
// At a sender copies have a source side alone (destination -1, destination strides 0): the parts of the stripe as it
// packs them, one behind the other.
struct RankFill {
  int32_t unit = 0;
  int32_t instance = 0;
  ZeroFill fill;
};

struct RankPlan {
  int32_t node = 0;
  std::vector<Passage> passages;  // in the order in which the rank handles them (StripeRoute::order)
  std::vector<Copy> copies;       // each passage's in one piece (Passage::first_copy)
  std::vector<RankFill> fills;    // receivers only
};

// `plan` was made from its cluster by PlanCluster.
//   kInvalidOption  no such rank
//   kOutOfMemory    a receiver that gets more than 2^23 items
absl::StatusOr<RankPlan> ReceiverPlan(const ClusterPlan& plan, int32_t destination_rank);
absl::StatusOr<RankPlan> SenderPlan(const ClusterPlan& plan, int32_t source_rank);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_RANK_PLAN_H_
