#ifndef HEADRACE_PLANNER_TESTING_RANDOM_MANIFEST_H_
#define HEADRACE_PLANNER_TESTING_RANDOM_MANIFEST_H_

// Test only. Small manifests that can be planned, by a random generator: tensors of 0 to 5 axes and all widths of
// elements; sources that hold random boxes, partly replicated and overlapping; buffers fused from several pieces along
// any axis, transposed, pitched, with fills and holes; views that nest and views that do not; storages shared by
// several buffers, and aliases.

#include <cstdint>
#include <random>

#include "planner/manifest.h"

namespace headrace {

using Random = std::mt19937_64;

struct RandomManifestOptions {
  int max_tensors = 4;
  Index max_extent = 5;
  Index max_elements = 200;  // of a tensor
  int max_ranks = 4;         // of a side
  bool sub_byte = true;
  int max_hosts = 1;          // of both sides together; ranks are placed at random
  int broadcast_percent = 0;  // tensors with a name that the policy hybrid broadcasts
};

// In [low, high].
Index Uniform(Random& random, Index low, Index high);

Manifest RandomManifest(Random& random, const RandomManifestOptions& options = {});

}  // namespace headrace

#endif  // HEADRACE_PLANNER_TESTING_RANDOM_MANIFEST_H_
