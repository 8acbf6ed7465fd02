#ifndef HEADRACE_PLANNER_CLUSTER_M2N_CONFIG_H_
#define HEADRACE_PLANNER_CLUSTER_M2N_CONFIG_H_

// The files of the public nccl_m2n benchmark (https://github.com/NVIDIA/nccl-extensions, nccl_m2n/benchmarks/configs),
// as they are. Pure and thread-safe.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/cluster/job_layout.h"
#include "planner/models/model.h"

namespace headrace {

// A file of system_configs:
//
//   {"train": {"num_gpus": 16, "tp_size": 2, "cp_size": 1, "ep_size": 1, "pp_size": 4, "fsdp_size": 1, "dp_size": 2},
//    "generation": {...}}
//
// Sizes that are left out are 1; "_comment" is the note. As in the benchmark, num_gpus counts (dp follows from it, and
// another one is replaced), and the trainer's experts are cut by EP alone (expert TP 1). fsdp_size above 1, which the
// benchmark does not read, is FSDP2 (without cp, ep, pp). `gpu` names the hardware, which the file does not; `id` and
// `model` become the layout's.
//   malformed       not JSON, unknown fields, numbers that are none
//   invalid_option  an unknown gpu; what cannot be expressed: FSDP with other dimensions, cp or FSDP of an engine
//   shape_mismatch  what FitMegatron, FitFsdp and FitEngines refuse
absl::StatusOr<JobLayout> ParseM2nSystem(absl::string_view json, const std::string& id, const std::string& model,
                                         const std::string& gpu);

// A file of model_configs: {"model.layers.0.mlp.gate.weight": {"shape": [256, 7168], "dtype": "BF16"}, ...}. The model
// is what the benchmark makes of these names: every tensor is a buffer of its own on both sides; TP cuts rows of
// *.{q,k,v,gate,up,q_a,q_b,kv_b}_proj.weight and kv_a_proj_with_mqa.weight, columns of {o,down}_proj.weight, and rows
// of embed_tokens and lm_head; all else is whole. Numbers behind "layers." are layers and behind ".experts." experts;
// embed_tokens is on the first stage, what is in no layer otherwise on the last one. What the benchmark skips, a tensor
// that does not divide, is an error of BuildCluster.
//   malformed       not JSON, no tensors, a tensor without shape, an unknown dtype, layers or experts that leave
//   numbers
//                   out, a number with leading zeros or a placeholder in a name
//   out_of_bounds   a shape of 2^60 elements or more
absl::StatusOr<Model> ParseM2nModel(absl::string_view json, const std::string& name);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_M2N_CONFIG_H_
