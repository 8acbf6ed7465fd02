#ifndef HEADRACE_CLI_DEMO_RANK_H_
#define HEADRACE_CLI_DEMO_RANK_H_

// What the demo's processes have in common: orders and reports are lines of JSON on standard input and output, the
// first line being the rank's description.

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/demo/scenario.h"
#include "loader/member.h"

namespace headrace {

using DemoJson = nlohmann::ordered_json;

// Seconds of the monotonic clock, which all processes of a machine share.
double MonotonicSeconds();

// Standard input and output as lines of JSON. Any thread may Report.
class RankPipe {
 public:
  // The next order, or nullopt after `patience` without one. kAborted when the input ended: the launcher is gone.
  absl::StatusOr<std::optional<DemoJson>> Next(absl::Duration patience);
  // Adds "at", MonotonicSeconds().
  void Report(DemoJson event);
  // {"event": "error", "code", "message"}; returns the exit status.
  int ReportError(const absl::Status& status);

 private:
  std::string partial_;
  std::mutex mutex_;
};

// What the first line says.
struct RankOrders {
  Scenario scenario;
  std::unique_ptr<Checkpoint> checkpoint;
  std::string transport;
  bool gpu = false;
  Shadow shadow = Shadow::kHost;  // of workers
  JobOptions job;
  DemoJson raw;
};
absl::StatusOr<RankOrders> ReadOrders(RankPipe* pipe);

// `headrace demo-trainer` and `headrace demo-worker`.
int RunDemoTrainer();
int RunDemoWorker();

}  // namespace headrace

#endif  // HEADRACE_CLI_DEMO_RANK_H_
