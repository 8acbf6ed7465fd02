#include "planner/cluster/nemo_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "planner/cluster/json_fields.h"
#include "planner/models/arch.h"
#include "planner/models/hardware.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

absl::Status Inexpressible(absl::string_view what) { return Error(ErrorCode::kInvalidOption, what); }

// Whether a key's name says that it changes where weights are.
bool SpeaksOfLayout(const std::string& name) {
  for (const char* word : {"parallel_size", "parallel_layout", "pipeline_stage", "pipeline_split", "replicate_size"}) {
    if (absl::StrContains(name, word)) return true;
  }
  return false;
}

bool IsNeutral(const Json& value) { return value.is_null() || value == false || value == 1; }

// The object's fields, of which those that speak of the layout must be known.
JsonFields Section(const Json& json, const std::string& path, const std::vector<std::string>& known) {
  JsonFields f(json, path);
  if (!json.is_object()) return f;
  for (const auto& [name, value] : json.items()) {
    if (!SpeaksOfLayout(name) || IsNeutral(value)) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    f.Fail(name, absl::StrCat("is ", value.dump(), ": it changes the layout, and is not known"));
  }
  return f;
}

absl::StatusOr<MegatronLayout> ReadMegatron(const Json& json) {
  JsonFields f =
      Section(json, "policy.megatron_cfg",
              {"tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
               "expert_model_parallel_size", "expert_tensor_parallel_size", "context_parallel_size",
               "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"});
  MegatronLayout layout;
  ParallelLayout& p = layout.parallel;
  p.tp = f.Number("tensor_model_parallel_size");
  p.pp = f.Number("pipeline_model_parallel_size");
  p.cp = f.Number("context_parallel_size", 1);
  p.ep = f.Number("expert_model_parallel_size", 1);
  p.etp = f.Number("expert_tensor_parallel_size", 1);
  layout.vpp = f.NumberOrNull("virtual_pipeline_model_parallel_size").value_or(1);
  layout.layers_first = f.NumberOrNull("num_layers_in_first_pipeline_stage");
  layout.layers_last = f.NumberOrNull("num_layers_in_last_pipeline_stage");
  HR_RETURN_IF_ERROR(f.status());
  if (f.Has("distributed_data_parallel_config")) {
    JsonFields ddp(json["distributed_data_parallel_config"], "policy.megatron_cfg.distributed_data_parallel_config");
    const bool fsdp = ddp.Flag("use_custom_fsdp") || ddp.Flag("use_megatron_fsdp");
    HR_RETURN_IF_ERROR(ddp.status());
    if (fsdp) return Inexpressible("policy.megatron_cfg.distributed_data_parallel_config: Megatron's own FSDP");
  }
  return layout;
}

absl::StatusOr<FsdpLayout> ReadDtensor(const Json& json, Index gpus) {
  JsonFields f =
      Section(json, "policy.dtensor_cfg", {"tensor_parallel_size", "context_parallel_size", "expert_parallel_size"});
  const Index tp = f.Number("tensor_parallel_size"), cp = f.Number("context_parallel_size", 1);
  const Index ep = f.Number("expert_parallel_size", 1);
  HR_RETURN_IF_ERROR(f.status());
  if (ep > 1) return Inexpressible("policy.dtensor_cfg.expert_parallel_size above 1");
  if (f.Has("custom_parallel_plan") && !f.IsNull("custom_parallel_plan")) {
    return Inexpressible("policy.dtensor_cfg.custom_parallel_plan: the plan's placements are code");
  }
  if (gpus % (tp * cp) != 0) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("policy.dtensor_cfg: ", gpus, " GPUs are no multiple of tp ", tp, " * cp ", cp));
  }
  return FitFsdp({.shards = gpus / tp, .tp = tp}, gpus);
}

bool Enabled(JsonFields& policy, const Json& json, const char* section) {
  if (!policy.Has(section) || policy.IsNull(section)) return false;
  JsonFields f(json[section], absl::StrCat("policy.", section));
  const bool enabled = f.Flag("enabled");
  if (!f.status().ok()) policy.Fail(section, "must be an object whose \"enabled\" is true or false");
  return enabled;
}

absl::StatusOr<TrainerLayout> ReadTrainer(const Json& json, JsonFields& policy, Index gpus) {
  const bool megatron = Enabled(policy, json, "megatron_cfg"), dtensor = Enabled(policy, json, "dtensor_cfg");
  HR_RETURN_IF_ERROR(policy.status());
  if (megatron == dtensor) {
    return Inexpressible(absl::StrCat("policy.megatron_cfg and policy.dtensor_cfg are ", megatron ? "both" : "not",
                                      " enabled: enable one"));
  }
  if (dtensor) {
    HR_ASSIGN_OR_RETURN(const FsdpLayout layout, ReadDtensor(json["dtensor_cfg"], gpus));
    return layout;
  }
  HR_ASSIGN_OR_RETURN(const MegatronLayout layout, ReadMegatron(json["megatron_cfg"]));
  const auto fitted = FitMegatron(layout, gpus);
  if (fitted.ok()) return *fitted;
  return WithMessage(fitted.status(), absl::StrCat("policy.megatron_cfg: ", fitted.status().message()));
}

