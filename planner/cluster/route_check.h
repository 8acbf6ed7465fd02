#ifndef HEADRACE_PLANNER_CLUSTER_ROUTE_CHECK_H_
#define HEADRACE_PLANNER_CLUSTER_ROUTE_CHECK_H_

// Part of the cluster's proof (cluster_proof.h): whether an item's stripes get from those who hold them to those who
// want them. Shares no code with the builder.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/cluster/cluster.h"
#include "planner/cluster/cluster_answers.h"

namespace headrace {

// "unit "expert", instance 7 (layer 3, expert 4), cell 2 of "..."", for messages.
std::string DescribeItem(const Cluster& cluster, const ClusterAnswers& answers, const ItemId& item);
// kPlanInvalid about an item.
absl::Status InvalidItem(const Cluster& cluster, const ClusterAnswers& answers, const ItemId& item,
                         const std::string& what);

class RouteCheck {
 public:
  // Both outlive this. `cluster` passes CheckCluster.
  RouteCheck(const Cluster& cluster, const ClusterAnswers& answers);

  // `item` exists, and `cell` is what the answers say of its cell.
  //   kPlanInvalid: the stripes do not tile the item; a sender is not in the instance's group, not of the shard that
  //   the
  //     stripe names, or that shard does not hold the cell; a leg begins where the bytes are not, or goes to a node
  //     that has them or does not want them; the sender sends a stripe more than once; a domain is entered more than
  //     once; somebody who wants it does not get it.
  // O(stripes + legs), and the ranks that want the cell when they are others than those of the call before.
  absl::Status Check(const ItemId& item, const CellAnswer& cell, const std::vector<StripeRoute>& stripes);

 private:
  absl::Status CheckStripe(const ItemId& item, const CellAnswer& cell, const StripeRoute& stripe);
  // Whether the stripe's sender and legs, and who wants the bytes, are those of the last one that was right. Then it is
  // right, too: what is said of legs depends on nothing else.
  bool IsLikeTheLast(const StripeRoute& stripe) const;
  void Want(int32_t unit, int32_t group, const std::vector<int>& shards);

  const Cluster& cluster_;
  const ClusterAnswers& answers_;
  // Who wants the bytes: those with the current number.
  int32_t unit_ = -1, group_ = -1;
  std::vector<int> shards_;
  int64_t want_number_ = 0;
  std::vector<int64_t> wants_;  // by destination rank
  size_t wanting_ = 0;
  int64_t right_want_number_ = 0;  // of the last stripe that was right
  int32_t right_sender_ = -1;
  std::vector<Leg> right_legs_;
  int64_t number_ = 0;                  // of the stripe
  std::vector<int64_t> has_, entered_;  // by destination rank, by domain: the last stripe
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_ROUTE_CHECK_H_
