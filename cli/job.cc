#include "cli/job.h"

#include <algorithm>
#include <filesystem>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/layout_json.h"
#include "planner/models/records.h"
#include "planner/status.h"

namespace headrace {
namespace {

bool IsFile(const std::string& name) { return absl::StrContains(name, '/') || absl::EndsWith(name, ".json"); }

absl::StatusOr<JobLayout> LoadLayout(const std::string& name) {
  if (!IsFile(name)) return LayoutNamed(name);
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(name));
  return ParseLayout(text);
}

absl::StatusOr<Model> LoadModel(const std::string& name) {
  if (!IsFile(name)) return ModelNamed(name);
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(name));
  return ParseModelRecord(std::filesystem::path(name).stem().string(), text);
}

// " TP4 DP2": sizes above 1; TP always.
std::string Sizes(const ParallelLayout& p) {
  std::string text = absl::StrCat("TP", p.tp);
  for (const auto& [name, size] : {std::pair("CP", p.cp), {"PP", p.pp}, {"DP", p.dp}, {"EP", p.ep}}) {
    if (size > 1) absl::StrAppend(&text, " ", name, size);
  }
  if (p.ep > 1 && p.etp > 1) absl::StrAppend(&text, " ETP", p.etp);
  return text;
}

}  // namespace

absl::StatusOr<Job> LoadJob(const LayoutChoice& options) {
  Job job;
  HR_ASSIGN_OR_RETURN(job.layout, LoadLayout(options.layout));
  HR_ASSIGN_OR_RETURN(job.model, LoadModel(options.model.empty() ? job.layout.model : options.model));
  if (job.model.name != job.layout.model) {
    job.notes.push_back(absl::StrCat("The layout is one of ", job.layout.model, ", not of ", job.model.name, "."));
  }
  if (!job.layout.note.empty()) job.notes.push_back(job.layout.note);
  HR_ASSIGN_OR_RETURN(job.cluster, BuildCluster(job.model, job.layout));
  return job;
}

std::string TrainerText(const JobLayout& layout) {
  std::string sizes;
  if (const auto* megatron = std::get_if<MegatronLayout>(&layout.trainer)) {
    sizes = absl::StrCat("Megatron ", Sizes(megatron->parallel));
    if (megatron->vpp > 1) absl::StrAppend(&sizes, " VPP", megatron->vpp);
  } else {
    const auto& fsdp = std::get<FsdpLayout>(layout.trainer);
    sizes = absl::StrCat("FSDP", fsdp.shards);
    if (fsdp.tp > 1) absl::StrAppend(&sizes, " TP", fsdp.tp);
    if (fsdp.replicas > 1) absl::StrAppend(&sizes, ", ", fsdp.replicas, " replicas");
  }
  return absl::StrCat(sizes, ", ", layout.source.ranks, " ranks");
}

std::string EngineText(const JobLayout& layout) {
  return absl::StrCat(Sizes(layout.engine.parallel), ", ", layout.destination.ranks, " ranks");
}

std::string DomainText(const SideShape& side, int32_t rank) {
  const int32_t domain = rank / side.ranks_per_domain;
  const int32_t first = domain * side.ranks_per_domain;
  const int32_t last = std::min(side.ranks, first + side.ranks_per_domain) - 1;
  return absl::StrCat("domain ", domain, " (ranks ", first, " to ", last, ")");
}

}  // namespace headrace