struct Nodes {
  Index trainer_nodes = 1, trainer_gpus = 1, engine_nodes = 1, engine_gpus = 1;  // gpus: of a node
  std::optional<Index> segment;
};

// Who has which nodes, as NeMo RL deals them out.
absl::StatusOr<Nodes> ReadNodes(const Json& cluster, const Json& colocated) {
  JsonFields c(cluster, "cluster"), g(colocated, "policy.generation.colocated");
  Nodes nodes;
  nodes.trainer_nodes = c.Number("num_nodes");
  nodes.trainer_gpus = c.Number("gpus_per_node");
  nodes.segment = c.NumberOrNull("segment_size");
  HR_RETURN_IF_ERROR(c.status());
  if (!g.Has("enabled") || g.Flag("enabled")) {
    HR_RETURN_IF_ERROR(g.status());
    return Inexpressible(
        "policy.generation.colocated.enabled must be false: engines on the trainer's own GPUs are not planned");
  }
  const Json& resources = g.Object("resources");
  HR_RETURN_IF_ERROR(g.status());
  JsonFields r(resources, "policy.generation.colocated.resources");
  const bool one_node = nodes.trainer_nodes == 1;
  nodes.engine_gpus =
      one_node ? r.Number("gpus_per_node") : r.NumberOrNull("gpus_per_node").value_or(nodes.trainer_gpus);
  nodes.engine_nodes = one_node ? r.NumberOrNull("num_nodes").value_or(1) : r.Number("num_nodes");
  HR_RETURN_IF_ERROR(r.status());
  (one_node ? nodes.trainer_gpus : nodes.trainer_nodes) -= one_node ? nodes.engine_gpus : nodes.engine_nodes;
  if (nodes.trainer_nodes < 1 || nodes.trainer_gpus < 1 || (one_node && nodes.engine_nodes != 1)) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("policy.generation.colocated.resources leave nothing for the trainer: ",
                              c.Number("num_nodes"), " nodes of ", c.Number("gpus_per_node"),
                              " GPUs, of which generation has ", nodes.engine_nodes, " of ", nodes.engine_gpus));
  }
  return nodes;
}

}  // namespace

absl::StatusOr<JobLayout> ParseNemoConfig(absl::string_view json, const std::string& id, const std::string& model,
                                          const std::string& gpu) {
  HR_ASSIGN_OR_RETURN(const Json document, ParseJsonObject("a NeMo RL configuration", json));
  JsonFields f(document, "");
  const Json &cluster = f.Object("cluster"), &policy_json = f.Object("policy");
  HR_RETURN_IF_ERROR(f.status());
  JsonFields policy(policy_json, "policy");
  const Json& generation_json = policy.Object("generation");
  JobLayout layout;
  layout.id = id;
  layout.model = model.empty() ? policy.Text("model_name", true) : model;
  layout.gpu = gpu;
  HR_RETURN_IF_ERROR(policy.status());
  JsonFields generation(generation_json, "policy.generation");
  layout.engine_name = generation.Text("backend", true);
  if (!generation.IsNull("refit_transport")) layout.method = generation.Text("refit_transport", false);
  const Json& colocated = generation.Object("colocated");
  HR_RETURN_IF_ERROR(generation.status());
  if (layout.engine_name != "vllm") {
    return Inexpressible(absl::StrCat("policy.generation.backend \"", layout.engine_name, "\": known is vllm"));
  }
  const Json& vllm_json = generation.Object("vllm_cfg");
  HR_RETURN_IF_ERROR(generation.status());
  HR_ASSIGN_OR_RETURN(const Nodes nodes, ReadNodes(cluster, colocated));
  const Index source = nodes.trainer_nodes * nodes.trainer_gpus, destination = nodes.engine_nodes * nodes.engine_gpus;
  HR_ASSIGN_OR_RETURN(layout.trainer, ReadTrainer(policy_json, policy, source));

  JsonFields vllm = Section(vllm_json, "policy.generation.vllm_cfg",
                            {"tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size"});
  const Index tp = vllm.Number("tensor_parallel_size"), pp = vllm.Number("pipeline_parallel_size", 1);
  const Index ep = vllm.Number("expert_parallel_size", 1);
  HR_RETURN_IF_ERROR(vllm.status());
  const auto engine = FitEngines(destination, tp, pp, ep);
  if (!engine.ok()) {
    return WithMessage(engine.status(), absl::StrCat("policy.generation.vllm_cfg: ", engine.status().message()));
  }
  layout.engines = {*engine};

  HR_ASSIGN_OR_RETURN(const Hardware hardware, HardwareNamed(gpu));
  const auto side = [&](Index ranks, Index per_node) {
    const Index domain = nodes.segment ? std::min(*nodes.segment * per_node, kMaxSideRanks) : hardware.nvlink_domain;
    return SideShape{static_cast<int32_t>(ranks), static_cast<int32_t>(per_node), static_cast<int32_t>(domain)};
  };
  layout.source = side(source, nodes.trainer_gpus);
  layout.destination = side(destination, nodes.engine_gpus);
  return layout;
}

}  // namespace headrace
