#ifndef HEADRACE_LOADER_SESSION_SIMULATION_H_
#define HEADRACE_LOADER_SESSION_SIMULATION_H_

// Test only. A job in one thread: the coordinator, publishers and two engines over ordered channels, interleaved,
// slowed and killed by a seed, with owners that behave as real ones do (snapshot, read, vote, commit). The owners keep
// the truth (what is in each slot and each worker's live weights), against which the machines' claims are checked
// after every step:
//   slots       a worker never reads a slot that holds another generation than the one it was told
//   agreement   all workers of an engine that may serve anything serve the same generation, and their weights are it
//   monotonic   the versions that a worker shows only grow
//   liveness    everybody comes to an end by the deadlines; without a kill, with all generations decided

#include <cstdint>
#include <string>

namespace headrace {

// Deliberate mistakes of the harness, each of which one checker must see.
enum class PlantedBug {
  kNone,
  kEarlyRelease,      // slots: receivers release a generation when they begin to read it
  kServeAlone,        // agreement: a worker takes its own commit for its engine's
  kCommitStaleBytes,  // agreement: a commit copies what was there before
  kAnyEngineCounts,   // monotonic: a worker takes another engine's commit for its own
  kDeaf,              // liveness: receivers neither tick nor notice a broken stream
};

struct SimulationOptions {
  uint64_t seed = 1;
  bool kill = true;  // somebody, at some step
  PlantedBug bug = PlantedBug::kNone;
};

struct SimulationResult {
  std::string violation;  // "slots: ...", empty when all held
  int steps = 0;
  int committed = 0;  // engine commits that were seen
  int aborted = 0;    // generations that an engine gave up
  int poisoned = 0;   // workers that ended poisoned
  bool killed = false;
  bool killed_coordinator = false;
};

SimulationResult Simulate(const SimulationOptions& options);

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_SIMULATION_H_
