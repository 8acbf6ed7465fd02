#ifndef HEADRACE_PLANNER_CLUSTER_RANK_PROOF_H_
#define HEADRACE_PLANNER_CLUSTER_RANK_PROOF_H_

// The proof that one rank's plan is right: that it is the rank's part of the cluster's plan, and writes its buffers
// whole. Shares no code with the builder, as cluster_proof.h. Each item that passes through the rank is proven again
// (route_check.h), so that a rank need not prove the whole plan that it made by itself.

#include "absl/status/status.h"
#include "planner/cluster/cluster.h"
#include "planner/cluster/cluster_answers.h"
#include "planner/cluster/rank_plan.h"

namespace headrace {

// All: kPlanInvalid names unit, instance and rank. `cluster` passes CheckCluster; `answers` are a plan's that was made
// from it, or proven. `plan` may be anything.

// A receiver's plan: every byte of its buffers is written exactly once, with the right one (ProveCoverage, for each
// instance whose copies are others than those of the ones before); each item that it wants passes through it once, from
// and to the nodes that the cluster's plan says; its copies take from each stripe just what that brings.
// Cost: its copies, and the legs of the items that it gets.
absl::Status ProveReceiver(const Cluster& cluster, const ClusterAnswers& answers, const RankPlan& plan);

// A sender's plan: it sends each stripe that is its own once, to whom the cluster's plan says, and packs what the
// receivers' copies take. Cost: the legs of all items that it could send.
absl::Status ProveSender(const Cluster& cluster, const ClusterAnswers& answers, const RankPlan& plan);

// What one node hands to another, seen from both ends: the same stripes in the same order, made of the same parts.
absl::Status ProveHandover(const RankPlan& from, const RankPlan& to);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_RANK_PROOF_H_
