#ifndef HEADRACE_CLI_PLAN_COMMAND_H_
#define HEADRACE_CLI_PLAN_COMMAND_H_

#include <string>

namespace headrace {

struct PlanCommand {
  std::string file;
  std::string policy = "auto";  // planner/plan.h: PolicyName
  bool json = false;
};

// `headrace plan FILE`: validates, plans and proves a manifest, and prints what the plan moves.
int Run(const PlanCommand& command);

}  // namespace headrace

#endif  // HEADRACE_CLI_PLAN_COMMAND_H_
