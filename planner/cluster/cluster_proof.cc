#include "planner/cluster/cluster_proof.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/broadcast_policy.h"
#include "planner/cluster/check_cluster.h"
#include "planner/cluster/route_check.h"
#include "planner/coverage.h"
#include "planner/status.h"

namespace headrace {
namespace {

struct SentStripe {
  int source_shard = 0;
  Index offset = 0;
  Index bytes = 0;

  auto operator<=>(const SentStripe&) const = default;
};
using Delivery = std::vector<SentStripe>;  // of a whole cell

class UnitProof {
 public:
  UnitProof(const Cluster& cluster, const ClusterAnswers& answers, int unit)
      : cluster_(cluster), answers_(answers), number_(unit), unit_(cluster.units[unit]) {}

  absl::Status Run() {
    for (int c = 0; c < answers_.CellCount(number_); ++c) {
      cells_.push_back(answers_.DescribeCell(number_, c));
      HR_RETURN_IF_ERROR(CheckCell(c));
    }
    ways_.resize(cells_.size());
    HR_RETURN_IF_ERROR(CheckItems());
    return CheckCopies();
  }

 private:
  absl::Status Invalid(int cell, const std::string& what) const {
    return Error(ErrorCode::kPlanInvalid, absl::StrCat("unit \"", unit_.unit.name, "\", cell ", cell, ": ", what));
  }

  absl::Status CheckCell(int c) const {
    const CellAnswer& cell = cells_[c];
    auto sane = [](const std::vector<int>& shards, const std::vector<RankGroup>& groups) {
      return !shards.empty() && std::is_sorted(shards.begin(), shards.end(), std::less_equal<int>()) &&
             shards.front() >= 0 && (groups.empty() || shards.back() < static_cast<int>(groups[0].shards.size()));
    };
    if (cell.tensor < 0 || cell.tensor >= static_cast<int>(unit_.manifest.tensors.size()) || cell.bytes <= 0 ||
        !sane(cell.source_shards, unit_.source_groups) || !sane(cell.goes_to, unit_.destination_groups)) {
      return Invalid(c, "it has no bytes or tensor, or shards that do not exist or are not in order");
    }
    return absl::OkStatus();
  }

  absl::Status CheckItems() {
    std::vector<int32_t> instances(unit_.instances.size());
    std::iota(instances.begin(), instances.end(), 0);
    std::stable_sort(instances.begin(), instances.end(), [&](int32_t a, int32_t b) {
      return unit_.instances[a].destination_group < unit_.instances[b].destination_group;
    });
    RouteCheck routes(cluster_, answers_);
    std::vector<StripeRoute> stripes;
    for (int32_t c = 0; c < static_cast<int32_t>(cells_.size()); ++c) {
      for (int s : cells_[c].source_shards) ways_[c].insert({{s, 0, cells_[c].bytes}});
      for (int32_t i : instances) {
        const ItemId item{number_, i, c};
        answers_.Route(item, &stripes);
        HR_RETURN_IF_ERROR(routes.Check(item, cells_[c], stripes));
        if (stripes.size() == 1) continue;
        Delivery way;
        for (const StripeRoute& s : stripes) way.push_back({s.source_shard, s.offset, s.bytes});
        ways_[c].insert(std::move(way));
      }
    }
    return absl::OkStatus();
  }

  // All cells in their first way; then each further way of a cell, together with the tensors that share its buffers.
  absl::Status CheckCopies() const {
    std::vector<int> all(cells_.size());
    std::iota(all.begin(), all.end(), 0);
    HR_RETURN_IF_ERROR(ProveWays(unit_.manifest, all, 0));
    for (const std::vector<int>& cells : SharingBuffers()) {
      size_t ways = 1;
      for (int c : cells) ways = std::max(ways, ways_[c].size());
      if (ways == 1) continue;
      std::set<std::string> tensors;
      for (int c : cells) tensors.insert(unit_.manifest.tensors[cells_[c].tensor].name);
      Manifest manifest = unit_.manifest;
      std::vector<int> kept;
      for (size_t b = 0; b < unit_.manifest.destination.size(); ++b) {
        const std::vector<Piece>& pieces = unit_.manifest.destination[b].pieces;
        if (std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return tensors.contains(p.tensor); })) {
          kept.push_back(static_cast<int>(b));
        }
      }
      manifest.destination.clear();
      for (int b : kept) manifest.destination.push_back(unit_.manifest.destination[b]);
      for (size_t way = 1; way < ways; ++way) HR_RETURN_IF_ERROR(ProveWays(manifest, cells, way, kept));
    }
    return absl::OkStatus();
  }

  // Cells by tensors that are in one buffer with each other.
  std::vector<std::vector<int>> SharingBuffers() const {
    std::map<std::string, int> parent_of;
    std::vector<int> parent(unit_.manifest.tensors.size());
    std::iota(parent.begin(), parent.end(), 0);
    for (size_t t = 0; t < parent.size(); ++t) parent_of[unit_.manifest.tensors[t].name] = static_cast<int>(t);
    auto root = [&](int t) {
      while (parent[t] != t) t = parent[t] = parent[parent[t]];
      return t;
    };
    for (const Buffer& b : unit_.manifest.destination) {
      int first = -1;
      for (const Piece& p : b.pieces) {
        if (p.kind != PieceKind::kTensor) continue;
        const int t = root(parent_of.at(p.tensor));
        if (first < 0) first = t;
        parent[t] = root(first);
      }
    }
    std::map<int, std::vector<int>> cells;
    for (size_t c = 0; c < cells_.size(); ++c) cells[root(cells_[c].tensor)].push_back(static_cast<int>(c));
    std::vector<std::vector<int>> out;
    for (auto& [tensor, list] : cells) out.push_back(std::move(list));
    return out;
  }

