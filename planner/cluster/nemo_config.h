#ifndef HEADRACE_PLANNER_CLUSTER_NEMO_CONFIG_H_
#define HEADRACE_PLANNER_CLUSTER_NEMO_CONFIG_H_

// NeMo RL's configuration (https://github.com/NVIDIA-NeMo/RL, examples/configs) as a layout, by its own keys. Pure and
// thread-safe.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/cluster/job_layout.h"

namespace headrace {

// `json` is the resolved configuration (defaults merged, interpolations done) as JSON. What counts:
//
//   cluster.{num_nodes, gpus_per_node}, cluster.segment_size (nodes of an NVLink domain)
//   policy.model_name                                              unless `model` is given
//   policy.megatron_cfg, where it is enabled                       a Megatron trainer
//     tensor_, pipeline_, virtual_pipeline_, expert_model_parallel_size, expert_tensor_parallel_size,
//     context_parallel_size, num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage
//   policy.dtensor_cfg, where it is enabled                        FSDP2 over tensor_parallel_size; context-parallel
//                                                                  ranks shard, too
//   policy.generation.{backend: vllm, refit_transport}
//   policy.generation.colocated.{enabled: false, resources.{num_nodes, gpus_per_node}}
//   policy.generation.vllm_cfg.{tensor_, pipeline_, expert_parallel_size}
//
// The trainer has the nodes (of one node: the GPUs) that generation leaves. Other keys do not change the layout and are
// ignored, but for those of the parallel sections whose names speak of parallel sizes, stages or layouts: these are
// errors, unless they are null, false or 1.
//
// `gpu` names the hardware (its NVLink domain counts without segment_size).
//   malformed       not JSON, fields that are missing or no numbers, an unknown key of the layout
//   invalid_option  an unknown gpu; what cannot be expressed: both trainers or none, colocated generation, another
//                   backend than vLLM, a custom parallel plan, expert parallel DTensor, Megatron's own FSDP
//   shape_mismatch  no nodes left for the trainer; what FitMegatron, FitFsdp and FitEngines refuse
absl::StatusOr<JobLayout> ParseNemoConfig(absl::string_view json, const std::string& id, const std::string& model,
                                          const std::string& gpu);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_NEMO_CONFIG_H_
