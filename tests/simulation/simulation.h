#ifndef HEADRACE_TESTS_SIMULATION_SIMULATION_H_
#define HEADRACE_TESTS_SIMULATION_SIMULATION_H_

// Test only. A whole job in one thread: the session machines and the executors that the product runs, owners that do
// what loader/publisher.cc, loader/receiver.cc and loader/member.cc do, the memory transport, a simulated control
// channel and virtual time. Things go wrong for a while; then everything must get right again.

#include <cstdint>
#include <string>

#include "tests/simulation/job.h"
#include "tests/simulation/options.h"

namespace headrace::simulation {

struct SimulationResult {
  std::string violation;  // "mixed: ...", empty when all held
  Counters counters;
  int64_t events = 0;
  int64_t virtual_ns = 0;
  int64_t healed_ns = 0;  // from the end of the faults until everybody had a new generation
  uint64_t mark = 0;      // equal for equal runs
};

SimulationResult Simulate(const SimulationOptions& options);

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_SIMULATION_H_
