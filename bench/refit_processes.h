#ifndef HEADRACE_BENCH_REFIT_PROCESSES_H_
#define HEADRACE_BENCH_REFIT_PROCESSES_H_

// The ranks of a refit as processes: each is forked, obeys orders one at a time and answers each. Orders and answers
// are JSON. Times are CPU-seconds, user and system, of the rank's whole process unless a field says otherwise.
//
//   order                                       answer
//   {"do": "join", "coordinator", "token"}      {}; joins the job (allocates slots, shadow) and returns when all did
//   {"do": "fill", "generation"}                {}; publishers: new weights
//   {"do": "refit", "generation"}               publishers {cpu, snapshot}; receivers {cpu, transfer, verify, commit}:
//                                               snapshot, transfer and commit of the calling thread alone
//   {"do": "floor", "generation", "how"}        receivers {cpu}, of the calling thread; how: memcpy or kernel, or
//                                               whole: every slot by memcpy into memory of its own
//   {"do": "clear"} {"do": "check", "generation"}   receivers {} and {wrong}: engine buffers zeroed; wrong words
//   {"do": "close"}                             {memory}: see there; leaves the job, and the process ends
// An error is {"error": message}.

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/session/types.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

using Json = nlohmann::ordered_json;

class RefitProcesses {
 public:
  // Forks one process for each source and destination rank. Call before any thread starts. Keeps references.
  static absl::StatusOr<RefitProcesses> Fork(const Manifest& manifest, const Plan& plan, bool shadow);
  RefitProcesses(RefitProcesses&&) = default;
  // Kills what still runs.
  ~RefitProcesses();

  // Gives an order to all publishers, all receivers or both, and waits for all answers (publishers first). The first
  // error, with the rank's name; kPeerLost when a process died.
  enum class To { kPublishers, kReceivers, kAll };
  absl::StatusOr<std::vector<Json>> Order(To to, const Json& order);

 private:
  struct Rank {
    bool publisher;
    int rank;
    pid_t pid;
    int socket;
  };
  RefitProcesses() = default;

  std::vector<Rank> ranks_;
};

// Those of a job on a machine that others may keep busy: a slow rank is no dead one.
SessionTimeouts PatientTimeouts();

// CPU-seconds of this process so far; of the calling thread alone.
double ProcessCpuSeconds();
double ThreadCpuSeconds();

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_REFIT_PROCESSES_H_
