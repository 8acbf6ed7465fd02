#ifndef HEADRACE_PLANNER_LATTICE_H_
#define HEADRACE_PLANNER_LATTICE_H_

// Whether strided patterns of memory meet, without listing their places.

#include <vector>

#include "planner/manifest.h"

namespace headrace {

// A multiple of `step`, between first * step and last * step.
struct Multiple {
  Index step = 0;  // > 0
  Index first = 0, last = 0;
};

enum class Sum { kFound, kNone, kUnknown };

// Looks for integers first[i] <= x[i] <= last[i] with base + sum(x[i] * step[i]) == 0, and writes them to *x (in the
// order of `multiples`, which may be nullptr). Exact; kUnknown when it would have to try more than 2^22 combinations,
// which takes three or more steps none of which exceeds what the smaller ones reach.
// The multiples' sums fit 64 bits, their differences need not.
Sum FindZeroSum(Index base, const std::vector<Multiple>& multiples, std::vector<Index>* x);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LATTICE_H_
