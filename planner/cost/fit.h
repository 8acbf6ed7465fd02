#ifndef HEADRACE_PLANNER_COST_FIT_H_
#define HEADRACE_PLANNER_COST_FIT_H_

// What a real system adds to the time of its bytes: it reaches a share of the line rates, and each of its operations
// costs something. Two numbers, from measured times.

#include <vector>

namespace headrace {

struct FitSample {
  double wire_seconds = 0;  // simulated, at line rates
  double operations = 0;    // one after the other
  double seconds = 0;       // measured; above 0
};

struct Fit {
  double slowdown = 1;  // times wire_seconds: 1 / efficiency
  double operation_seconds = 0;
};

// The fit of least squares of the relative errors, slowdown >= 1 and operation_seconds >= 0. Without samples: {1, 0}.
Fit FitSamples(const std::vector<FitSample>& samples);

double FittedSeconds(const Fit& fit, double wire_seconds, double operations);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_FIT_H_
