#ifndef HEADRACE_TESTS_SIMULATION_CHECKS_H_
#define HEADRACE_TESTS_SIMULATION_CHECKS_H_

// Test only. What must always be true of a simulated job. Each check is in a file of its own, check_*.cc, reads the
// real memory and the real objects, and speaks by World::Violate.

#include <cstdint>

#include "tests/simulation/job.h"

namespace headrace::simulation {

// mixed: a step of a request, which began with `version`, computes with exactly these bytes on every worker.
void CheckRequestStep(Job& job, int engine, const Version& version);

// bytes: right after a commit every byte of the worker's memory (zero fills, what is kept, gaps and guards too) is what
// the oracle says. And at the end, for whatever is served.
void CheckCommitted(Job& job, const WorkerSeat& seat, const Version& version);
void CheckServedBytes(Job& job);

// monotonic: an engine never serves an older generation of an incarnation than before, unless all of its processes are
// new and the coordinator too.
void ObserveServed(Job& job, int engine, const Version& version);

// progress: since the faults are over, a generation that was published afterwards was committed by every engine in
// time; and nobody has waited for longer than the longest deadline.
void CheckProgress(Job& job, uint64_t goal);
void CheckWaits(Job& job);
// Nobody reads a trainer's slots for ever.
void CheckReleased(Job& job, const Seat& seat, int busy_slots);

// memory: caps that hold at every step.
struct TrainerUse {
  int64_t staging_bytes = 0;
  int64_t epochs = 0;  // whose sums are kept
  int64_t orders = 0;
  int64_t slots = 0;
};
struct WorkerUse {
  int64_t staging_bytes = 0;
  int64_t mappings = 0;
  int64_t announced = 0;
};
void CheckTrainerMemory(Job& job, const Seat& seat, const TrainerUse& use);
void CheckWorkerMemory(Job& job, const Seat& seat, const WorkerUse& use);
void CheckFabricMemory(Job& job);

// leaks: everybody is gone, and so is all that they held.
void CheckLeaks(Job& job);

// For the record.
void CountVerdict(const absl::Status& verdict, Counters* counters);

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_CHECKS_H_
