#ifndef HEADRACE_PLANNER_BALANCE_H_
#define HEADRACE_PLANNER_BALANCE_H_

// Which replica sends what: source ranks that hold the same bytes share the load.

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "planner/manifest.h"

namespace headrace {

// No demand is cut into stripes of fewer bytes: a stripe costs a request, a sum and a check of its own.
inline constexpr Index kMinStripeBytes = Index{64} << 10;

// Bytes that one of several source ranks must send, or several of them in stripes.
struct Demand {
  Index bytes = 0;
  Index grain = 0;             // stripes are multiples of it; > 0 and divides `bytes`
  std::vector<int64_t> ranks;  // candidates, not empty; may repeat
};

// The next stripe of a demand goes to one candidate.
struct Stripe {
  int candidate = 0;  // index into Demand::ranks
  Index bytes = 0;

  bool operator==(const Stripe&) const = default;
};

using Stripes = absl::InlinedVector<Stripe, 1>;

// The stripes of each demand, in the order in which they are cut off, in all as long as the demand. One where it is not
// cut; cut ones are multiples of the grain and at least kMinStripeBytes.
//
// First the load of each rank is found that makes the busiest rank least busy, were everything divisible
// (fair_shares.h); then demands are handed out so that each rank gets about that: those with the largest indivisible
// units first, whole where they fit, otherwise cut where a rank is full. A rank gets more than its due by less than two
// stripes of the smallest size that its demands allow (the larger of kMinStripeBytes and of their grains), or by a
// demand that is too small to be cut. Few are cut: of those with equal candidates at most as many as candidates.
//
// Deterministic; ties go to the lowest rank, then to the first listed candidate. O(n log n + candidates), and the cost
// of FairShares for the different sets of candidates.
std::vector<Stripes> ShareOut(absl::Span<const Demand> demands);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_BALANCE_H_
