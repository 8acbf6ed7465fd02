#ifndef HEADRACE_PLANNER_FAIR_SHARES_H_
#define HEADRACE_PLANNER_FAIR_SHARES_H_

// How evenly can loads be shared, when each may be split at will, but only among its own candidates?
//
// The inputs are loads with their candidates; the guarantee: of all ways to share them out, this one has the least
// busiest candidate, then the least second busiest among the rest, and so on (the latter to within a byte for each
// candidate, since shares are whole bytes). So with bytes(S) the sum of the loads all of whose candidates are in a set
// S, the busiest candidate gets max over S of ceil(bytes(S) / |S|), which no way to share can go below.
//
//   {10: a}, {2: a b}, {4: b c}   ->   a 10, b 3, c 3
//
// Method: maximum flow from loads to candidates with the mean as everybody's capacity. Where it does not fit, the cut
// separates the loads and candidates that are above the mean from those below, and each side is shared on its own
// (decomposition of Fujishige 1980). Cost: a flow for each cut, of which there are at most as many as different levels
// in the result; loads with equal candidates should be given as one.

#include <vector>

#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace {

struct SharedLoad {
  Index bytes = 0;              // > 0
  std::vector<int> candidates;  // in [0, number of candidates), not empty, ascending, no duplicates
};

// For each load what each of its candidates gets, in their order. The sum over all loads is below 2^62.
std::vector<std::vector<Index>> FairShares(absl::Span<const SharedLoad> loads, int candidates);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_FAIR_SHARES_H_
