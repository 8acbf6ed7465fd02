#ifndef HEADRACE_BENCH_CALIBRATION_LANES_H_
#define HEADRACE_BENCH_CALIBRATION_LANES_H_

// The byte work of a refit, step by step and without sessions: processes of trainers and workers, with the loader's own
// snapshot writer, sender, executors and commit between them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/forked_process.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

// Of each sender and each receiver.
inline constexpr int64_t kStagingBytes = 64 << 20;

enum class LaneStep {
  kSnapshot,       // trainers write their slots
  kPack,           // trainers pack all messages, and send none
  kUnpack,         // workers unpack as many, all of the same bytes
  kReceive,        // workers' transfer into their live buffers; on two-sided transports trainers send meanwhile
  kReceiveShadow,  // the same into a shadow
  kCommit,         // workers copy their shadow to their live buffers
};

// Of one time that a step was done.
struct LaneTimes {
  double seconds = 0;      // wall, of the process that took longest
  double trainer_cpu = 0;  // CPU-seconds of all trainers
  double worker_cpu = 0;   // of all workers
};

class CalibrationLanes {
 public:
  // All source ranks of the manifest, and its first `workers` destination ranks: from 0 on each. The plan has no
  // streams. Keeps references. Call before any thread starts.
  static absl::StatusOr<CalibrationLanes> Fork(const Manifest& manifest, const Plan& plan, int workers,
                                               const std::string& transport, int64_t chunk_bytes);
  // Writes weights, maps and touches all memory. Once, before any step.
  absl::Status Connect() const;

  // A step, `times` over. End waits for what was begun.
  void Begin(LaneStep step, int times) const;
  absl::StatusOr<LaneTimes> End(LaneStep step, int times) const;

 private:
  explicit CalibrationLanes(bool two_sided) : two_sided_(two_sided) {}

  bool IsOfTrainers(LaneStep step) const;
  static bool IsOfWorkers(LaneStep step) { return step != LaneStep::kSnapshot && step != LaneStep::kPack; }

  bool two_sided_;
  std::vector<ForkedProcess> trainers_, workers_;
};

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_CALIBRATION_LANES_H_
