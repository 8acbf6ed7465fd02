#ifndef HEADRACE_PLANNER_CLUSTER_CLUSTER_FIGURES_H_
#define HEADRACE_PLANNER_CLUSTER_CLUSTER_FIGURES_H_

// What a cluster's plan moves, and its seal.

#include <string>

#include "planner/cluster/cluster_plan.h"

namespace headrace {

struct ClusterFigures {
  Index tensors = 0;       // of the checkpoint
  Index copies = 0;        // strided copies into the buffers of all receivers
  Index needed_bytes = 0;  // tensor bytes of all receivers' buffers
  Index wire_bytes = 0;    // what enters receivers, from senders and from each other
  // What enters domains from outside, and the different bytes that a domain's receivers want, summed over the domains.
  Index domain_wire_bytes = 0;
  Index domain_needed_bytes = 0;
  // Of domain_wire_bytes what leaves from a NIC of one rail and arrives at one of another (cluster.h).
  Index cross_rail_bytes = 0;
  Index busiest_sender_bytes = 0;
  double sender_max_over_mean = 1.0;       // over source ranks that hold anything
  double worst_stage_max_over_mean = 1.0;  // the same within each pipeline stage, the largest of these
  double receiver_max_over_mean = 1.0;     // of what enters a rank from outside of its domain, over all that want any
  Index busiest_receiver_copies = 0;
  // Stripes that a rank sends and gets, of the rank that has the most, and its node.
  Index operations_max = 0;
  int32_t busiest_node = 0;
};

// O(aggregates, and the ranks of the consumers for each stretch of a line).
ClusterFigures MeasureCluster(const ClusterPlan& plan);

// Text that says all of the plan: units with their cells and copies, instances, and the lines from which each item's
// way follows. One line each; numbers are decimal.
std::string CanonicalText(const ClusterPlan& plan);
// SHA-256 of it, 32 bytes.
std::string ClusterDigest(const ClusterPlan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CLUSTER_FIGURES_H_
