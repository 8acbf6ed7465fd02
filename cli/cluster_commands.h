#ifndef HEADRACE_CLI_CLUSTER_COMMANDS_H_
#define HEADRACE_CLI_CLUSTER_COMMANDS_H_

// The commands that plan a model under a layout over a whole cluster.

#include <string>

#include "cli/job.h"

namespace headrace {

struct ClusterCommand {
  LayoutChoice job;
  std::string policy = "auto";
  std::string page;  // a file for the page with pictures; empty: none
  double spine = 1;  // CostModel::spine_share
  bool json = false;
};

// `headrace plan --layout ID`: plans and proves, and prints what the plan moves and costs.
int RunClusterPlan(const ClusterCommand& command);

// `headrace simulate --layout ID`: the same, and how long the refit takes on the layout's machines, simulated, beside
// the least time that any schedule needs.
int RunSimulate(const ClusterCommand& command);

}  // namespace headrace

#endif  // HEADRACE_CLI_CLUSTER_COMMANDS_H_
