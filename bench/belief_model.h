#ifndef HEADRACE_BENCH_BELIEF_MODEL_H_
#define HEADRACE_BENCH_BELIEF_MODEL_H_

// From a calibration of this machine (calibrate.cc) and a refit's plan to the time that the refit should take. Pure:
// nothing here is fitted to a refit's time.

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "bench/forked_process.h"
#include "bench/refit_processes.h"
#include "planner/cost/machine.h"
#include "planner/cost/simulate.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace::bench {

// Nanoseconds a byte of some byte work, by the length of contiguous runs.
class RunCosts {
 public:
  void Add(Index run_bytes, double ns_per_byte) { costs_[run_bytes] = ns_per_byte; }
  // Linear in the logarithm of the run between the lengths that were measured; that of the next one outside of them.
  double NsPerByte(Index run_bytes) const;

 private:
  std::map<Index, double> costs_;  // not empty when asked
};

// What the wire costs the processes of a job, by how many there are: the more of them share the cores, the colder is
// what each finds in its caches.
class CrowdCosts {
 public:
  void Add(Index trainers, Index workers, double ns_per_byte) { costs_[{trainers, workers}] = ns_per_byte; }
  // Linear in the logarithms of both numbers between those that were measured, which are all pairs of some trainers
  // and some workers; that of the nearest outside of them.
  double NsPerByte(Index trainers, Index workers) const;

 private:
  std::map<std::pair<Index, Index>, double> costs_;  // not empty when asked
};

// Of strided copies, by whether their runs lie apart in the source or one behind the other.
struct CopyCosts {
  RunCosts apart, dense;
};

struct TransportCosts {
  bool mapped = false;
  Index chunk_bytes = 0;
  Index staging_bytes = 0;
  CopyCosts snapshot, commit;
  CopyCosts direct, direct_shadow;         // mapped
  CopyCosts pack, unpack;                  // two-sided
  CrowdCosts sender, receiver;             // two-sided: besides packing, unpacking and messages
  double receiver_shadow_ns_per_byte = 0;  // more (less: below 0) than into live buffers
  Index sender_ns_per_message = 0, receiver_ns_per_message = 0;
  Index fixed_ns = 0, rank_ns = 0;
};

struct Calibration {
  Index cores = 0;
  double memory_bytes_per_second = 0;           // 0: two processes that copy at once are as fast as one
  std::map<std::string, TransportCosts> costs;  // by transport
};

// kMalformed: not a document of calibrate.cc; names the field.
absl::StatusOr<Calibration> ParseCalibration(const Json& document);

// Bytes by the runs that they are in.
struct Runs {
  Index run_bytes = 0;
  bool dense = false;  // one behind the other in the source; so is a single one

  auto operator<=>(const Runs&) const = default;
};
using RunBytes = std::map<Runs, Index>;
// What `rank`'s snapshot copies: each box that copies read, once.
RunBytes SnapshotRuns(const Plan& plan, int64_t rank);
// The copies of all direct edges.
RunBytes CopiedRuns(const Plan& plan);

// The machine as this plan sees it: copies cost what its mix of run lengths costs on average. kInvalidOption: the
// calibration lacks the transport.
absl::StatusOr<CostModel> CostModelOf(const Calibration& calibration, const Manifest& manifest, const Plan& plan,
                                      const RefitOptions& options);

// The refit from the order to publish to the last rank's hearing of the commit, all ranks being processes of one
// machine. Errors: those of CostModelOf.
absl::StatusOr<Simulation> Predict(const Calibration& calibration, const Manifest& manifest, const Plan& plan,
                                   const RefitOptions& options);

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_BELIEF_MODEL_H_
