#ifndef HEADRACE_BENCH_REFIT_PROCESSES_H_
#define HEADRACE_BENCH_REFIT_PROCESSES_H_

// The ranks of a refit as processes: each is forked, obeys orders one at a time and answers each. Orders and answers
// are JSON. Times are CPU-seconds, user and system, of the rank's whole process unless a field says otherwise.
//
//   order                                       answer
//   {"do": "join", "coordinator", "token"}      {}; joins the job (allocates slots, shadow) and returns when all did
//   {"do": "fill", "generation"}                {}; publishers: new weights
//   {"do": "chill"}                             {}; empties the caches of what refits use, as a step of training would
//   {"do": "refit", "generation"}               publishers {cpu, snapshot, at}; receivers {cpu, transfer, verify,
//   commit,
//                                               at}: snapshot, transfer and commit of the calling thread alone; `at`,
//                                               seconds of the machine's monotonic clock: publishers began, published,
//                                               heard of the commit; receivers heard of the generation, staged,
//                                               committed
//   {"do": "floor", "generation", "how"}        receivers {cpu}, of the calling thread; how: memcpy or kernel, or
//                                               whole: every slot by memcpy into memory of its own
//   {"do": "clear"} {"do": "check", "generation"}   receivers {} and {wrong}: engine buffers zeroed; wrong words
//   {"do": "close"}                             {memory}: see there; leaves the job, and the process ends
// An error is {"error": message}.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/forked_process.h"
#include "loader/session/types.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

struct RefitOptions {
  bool shadow = false;
  std::string transport = "host";  // or "ucx": without "floor", which reads mapped memory
};

class RefitProcesses {
 public:
  // Forks one process for each source and destination rank. Placement::engine names a rank's engine; engines and their
  // workers are numbered from 0 in the order of the topology. Call before any thread starts. Keeps references.
  static absl::StatusOr<RefitProcesses> Fork(const Manifest& manifest, const Plan& plan, const RefitOptions& options);

  // Gives an order to all publishers, all receivers or both, and waits for all answers (publishers first). The first
  // error, with the rank's name; kPeerLost when a process died.
  enum class To { kPublishers, kReceivers, kAll };
  absl::StatusOr<std::vector<Json>> Order(To to, const Json& order);
  // CPU-seconds of all ranks so far.
  double CpuSeconds() const;

 private:
  std::vector<ForkedProcess> publishers_, receivers_;
};

// Those of a job on a machine that others may keep busy: a slow rank is no dead one.
SessionTimeouts PatientTimeouts();

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_REFIT_PROCESSES_H_
