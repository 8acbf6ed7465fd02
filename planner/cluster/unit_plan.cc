#include "planner/cluster/unit_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "planner/balance.h"
#include "planner/broadcast_policy.h"
#include "planner/copy_nest.h"
#include "planner/shared_cells.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Sets by their content, numbered as they come.
class SetNumbers {
 public:
  int Of(const std::vector<int>& set, std::vector<std::vector<int>>* sets) {
    const auto [it, fresh] = known_.try_emplace(set, static_cast<int>(sets->size()));
    if (fresh) sets->push_back(set);
    return it->second;
  }

 private:
  std::map<std::vector<int>, int> known_;
};

bool ByShard(const ShardBox& a, const ShardBox& b) { return a.shard != b.shard ? a.shard < b.shard : a.box < b.box; }

}  // namespace

absl::StatusOr<UnitPlan> UnitPlan::Make(const ClusterUnit& unit, Policy policy) {
  UnitPlan plan(unit);
  HR_ASSIGN_OR_RETURN(plan.tensors_, Intersect(unit.manifest));
  for (size_t t = 0; t < plan.tensors_.size(); ++t) {
    const bool broadcast = policy == Policy::kHybrid && !BroadcastKind(unit.manifest.tensors[t].name).empty();
    plan.AddTensor(static_cast<int>(t), broadcast);
    plan.tensors_[t].cells = {};
  }
  plan.Classify();
  plan.zero_fills_ = LowerZeroFills(unit.manifest);
  return plan;
}

void UnitPlan::AddTensor(int tensor, bool broadcast) {
  const Manifest& m = unit_->manifest;
  const TensorCells& cut = tensors_[tensor];
  std::vector<int> all(cut.cells.size());
  std::iota(all.begin(), all.end(), 0);
  absl::InlinedVector<int, 2> holders;
  for (const PlacedBox& b : cut.destination) holders.push_back(static_cast<int>(m.destination[b.buffer].rank));
  std::sort(holders.begin(), holders.end());
  holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
  for (SharedCell& shared : ShareCells(cut, all)) {
    UnitCell cell;
    cell.tensor = tensor;
    cell.bytes = DtypeBytes(Volume(shared.box), m.tensors[tensor].dtype);
    cell.slicing = SlicingOf(m.tensors[tensor], shared.box);
    cell.stripe_unit = (kMinStripeBytes + cell.slicing.bytes - 1) / cell.slicing.bytes * cell.slicing.bytes;
    for (int s : shared.sources) cell.sources.push_back({static_cast<int>(m.source[cut.source[s].buffer].rank), s});
    std::sort(cell.sources.begin(), cell.sources.end(), ByShard);
    cell.sources.erase(std::unique(cell.sources.begin(), cell.sources.end(),
                                   [](const ShardBox& a, const ShardBox& b) { return a.shard == b.shard; }),
                       cell.sources.end());
    for (int d : shared.destinations) {
      cell.wanted_by.push_back({static_cast<int>(m.destination[cut.destination[d].buffer].rank), d});
    }
    std::sort(cell.wanted_by.begin(), cell.wanted_by.end(), ByShard);
    absl::InlinedVector<int, 2> to;
    for (const ShardBox& b : cell.wanted_by) {
      if (to.empty() || to.back() != b.shard) to.push_back(b.shard);
    }
    goes_to_.push_back(broadcast ? holders : std::move(to));
    cell.first_template = static_cast<int>(templates_.size());
    for (size_t s = 0; s < cell.sources.size(); ++s) {
      templates_.push_back(Lower(cell, static_cast<int>(s), shared.box));
    }
    cell.box = std::move(shared.box);
    cells_.push_back(std::move(cell));
  }
}

void UnitPlan::Classify() {
  SetNumbers sources, destinations;
  std::map<std::pair<int, int>, int> known;
  for (size_t c = 0; c < cells_.size(); ++c) {
    UnitCell& cell = cells_[c];
    std::vector<int> from;
    for (const ShardBox& s : cell.sources) from.push_back(s.shard);
    const int source_set = sources.Of(from, &source_sets_);
    const int destination_set = destinations.Of({goes_to_[c].begin(), goes_to_[c].end()}, &destination_sets_);
    const auto [it, fresh] = known.try_emplace({source_set, destination_set}, static_cast<int>(classes_.size()));
    if (fresh) classes_.push_back({source_set, destination_set, 0, {}});
    CellClass& cell_class = classes_[it->second];
    cell.cell_class = it->second;
    cell.class_offset = cell_class.bytes;
    cell_class.bytes = SaturatedSum(cell_class.bytes, cell.bytes);
    cell_class.cells.push_back(static_cast<int>(c));
  }
  goes_to_ = {};
}

std::vector<Copy> UnitPlan::Lower(const UnitCell& cell, int source, const Box& box) const {
  std::vector<Copy> out;
  absl::InlinedVector<int, 4> destinations;
  for (const ShardBox& b : cell.wanted_by) destinations.push_back(b.box);
  LowerBox(unit_->manifest.tensors[cell.tensor], cell.tensor, tensors_[cell.tensor], box, cell.sources[source].box,
           destinations, &out);
  for (size_t i = 0; i < out.size(); ++i) out[i].part = static_cast<int>(i / destinations.size());
  return out;
}

void UnitPlan::AppendCopies(int c, int source, Index offset, Index bytes, size_t first, size_t count,
                            std::vector<Copy>* out) const {
  const UnitCell& cell = cells_[c];
  const size_t boxes = cell.wanted_by.size();
  auto append = [&](const std::vector<Copy>& copies) {
    for (size_t i = first; i < copies.size(); i += boxes) {
      out->insert(out->end(), copies.begin() + static_cast<ptrdiff_t>(i),
                  copies.begin() + static_cast<ptrdiff_t>(i + count));
    }
  };
  if (bytes == cell.bytes) return append(templates_[cell.first_template + source]);
  Box stripe = cell.box;
  stripe.start[cell.slicing.axis] += offset / cell.slicing.bytes * cell.slicing.unit;
  stripe.extent[cell.slicing.axis] = bytes / cell.slicing.bytes * cell.slicing.unit;
  append(Lower(cell, source, stripe));
}

Index UnitPlan::Parts(int cell, int source) const {
  return static_cast<Index>(templates_[cells_[cell].first_template + source].size() / cells_[cell].wanted_by.size());
}

}  // namespace headrace
