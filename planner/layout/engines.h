#ifndef HEADRACE_PLANNER_LAYOUT_ENGINES_H_
#define HEADRACE_PLANNER_LAYOUT_ENGINES_H_

// Several engines, of layouts that need not be alike, as the destinations of one manifest. Pure and thread-safe.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "planner/manifest.h"

namespace headrace {

// Adds an engine: workers[w] are the buffers of its worker w, with any ranks, which become first, first + 1, ... where
// `first` follows the manifest's highest destination rank. All destination ranks are then placed in the topology, the
// new ones with the engine's name.
//   invalid_option  an empty name, or one that the topology has
//   malformed       a manifest with destination buffers that the topology does not place
absl::Status AddEngine(Manifest& manifest, const std::string& engine, std::vector<std::vector<Buffer>> workers);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_ENGINES_H_
