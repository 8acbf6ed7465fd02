#ifndef HEADRACE_CLI_CLUSTER_REPORT_H_
#define HEADRACE_CLI_CLUSTER_REPORT_H_

// What people and programs are told about a plan of a cluster.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/job.h"
#include "cli/pictures.h"
#include "planner/cluster/cluster_figures.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cost/bounds.h"
#include "planner/cost/flow.h"
#include "planner/cost/simulate.h"

namespace headrace {

// A job that was planned and proven, and what that cost.
struct PlannedJob {
  Job job;
  std::optional<ClusterPlan> plan;  // refers to job.cluster
  ClusterFigures figures;
  double cluster_seconds = 0;   // from the layout to the cluster's rules
  double plan_seconds = 0;      // the whole plan
  double proof_seconds = 0;     // of the whole plan
  double receiver_seconds = 0;  // one receiver's own part, given the plan
  Index receiver_copies = 0;    // of it
  Index groups_max = 0;         // in which the busiest rank's operations go over NCCL (message_groups.h)
  Index manifest_bytes = 0;     // what that receiver sends of its layout when it joins
  Index peak_bytes = 0;         // of the process
};

// {"model", "layout", "policy", figures.., seconds.., "peak_bytes", "manifest_bytes", "digest", "notes"}
nlohmann::ordered_json PlannedJobToJson(const PlannedJob& planned);
// Name and value.
std::vector<std::vector<std::string>> PlannedJobTable(const PlannedJob& planned);

// Rows for each unit: instances, tensors, bytes, how it travels and why.
std::vector<std::vector<std::string>> TransferTable(const ClusterPlan& plan);

// The page with the pictures; `simulation` may be null.
PlanPage PageOf(const PlannedJob& planned, const Traffic& traffic, const Simulation* simulation);

// Nodes whose times the page shows: some of each side, evenly spread.
std::vector<int32_t> ShownNodes(const Cluster& cluster);

}  // namespace headrace

#endif  // HEADRACE_CLI_CLUSTER_REPORT_H_
