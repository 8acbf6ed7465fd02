#include "cli/job.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/layout_json.h"
#include "planner/cluster/m2n_config.h"
#include "planner/cluster/nemo_config.h"
#include "planner/models/hardware.h"
#include "planner/models/records.h"
#include "planner/status.h"

namespace headrace {
namespace {

bool IsFile(const std::string& name) {
  return name == "-" || absl::StrContains(name, '/') || absl::EndsWith(name, ".json");
}

std::string Stem(const std::string& file) { return std::filesystem::path(file).stem().string(); }

// Whether a JSON text is an object with the field. Others are left to their readers, which say what is wrong.
bool HasField(const std::string& text, const char* field) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains(field);
}

absl::StatusOr<JobLayout> LoadLayout(const LayoutChoice& choice) {
  std::string text;
  if (IsFile(choice.layout)) {
    HR_ASSIGN_OR_RETURN(text, ReadFile(choice.layout));
  }
  const bool m2n = HasField(text, "generation"), nemo = HasField(text, "policy");
  if ((m2n || nemo) == choice.gpu.empty()) {
    return Error(ErrorCode::kInvalidOption,
                 choice.gpu.empty()
                     ? absl::StrCat(choice.layout, " does not say on which hardware: give --gpu, one of ",
                                    absl::StrJoin(HardwareNames(), ", "))
                     : absl::StrCat(choice.layout, " names its hardware itself; leave --gpu out"));
  }
  if (nemo) return ParseNemoConfig(text, Stem(choice.layout), choice.model, choice.gpu);
  if (m2n) {
    if (choice.model.empty()) {
      return Error(ErrorCode::kInvalidOption, absl::StrCat(choice.layout, " does not name a model: give --model"));
    }
    return ParseM2nSystem(text, Stem(choice.layout), IsFile(choice.model) ? Stem(choice.model) : choice.model,
                          choice.gpu);
  }
  return IsFile(choice.layout) ? ParseLayout(text) : LayoutNamed(choice.layout);
}

absl::StatusOr<Model> LoadModel(const std::string& name) {
  if (!IsFile(name)) return ModelNamed(name);
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(name));
  return HasField(text, "family") ? ParseModelRecord(Stem(name), text) : ParseM2nModel(text, Stem(name));
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
  HR_ASSIGN_OR_RETURN(job.layout, LoadLayout(options));
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
  std::vector<std::string> engines;
  for (const EngineLayout& engine : layout.engines) {
    engines.push_back(absl::StrCat(Sizes(engine.parallel), ", ", RanksOf(engine.parallel).value(), " ranks"));
  }
  return absl::StrJoin(engines, "; ");
}

}  // namespace headrace
