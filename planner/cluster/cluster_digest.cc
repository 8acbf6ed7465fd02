#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/cluster/cluster_figures.h"
#include "planner/digest.h"

namespace headrace {
namespace {

std::string Quote(absl::string_view name) { return absl::StrCat("\"", absl::CEscape(name), "\""); }

void AppendGroups(const char* side, const std::vector<RankGroup>& groups, std::string* out) {
  for (const RankGroup& group : groups) {
    absl::StrAppend(out, side, " group");
    for (const std::vector<int32_t>& shard : group.shards) absl::StrAppend(out, " [", absl::StrJoin(shard, " "), "]");
    if (!group.experts_before.empty()) absl::StrAppend(out, " after ", absl::StrJoin(group.experts_before, " "));
    *out += "\n";
  }
}

void AppendUnit(const ClusterUnit& unit, const UnitPlan& plan, std::string* out) {
  const Manifest& m = unit.manifest;
  absl::StrAppend(out, "unit ", Quote(unit.unit.name), " stacked ", unit.source_stacked, unit.destination_stacked,
                  "\n");
  std::vector<Copy> copies;
  for (size_t c = 0; c < plan.cells().size(); ++c) {
    const UnitCell& cell = plan.cells()[c];
    const CellClass& cell_class = plan.classes()[cell.cell_class];
    absl::StrAppend(out, "cell ", Quote(m.tensors[cell.tensor].name), " ", cell.bytes, " slices ", cell.slicing.bytes,
                    " unit ", cell.stripe_unit, " class ", cell.cell_class, " at ", cell.class_offset, " from ",
                    absl::StrJoin(plan.source_sets()[cell_class.source_set], " "), " to ",
                    absl::StrJoin(plan.destination_sets()[cell_class.destination_set], " "), "\n");
    for (size_t s = 0; s < cell.sources.size(); ++s) {
      copies.clear();
      plan.AppendCopies(static_cast<int>(c), static_cast<int>(s), 0, cell.bytes, 0, cell.wanted_by.size(), &copies);
      for (const Copy& copy : copies) {
        absl::StrAppend(out, "copy ", m.source[copy.source].rank, " ", Quote(m.source[copy.source].name), "+",
                        copy.source_offset, " -> ");
        absl::StrAppend(out, m.destination[copy.destination].rank, " ", Quote(m.destination[copy.destination].name),
                        "+", copy.destination_offset, " @", copy.position, " run ", copy.run_bytes, " part ",
                        copy.part);
        for (const CopyLoop& l : copy.loops) {
          absl::StrAppend(out, " ", l.extent, "x", l.source_stride, ",", l.destination_stride, ",", l.position_stride);
        }
        *out += "\n";
      }
    }
  }
  for (const ZeroFill& z : plan.zero_fills()) {
    absl::StrAppend(out, "zero ", m.destination[z.destination].rank, " ", Quote(m.destination[z.destination].name), "+",
                    z.destination_offset, " run ", z.run_bytes);
    for (const CopyLoop& l : z.loops) absl::StrAppend(out, " ", l.extent, "x", l.destination_stride);
    *out += "\n";
  }
  for (const UnitInstance& i : unit.instances) {
    absl::StrAppend(out, "instance ", i.layer, " ", i.expert, " from ", i.source_group, ":", i.source_expert, " to ",
                    i.destination_group, ":");
    absl::StrAppend(out, i.destination_expert, "\n");
  }
  AppendGroups("source", unit.source_groups, out);
  AppendGroups("destination", unit.destination_groups, out);
}

}  // namespace

std::string CanonicalText(const ClusterPlan& plan) {
  const Cluster& cluster = plan.cluster();
  std::string out = absl::StrCat("cluster ", Quote(cluster.model), " ", Quote(cluster.layout), " policy ",
                                 PolicyName(plan.policy()), "\n");
  for (const SideShape* side : {&cluster.source, &cluster.destination}) {
    absl::StrAppend(&out, "ranks ", side->ranks, " by host ", side->ranks_per_host, " by domain ",
                    side->ranks_per_domain, "\n");
  }
  if (!cluster.engine_borders.empty()) {
    absl::StrAppend(&out, "engines from ", absl::StrJoin(cluster.engine_borders, " "), "\n");
  }
  for (size_t u = 0; u < cluster.units.size(); ++u) {
    AppendUnit(cluster.units[u], plan.unit_plan(static_cast<int>(u)), &out);
  }
  for (const Aggregate& a : plan.aggregates()) {
    absl::StrAppend(&out, "items load ", a.load, "+", a.load_begin, " consumers ", a.consumers, "+", a.consumers_begin,
                    "\n");
  }
  for (const Load& load : plan.loads()) {
    absl::StrAppend(&out, "load of ", absl::StrJoin(load.candidates, " "), " cut ", absl::StrJoin(load.begins, " "),
                    " by ", absl::StrJoin(load.owners, " "), "\n");
  }
  for (const ConsumerSet& set : plan.consumers()) {
    absl::StrAppend(&out, "consumers ", absl::StrJoin(set.ranks(), " "), " cut ", absl::StrJoin(set.borders(), " "),
                    " doors ", absl::StrJoin(set.doors(), " "), " of ", absl::StrJoin(set.entry_places(), " "), "\n");
    for (size_t d = 0; d < set.domains().size(); ++d) {
      const auto domain = static_cast<int>(d);
      if (!set.SharesEqually(domain)) {
        absl::StrAppend(&out, "domain ", d, " by ", absl::StrJoin(set.Shares(domain), " "), "\n");
      }
    }
  }
  return out;
}

std::string ClusterDigest(const ClusterPlan& plan) { return Sha256(CanonicalText(plan)); }

}  // namespace headrace
