#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_PROOF_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_PROOF_H_

// The proof that a cluster's plan is right. It shares no code with the builder: it asks a plan for its answers
// (cluster_answers.h), item by item, and compares them with the cluster.
//
//   1. Each unit's copies, from each source shard that may send a cell and in each way in which an item of it is cut
//   into
//      stripes, write each byte of each destination shard exactly once, with the right one: ProveCoverage, on a plan
//      that is made of them. Bytes that a relay passes on are the same that it got: the copies are those of a stream.
//   2. Each item: see route_check.h. Stripes tile it, their senders hold it, everybody who wants it gets it once, from
//      somebody who has it, and each domain is entered once.
//   3. An item goes to those alone who want it; to all who hold any of its tensor where the policy broadcasts it.
//
// Cost: the legs of all items, so in proportion to all copies of the job; for each unit ProveCoverage as often as a
// cell has source shards and ways to be cut.

#include "absl/status/status.h"
#include "planner/cluster/cluster.h"
#include "planner/cluster/cluster_answers.h"

namespace headrace {

// kPlanInvalid names unit, instance and rank. Errors of CheckCluster and ProveCoverage.
absl::Status ProveCluster(const Cluster& cluster, const ClusterAnswers& answers);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_PROOF_H_
