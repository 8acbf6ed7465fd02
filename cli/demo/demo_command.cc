#include "cli/demo/demo_command.h"

#include <signal.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/demo/gpu_mirror.h"
#include "cli/demo/run.h"
#include "cli/demo/scenario.h"
#include "cli/demo/summary.h"
#include "cli/report.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status Demo(const DemoCommand& command) {
  HR_ASSIGN_OR_RETURN(const Shadow shadow, ChooseShadow(command.shadow, command.transport, command.gpu));
  if (command.gpu) {
    const absl::Status there = CheckForGpus();
    if (!there.ok()) return WithMessage(there, absl::StrCat("--gpu puts weights in GPU memory. ", there.message()));
  }
  DemoJson scenarios = DemoJson::array();
  for (const std::string& name : command.scenarios) {
    HR_ASSIGN_OR_RETURN(const TrainerKind kind, TrainerKindFromName(name));
    HR_ASSIGN_OR_RETURN(const DemoReport report, RunScenario(command, shadow, kind));
    if (!command.json) std::cout << Summary(command, report) << std::endl;
    scenarios.push_back(ToJson(report));
  }
  if (command.json) {
    PrintJson({{"outcome", "ok"},
               {"transport", command.transport},
               {"gpu", command.gpu},
               {"shadow", NameOf(shadow)},
               {"scenarios", std::move(scenarios)}});
  }
  return absl::OkStatus();
}

}  // namespace

int Run(const DemoCommand& command) {
  signal(SIGPIPE, SIG_IGN);  // a rank that died is found by its output's end
  const absl::Status status = Demo(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

}  // namespace headrace
