#ifndef HEADRACE_BENCH_REFIT_JOB_H_
#define HEADRACE_BENCH_REFIT_JOB_H_

// A whole job on this machine: its coordinator in this process, every rank in one of its own. Times generations.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/refit_processes.h"
#include "loader/control/coordinator_service.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

class RefitJob {
 public:
  // Returns when all ranks have joined. Keeps references. Forks, and then starts threads: one job to a process.
  static absl::StatusOr<std::unique_ptr<RefitJob>> Start(const Manifest& manifest, const Plan& plan,
                                                         const RefitOptions& options);

  // Writes new weights, and times the refit from the order to publish to the last rank's hearing of the commit:
  //   seconds                                            wall
  //   publishers_cpu, receivers_cpu, coordinator_cpu     CPU-seconds of all of these processes
  //   publishers_at, receivers_at                        when the last of them had come to each step, see
  //                                                      refit_processes.h; seconds since the order
  absl::StatusOr<Json> Generation(uint64_t generation);
  // Empties the caches of all ranks, as the steps of training and of serving between two refits do.
  absl::Status Chill();
  // Whether all engine buffers hold the generation.
  absl::Status Check(uint64_t generation);
  absl::Status Close();
  // Of all processes of the job so far.
  double CpuSeconds() const { return processes_.CpuSeconds() + ProcessCpuSeconds(); }

 private:
  RefitJob(RefitProcesses processes, size_t publishers) : processes_(std::move(processes)), publishers_(publishers) {}

  RefitProcesses processes_;
  const size_t publishers_;
  std::unique_ptr<CoordinatorService> coordinator_;
};

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_REFIT_JOB_H_
