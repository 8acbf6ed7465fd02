#ifndef HEADRACE_BENCH_BELIEF_CASES_H_
#define HEADRACE_BENCH_BELIEF_CASES_H_

// The refits by which the time model is tested: real ones, every rank a process of this machine.
//
// Cases of the same `weights` move the same tensors, so that they are alternatives of each other: with a shadow or in
// place, over another transport, to an engine that cuts rows (long runs) or columns (short ones).

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/refit_processes.h"
#include "planner/manifest.h"

namespace headrace::bench {

// Equal matrices in BF16, "w0" to "w<count - 1>", each [rows, columns]. Each side cuts all of them evenly along one
// axis, and holds each part as a buffer of its own, row-major. Engines are replicas of each other.
struct Matrices {
  Index count = 1;
  Index rows = 4096;
  Index columns = 4096;
  Index trainers = 2;
  int trainer_axis = 0;
  Index workers = 2;  // of each engine
  int worker_axis = 0;
  Index engines = 1;
};

// kShapeMismatch when a side does not divide its axis.
absl::StatusOr<Manifest> MatricesManifest(const Matrices& matrices);
// The manifest with `engines` equal engines in place of its one.
Manifest WithEngines(Manifest manifest, Index engines);

struct BeliefCase {
  std::string name;
  std::string weights;
  Manifest manifest;
  RefitOptions options;
};

// In a fixed order.
absl::StatusOr<std::vector<BeliefCase>> BeliefCases();
// kInvalidOption: there is none of this name.
absl::StatusOr<BeliefCase> FindBeliefCase(const std::string& name);

}  // namespace headrace::bench

#endif  // HEADRACE_BENCH_BELIEF_CASES_H_
