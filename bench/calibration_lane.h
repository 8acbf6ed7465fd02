#ifndef HEADRACE_BENCH_CALIBRATION_LANE_H_
#define HEADRACE_BENCH_CALIBRATION_LANE_H_

// The byte work of a refit, step by step and without sessions: a trainer's process and a worker's, with the loader's
// own snapshot writer, sender, executors and commit between them. Several lanes may run a step at once.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/forked_process.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

enum class LaneStep {
  kSnapshot,       // the trainer writes its slot
  kPack,           // the trainer packs all messages, and sends none
  kUnpack,         // the worker unpacks as many, all of the same bytes
  kReceive,        // the worker's transfer into its live buffers; on two-sided transports the trainer sends meanwhile
  kReceiveShadow,  // the same into a shadow
  kCommit,         // the worker copies its shadow to its live buffers
};

struct LaneTimes {
  double seconds = 0;  // wall
  double trainer_cpu = 0;
  double worker_cpu = 0;
};

class CalibrationLane {
 public:
  // Source rank 0 and destination rank 0 of the plan. Keeps references. Call before any thread starts.
  static absl::StatusOr<CalibrationLane> Fork(const Manifest& manifest, const Plan& plan, const std::string& transport,
                                              int64_t chunk_bytes);
  // Writes weights, maps and touches all memory. Once, before any step.
  absl::Status Connect() const;

  // A step, `times` over. End waits for what was begun; times are of one.
  void Begin(LaneStep step, int times) const;
  absl::StatusOr<LaneTimes> End(LaneStep step, int times) const;

 private:
  CalibrationLane(ForkedProcess trainer, ForkedProcess worker, bool two_sided)
      : trainer_(std::move(trainer)), worker_(std::move(worker)), two_sided_(two_sided) {}

  bool IsOfTrainer(LaneStep step) const;
  bool IsOfWorker(LaneStep step) const { return step != LaneStep::kSnapshot && step != LaneStep::kPack; }

  ForkedProcess trainer_, worker_;
  bool two_sided_;
};

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_CALIBRATION_LANE_H_
