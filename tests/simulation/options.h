#ifndef HEADRACE_TESTS_SIMULATION_OPTIONS_H_
#define HEADRACE_TESTS_SIMULATION_OPTIONS_H_

// Test only. All that a simulated job is made from. A seed draws the rest; the same options are the same run.

#include <cstdint>
#include <string>
#include <vector>

#include "loader/session/types.h"

namespace headrace::simulation {

inline constexpr int64_t kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

// Deliberate mistakes of the simulated owners, each of which one checker must see.
enum class PlantedBug {
  kNone,
  kServeWhileApplying,  // mixed: a commit does not wait for the request that is running
  kServeAlone,          // mixed: requests begin as soon as one worker serves a newer generation
  kCommitStaleBytes,    // bytes: a commit copies what was there before
  kIgnoreSums,          // bytes: a worker votes yes on bytes that it did not verify
  kWriteGaps,           // bytes: a commit writes one byte that is nobody's
  kRollBack,            // monotonic: a worker whose session ended puts older weights back
  kDeaf,                // progress: a worker neither ticks nor notices a broken stream
  kNeverRelease,        // progress: releases do not reach the coordinator
  kKeepEpochs,          // memory: a publisher keeps every epoch's sums
  kLeakMappings,        // leaks: somebody keeps a mapping
  kEqualSums,           // bytes: publishers say that their replicas are equal, whatever they hold
};

enum class Layout { kSplit, kRandom, kTwoEngines };

struct SimulationOptions {
  uint64_t seed = 1;
  PlantedBug bug = PlantedBug::kNone;
  bool trace = false;  // prints every control message that arrives, but for heartbeats

  // The job.
  Layout layout = Layout::kSplit;
  int publishers = 2;           // kSplit; the others have their own
  int replicas = 1;             // kSplit: publishers that hold each part of a tensor
  std::vector<int> workers{2};  // of each engine (kSplit)
  int late_engines = 0;         // the last ones, which the coordinator is not told of
  int hosts = 1;                // relays run within hosts
  bool hybrid = false;          // the job's policy; half of the tensors are QKV weights then
  int tensors = 3;
  bool map = true;             // else two-sided
  bool hold = false;           // trainers hold their weights where they can (two-sided)
  std::vector<bool> in_place;  // of each engine; shadow where it is too short
  int64_t chunk_bytes = 128;
  int64_t staging_bytes = 2048;
  SessionTimeouts timeouts;
  int64_t transfer_timeout_ns = 10 * kSecond;
  int64_t publish_period_ns = 1 * kSecond;
  bool lockstep = true;  // no trainer begins a step before all others that are there published, or failed to
  int64_t request_period_ns = 200 * kMillisecond;

  // How long one step of a transfer takes at most, and work of a host beside it.
  int64_t step_ns = 50 * kMicrosecond;

  // How long things go wrong, and how long everything may take to be right again.
  int64_t faults_ns = 20 * kSecond;
  int64_t heal_ns = 90 * kSecond;

  // How often during that time: at any moment, or (this share of them) when a member has just heard something of the
  // protocol, to whom it mostly happens then.
  double at_moments = 0.6;
  double trainer_crashes = 0, worker_crashes = 0, coordinator_crashes = 0;
  double leaves = 0;        // a member leaves in order and comes back
  double cuts = 0;          // a stream breaks
  double half_opens = 0;    // one direction of a stream carries nothing any more
  double partitions = 0;    // some members and the coordinator do not hear each other
  double stalls = 0;        // a process stands still
  double clock_jumps = 0;   // a process's clock leaps forward
  double moves = 0;         // an engine's worker moves its buffers
  double new_runs = 0;      // the trainer starts again as another incarnation, counting from 1
  double early_writes = 0;  // a trainer writes into a slot that is read
  // A trainer publishes another byte of what others publish too. With members that are lost nobody can tell: the one
  // that is left may be the wrong one.
  double divergences = 0;
  int64_t max_stall_ns = 5 * kSecond;

  // Control messages; those of the fabric.
  int64_t max_delay_ns = 20 * kMillisecond;
  double fabric_drop = 0, fabric_delay = 0, fabric_corrupt = 0;
  int fabric_delay_steps = 20;
  bool fabric_reorder = false;
};

// One run of many: what happens how often follows from the seed.
SimulationOptions DrawOptions(uint64_t seed);

// "seed 12: 3 publishers x 2 replicas, engines 2+1, two-sided, ...": for a message.
std::string Describe(const SimulationOptions& options);

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_OPTIONS_H_
