#include "planner/plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "planner/balance.h"
#include "planner/copy_nest.h"
#include "planner/coverage.h"
#include "planner/intersect.h"
#include "planner/route.h"
#include "planner/status.h"
#include "planner/streams.h"
#include "planner/stripe.h"
#include "planner/validate.h"

namespace headrace {
namespace {

// The boxes of one tensor that come from one source box to the same destination boxes in the same way, joined where
// they are adjacent.
struct Sides {
  absl::InlinedVector<int, 2> destinations;
  int source;
  bool stream;
  bool operator<(const Sides& other) const {
    return std::tie(destinations, source, stream) < std::tie(other.destinations, other.source, other.stream);
  }
};
using BoxGroups = std::map<Sides, std::vector<Box>>;

void AddBox(BoxGroups* groups, Sides sides, Box box) { AppendJoined(std::move(box), &(*groups)[std::move(sides)]); }

Demand DemandOf(const Manifest& m, const TensorSpec& tensor, const TensorCells& cut, const Shipment& shipment) {
  Demand demand{DtypeBytes(Volume(shipment.box), tensor.dtype), SlicingOf(tensor, shipment.box).bytes, {}};
  demand.ranks.reserve(shipment.sources.size());
  for (int s : shipment.sources) demand.ranks.push_back(m.source[cut.source[s].buffer].rank);
  return demand;
}

std::vector<Edge> DirectEdges(const Manifest& m, const std::vector<Copy>& copies) {
  std::vector<Edge> edges;
  for (size_t i = 0; i < copies.size(); ++i) {
    const int64_t source = m.source[copies[i].source].rank, destination = m.destination[copies[i].destination].rank;
    if (edges.empty() || edges.back().source_rank != source || edges.back().destination_rank != destination) {
      edges.push_back({source, destination, i, 0});
    }
    ++edges.back().count;
  }
  return edges;
}

// One edge for each rank of each chain; they count in the copies of their stream.
std::vector<Edge> StreamEdges(const Manifest& m, const StreamCopies& made) {
  std::vector<Edge> edges;
  for (size_t s = 0; s < made.streams.size(); ++s) {
    const std::vector<Copy>& copies = made.copies[s];
    auto rank_of = [&](const Copy& c) { return m.destination[c.destination].rank; };
    for (int64_t rank : made.streams[s].chain) {
      const auto first = std::lower_bound(copies.begin(), copies.end(), rank,
                                          [&](const Copy& c, int64_t r) { return rank_of(c) < r; });
      const auto last = std::find_if(first, copies.end(), [&](const Copy& c) { return rank_of(c) != rank; });
      edges.push_back({made.streams[s].source_rank, rank, static_cast<size_t>(first - copies.begin()),
                       static_cast<size_t>(last - first), static_cast<int>(s)});
    }
  }
  return edges;
}

// Puts the copies of all edges into one list, edge by edge.
void Assemble(const Manifest& m, std::vector<Copy> direct, StreamCopies made, Plan* plan) {
  plan->edges = DirectEdges(m, direct);
  if (made.streams.empty()) {
    plan->copies = std::move(direct);
    return;
  }
  const std::vector<Edge> streamed = StreamEdges(m, made);
  plan->streams = std::move(made.streams);
  plan->edges.insert(plan->edges.end(), streamed.begin(), streamed.end());
  std::sort(plan->edges.begin(), plan->edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.destination_rank, a.source_rank, a.stream) <
           std::tie(b.destination_rank, b.source_rank, b.stream);
  });
  for (Edge& e : plan->edges) {
    std::vector<Copy>& from = e.stream < 0 ? direct : made.copies[e.stream];
    const auto first = from.begin() + static_cast<ptrdiff_t>(e.first);
    e.first = plan->copies.size();
    std::move(first, first + static_cast<ptrdiff_t>(e.count), std::back_inserter(plan->copies));
  }
}

}  // namespace

absl::string_view TransferName(TransferKind kind) { return kind == TransferKind::kReshard ? "reshard" : "broadcast"; }

absl::string_view InstallName(InstallKind kind) { return kind == InstallKind::kDirect ? "direct" : "loader"; }

absl::string_view PolicyName(Policy policy) { return policy == Policy::kAuto ? "auto" : "hybrid"; }

absl::StatusOr<Policy> ParsePolicy(absl::string_view name) {
  for (Policy policy : {Policy::kAuto, Policy::kHybrid}) {
    if (PolicyName(policy) == name) return policy;
  }
  return Error(ErrorCode::kInvalidOption, absl::StrCat("the policy \"", name, "\" is neither auto nor hybrid"));
}

absl::StatusOr<Plan> BuildPlan(const Manifest& manifest, const PlanOptions& options) {
  HR_RETURN_IF_ERROR(Validate(manifest));
  HR_ASSIGN_OR_RETURN(std::vector<TensorCells> tensors, Intersect(manifest));

  Plan plan;
  const Hosts hosts(manifest);
  std::vector<std::vector<Shipment>> shipments;
  std::vector<Demand> demands;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorSpec& tensor = manifest.tensors[t];
    Route route = RouteTensor(manifest, hosts, options.policy, tensor, &tensors[t]);
    for (const Shipment& s : route.shipments) demands.push_back(DemandOf(manifest, tensor, tensors[t], s));
    tensors[t].cells = {};  // shipments take their place
    shipments.push_back(std::move(route.shipments));
    plan.decisions.push_back(std::move(route.decision));
  }
  const std::vector<Stripes> stripes = ShareOut(demands);

  std::vector<Copy> direct;
  StreamBuilder streams(manifest, hosts, tensors);
  std::map<int64_t, Index> entering;  // destination ranks, from other hosts, by direct edges
  size_t next = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorSpec& tensor = manifest.tensors[t];
    const TensorCells& cut = tensors[t];
    BoxGroups groups;
    for (Shipment& s : shipments[t]) {
      CutIntoStripes(tensor, std::move(s.box), stripes[next++], [&](const Stripe& stripe, Box box) {
        AddBox(&groups, {s.destinations, s.sources[stripe.candidate], s.stream}, std::move(box));
      });
    }
    shipments[t] = {};
    for (const auto& [sides, boxes] : groups) {
      for (const Box& box : boxes) {
        if (sides.stream) {
          streams.Add(plan.decisions[t].transfer, static_cast<int>(t), box, sides.source, sides.destinations);
          continue;
        }
        LowerBox(tensor, static_cast<int>(t), cut, box, sides.source, sides.destinations, &direct);
        if (hosts.AllOne()) continue;
        const int64_t source = manifest.source[cut.source[sides.source].buffer].rank;
        const int64_t rank = manifest.destination[cut.destination[sides.destinations[0]].buffer].rank;
        if (hosts.OfSource(source) == hosts.OfDestination(rank)) continue;
        entering[rank] = SaturatedSum(entering[rank], DtypeBytes(Volume(box), tensor.dtype));
      }
    }
  }
  std::sort(direct.begin(), direct.end(), [&](const Copy& a, const Copy& b) {
    auto key = [&](const Copy& c) {
      return std::make_tuple(manifest.destination[c.destination].rank, manifest.source[c.source].rank, c.destination,
                             c.destination_offset);
    };
    return key(a) < key(b);
  });
  JoinRuns(&direct);
  Assemble(manifest, std::move(direct), std::move(streams).Build(entering), &plan);
  plan.zero_fills = LowerZeroFills(manifest);
  HR_RETURN_IF_ERROR(ProveCoverage(manifest, plan));
  return plan;
}

}  // namespace headrace
