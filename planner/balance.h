#ifndef HEADRACE_PLANNER_BALANCE_H_
#define HEADRACE_PLANNER_BALANCE_H_

// Which replica sends what: source ranks that hold the same bytes share the load.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace {

// Bytes that one of several source ranks must send.
struct Demand {
  Index bytes = 0;
  std::vector<int64_t> ranks;  // candidates, not empty; may repeat
};

// The index of the chosen candidate of each demand. Demands with one candidate are loaded first; then the others,
// largest first, each on the candidate rank with the least load so far (ties: lowest rank, then first listed). That is
// within 4/3 of the best makespan (Graham 1969, LPT) and in practice within one largest demand of the mean; since whole
// demands are placed, nothing is cut. One deterministic pass, O(n log n + candidates).
std::vector<int> ChooseSources(absl::Span<const Demand> demands);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_BALANCE_H_