  // ProveCoverage of the cells' copies, each in its way of that number, or its last. `manifest` is the unit's; where
  // `kept` is not empty, it has these destination buffers alone.
  absl::Status ProveWays(const Manifest& manifest, const std::vector<int>& cells, size_t way,
                         const std::vector<int>& kept = {}) const {
    std::vector<int> number(unit_.manifest.destination.size(), -1);
    for (size_t b = 0; b < number.size(); ++b) number[b] = kept.empty() ? static_cast<int>(b) : -1;
    for (size_t k = 0; k < kept.size(); ++k) number[kept[k]] = static_cast<int>(k);
    Plan plan;
    plan.decisions.resize(manifest.tensors.size());
    for (const ZeroFill& fill : answers_.ZeroFills(number_)) {
      if (kept.empty()) {
        plan.zero_fills.push_back(fill);
      } else if (fill.destination >= 0 && fill.destination < static_cast<int>(number.size()) &&
                 number[fill.destination] >= 0) {
        plan.zero_fills.push_back(fill);
        plan.zero_fills.back().destination = number[fill.destination];
      }
    }
    for (int c : cells) {
      auto delivery = ways_[c].begin();
      std::advance(delivery, std::min(way, ways_[c].size() - 1));
      for (const SentStripe& stripe : *delivery) HR_RETURN_IF_ERROR(AddStream(c, stripe, &plan));
    }
    if (!kept.empty()) {
      for (Copy& copy : plan.copies) copy.destination = number[copy.destination];
    }
    const absl::Status status = ProveCoverage(manifest, plan);
    if (status.ok()) return status;
    return WithMessage(status, absl::StrCat("unit \"", unit_.unit.name, "\": ", status.message()));
  }

  absl::Status AddStream(int c, const SentStripe& stripe, Plan* plan) const {
    const CellAnswer& cell = cells_[c];
    std::vector<Copy> copies;
    answers_.AppendCopies(number_, c, stripe.source_shard, stripe.offset, stripe.bytes, &copies);
    Stream stream{stripe.source_shard, {cell.goes_to.begin(), cell.goes_to.end()}, {}};
    std::map<int64_t, std::vector<Copy>> by_shard;
    Index bytes = 0;
    for (const Copy& copy : copies) {
      if (copy.destination < 0 || copy.destination >= static_cast<int>(unit_.manifest.destination.size()) ||
          copy.tensor != cell.tensor) {
        return Invalid(c, "a copy is of another tensor, or goes nowhere");
      }
      by_shard[unit_.manifest.destination[copy.destination].rank].push_back(copy);
      if (copy.part != static_cast<int>(stream.parts.size())) continue;
      Part part{copy.tensor, copy.source, copy.source_offset, copy.position, copy.run_bytes, {}};
      for (const CopyLoop& l : copy.loops) part.loops.push_back({l.extent, l.source_stride, l.position_stride});
      Index part_bytes = part.run_bytes;
      for (const PartLoop& l : part.loops) {
        if (__builtin_mul_overflow(part_bytes, l.extent, &part_bytes)) return Invalid(c, "a copy past 2^63 bytes");
      }
      if (part_bytes <= 0 || __builtin_add_overflow(bytes, part_bytes, &bytes)) {
        return Invalid(c, "a copy of no bytes, or past 2^63");
      }
      stream.parts.push_back(std::move(part));
    }
    if (bytes != stripe.bytes) {
      return Invalid(c, absl::StrCat("the copies from source shard ", stripe.source_shard, " have ", bytes,
                                     " bytes, not the ", stripe.bytes, " at ", stripe.offset));
    }
    const bool broadcast =
        answers_.policy() == Policy::kHybrid && !BroadcastKind(unit_.manifest.tensors[cell.tensor].name).empty();
    const int index = static_cast<int>(plan->streams.size());
    for (int shard : cell.goes_to) {
      std::vector<Copy>& wanted = by_shard[shard];
      if (wanted.empty() && !(broadcast && HoldsAny(shard, cell.tensor))) {
        return Invalid(c, absl::StrCat("it goes to destination shard ", shard, ", which does not want it"));
      }
      plan->edges.push_back({stream.source_rank, shard, plan->copies.size(), wanted.size(), index});
      plan->copies.insert(plan->copies.end(), wanted.begin(), wanted.end());
    }
    if (by_shard.size() != cell.goes_to.size()) return Invalid(c, "a shard that wants it does not get it");
    plan->streams.push_back(std::move(stream));
    return absl::OkStatus();
  }

  bool HoldsAny(int shard, int tensor) const {
    for (const Buffer& b : unit_.manifest.destination) {
      if (b.rank != shard) continue;
      for (const Piece& p : b.pieces) {
        if (p.kind == PieceKind::kTensor && p.tensor == unit_.manifest.tensors[tensor].name) return true;
      }
    }
    return false;
  }

  const Cluster& cluster_;
  const ClusterAnswers& answers_;
  const int number_;
  const ClusterUnit& unit_;
  std::vector<CellAnswer> cells_;
  std::vector<std::set<Delivery>> ways_;  // by cell: each way in which it is sent
};

}  // namespace

absl::Status ProveCluster(const Cluster& cluster, const ClusterAnswers& answers) {
  HR_RETURN_IF_ERROR(CheckCluster(cluster));
  for (size_t u = 0; u < cluster.units.size(); ++u) {
    HR_RETURN_IF_ERROR(UnitProof(cluster, answers, static_cast<int>(u)).Run());
  }
  return absl::OkStatus();
}

}  // namespace headrace
