#include "planner/layout/engines.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::Status AddEngine(Manifest& manifest, const std::string& engine, std::vector<std::vector<Buffer>> workers) {
  if (engine.empty()) return Error(ErrorCode::kInvalidOption, "an engine without a name: give it one");
  int64_t rank = 0;
  for (const Placement& placed : manifest.topology.destination) {
    if (placed.engine == engine) {
      return Error(ErrorCode::kInvalidOption,
                   absl::StrCat("engine \"", engine, "\": give each engine of a manifest a name of its own"));
    }
    rank = std::max(rank, placed.rank + 1);
  }
  for (const Buffer& buffer : manifest.destination) {
    if (buffer.rank >= rank) {
      return Error(ErrorCode::kMalformed, absl::StrCat("destination rank ", buffer.rank, ", buffer \"", buffer.name,
                                                       "\" is of an engine without a place in the topology"));
    }
  }
  for (std::vector<Buffer>& buffers : workers) {
    for (Buffer& buffer : buffers) buffer.rank = rank;
    manifest.destination.insert(manifest.destination.end(), std::make_move_iterator(buffers.begin()),
                                std::make_move_iterator(buffers.end()));
    manifest.topology.destination.push_back({rank++, "", "", engine});
  }
  return absl::OkStatus();
}

}  // namespace headrace
