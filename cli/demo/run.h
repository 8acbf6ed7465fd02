#ifndef HEADRACE_CLI_DEMO_RUN_H_
#define HEADRACE_CLI_DEMO_RUN_H_

// One scenario of the demo from the first process to the last.

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/demo/demo_command.h"
#include "cli/demo/engine.h"
#include "cli/demo/scenario.h"
#include "planner/plan.h"

namespace headrace {

struct EngineReport {
  int tp = 0;
  int64_t torn = 0;
  std::map<int64_t, int64_t> requests;
  std::map<uint64_t, EngineGeneration> generations;
};

struct PublishReport {
  double snapshot_seconds = 0, stall_seconds = 0;  // slowest trainer
  double announce_seconds = 0;                     // from the last trainer's snapshot to the first worker's news of it
};

struct DemoReport {
  Scenario scenario;
  Shadow shadow = Shadow::kHost;
  PlanFigures figures;
  double plan_seconds = 0;                  // slowest member
  std::vector<std::vector<Index>> traffic;  // bytes by [trainer][worker], workers of all engines in turn
  std::vector<EngineReport> engines;
  std::map<uint64_t, PublishReport> publishes;
  int64_t checked_bytes = 0;  // by the oracle, over both generations
  int64_t peak_staging_bytes = 0;
  double seconds = 0;
};

absl::StatusOr<DemoReport> RunScenario(const DemoCommand& command, Shadow shadow, TrainerKind kind);

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_RUN_H_
