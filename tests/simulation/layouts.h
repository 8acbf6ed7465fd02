#ifndef HEADRACE_TESTS_SIMULATION_LAYOUTS_H_
#define HEADRACE_TESTS_SIMULATION_LAYOUTS_H_

// Test only. What the members of a simulated job hold and want. Every engine wants something of every tensor, so that
// any engine can go and the rest is still a plan.

#include <map>
#include <string>
#include <vector>

#include "planner/manifest.h"
#include "tests/simulation/options.h"

namespace headrace::simulation {

struct JobLayout {
  Manifest manifest;                          // of all members
  std::vector<int64_t> publishers;            // source ranks
  std::vector<std::vector<int64_t>> engines;  // destination ranks
};

JobLayout MakeLayout(const SimulationOptions& options);

// One member's part.
Manifest PublisherPart(const Manifest& manifest, int64_t rank);
Manifest ReceiverPart(const Manifest& manifest, int64_t rank);

}  // namespace headrace::simulation

#endif  // HEADRACE_TESTS_SIMULATION_LAYOUTS_H_
