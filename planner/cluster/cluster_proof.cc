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

  // Round r takes each cell's r-th way.
  absl::Status CheckCopies() {
    size_t rounds = 1;
    for (const std::set<Delivery>& ways : ways_) rounds = std::max(rounds, ways.size());
    std::vector<std::set<Delivery>::const_iterator> way;
    for (const std::set<Delivery>& ways : ways_) way.push_back(ways.begin());
    for (size_t r = 0; r < rounds; ++r) {
      Plan plan;
      plan.zero_fills = answers_.ZeroFills(number_);
      plan.decisions.resize(unit_.manifest.tensors.size());
      for (size_t c = 0; c < cells_.size(); ++c) {
        for (const SentStripe& stripe : *way[c]) HR_RETURN_IF_ERROR(AddStream(static_cast<int>(c), stripe, &plan));
        if (std::next(way[c]) != ways_[c].end()) ++way[c];
      }
      if (absl::Status status = ProveCoverage(unit_.manifest, plan); !status.ok()) {
        return WithMessage(status, absl::StrCat("unit \"", unit_.unit.name, "\": ", status.message()));
      }
    }
    return absl::OkStatus();
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
