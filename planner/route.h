#ifndef HEADRACE_PLANNER_ROUTE_H_
#define HEADRACE_PLANNER_ROUTE_H_

// Which bytes go to one place each, and which travel through a stream (plan.h says what both are).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "planner/intersect.h"
#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// On which host, and of which engine, each rank is. Ranks without a placement, or with one that names no host, are on
// the host "", and of the engine "".
class Hosts {
 public:
  // `manifest` outlives this.
  explicit Hosts(const Manifest& manifest);

  absl::string_view OfSource(int64_t rank) const { return HostIn(source_, rank); }
  absl::string_view OfDestination(int64_t rank) const { return HostIn(destination_, rank); }
  // "" where there is none.
  absl::string_view DomainOfDestination(int64_t rank) const;
  absl::string_view EngineOfDestination(int64_t rank) const;
  // Whether all ranks that hold buffers are on one host.
  bool AllOne() const { return all_one_; }

 private:
  using Placements = absl::flat_hash_map<int64_t, const Placement*>;
  static absl::string_view HostIn(const Placements& placements, int64_t rank);

  Placements source_, destination_;
  bool all_one_ = true;
};

// A box that one of some source boxes sends once: to one destination box on a direct edge, or through a stream.
struct Shipment {
  Box box;
  absl::InlinedVector<int, 2> destinations;  // indices into TensorCells::destination, ascending; one on a direct edge
  std::vector<int> sources;                  // candidates; indices into TensorCells::source, not empty
  bool stream = false;
};

struct Route {
  Decision decision;
  std::vector<Shipment> shipments;  // together all cells of the tensor
};

// How one tensor travels. Its cells are moved from.
Route RouteTensor(const Manifest& manifest, const Hosts& hosts, Policy policy, const TensorSpec& tensor,
                  TensorCells* cut);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_ROUTE_H_
