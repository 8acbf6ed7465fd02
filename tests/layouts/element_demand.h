#ifndef HEADRACE_TESTS_LAYOUTS_ELEMENT_DEMAND_H_
#define HEADRACE_TESTS_LAYOUTS_ELEMENT_DEMAND_H_

// Test only. Who must send how much, counted element by element from a manifest alone, with no part of the planner's
// arithmetic: what the figures of a plan are compared with.

#include <cstdint>
#include <map>
#include <vector>

#include "planner/manifest.h"

namespace headrace {

struct ElementDemand {
  std::vector<int64_t> source_ranks;  // up to 16, sorted; bit i of a set of ranks is the i-th
  Index needed_bytes = 0;             // what all destination places hold of tensors
  // Once for each engine on each host, of elements that it wants and no source rank of that host offers.
  Index host_wire_bytes = 0;
  // What source ranks send when everything is resharded, by the set of ranks that could send it: to a place whose own
  // host offers the element from there, otherwise once for each engine on a host.
  std::map<uint32_t, Index> by_candidates;
  // Of each tensor: the places, and the distinct elements of each engine.
  std::vector<Index> needed_of_tensor;
  std::vector<Index> distinct_of_tensor;

  // The least that the busiest rank can send were everything divisible: the worst mean, over all sets of ranks, of what
  // only ranks of the set can send.
  double LeastBusiest() const;
};

// Of a manifest that Validate accepts, with tensors of whole bytes.
ElementDemand CountElements(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_TESTS_LAYOUTS_ELEMENT_DEMAND_H_
