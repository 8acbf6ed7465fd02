#ifndef HEADRACE_PLANNER_CLUSTER_JOB_LAYOUT_H_
#define HEADRACE_PLANNER_CLUSTER_JOB_LAYOUT_H_

// How a job lays a model out: the trainer's and the engines' parallel sizes and machines, and what was published of its
// refit. layout_json.h reads it, build_cluster.h makes a cluster of it. Pure data and functions; thread-safe.

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cluster/cluster.h"
#include "planner/layout/parallel.h"
#include "planner/manifest.h"

namespace headrace {

// Ranks of one side. What a cluster holds grows with them, and layouts come from users.
inline constexpr Index kMaxSideRanks = Index{1} << 17;

// Megatron: ranks in the order of parallel.h (tp-cp-ep-dp-pp).
struct MegatronLayout {
  ParallelLayout parallel;
  Index vpp = 1;  // chunks of each pipeline stage
  // num_layers_in_first_pipeline_stage, .._last_..; without them the stages are EvenStages (Megatron itself then asks
  // for a number of layers that PP divides).
  std::optional<Index> layers_first;
  std::optional<Index> layers_last;
  // The vocabulary is padded to a multiple of this times TP (make_vocab_size_divisible_by).
  Index vocabulary_multiple = 128;
};

// FSDP2, with replicas HSDP, over tensor parallelism: the mesh {replicas, shards, tp}, row-major.
struct FsdpLayout {
  Index replicas = 1;
  Index shards = 1;
  Index tp = 1;
};

using TrainerLayout = std::variant<MegatronLayout, FsdpLayout>;

// Engines of one layout: dp are replicas of everything. data_outermost is set.
struct EngineLayout {
  ParallelLayout parallel;
  Index vocabulary_multiple = 64;  // vLLM's DEFAULT_VOCAB_PADDING_SIZE; TP must divide the padded rows
  // Where a layout is a thought experiment: units (heads) that TP does not divide are dealt out unevenly. No engine
  // does that; otherwise they are an error.
  bool uneven_units = false;
};

struct JobLayout {
  std::string id;
  std::string model;  // as in the records
  std::string gpu;    // "H100"
  TrainerLayout trainer;
  // One, or several that need not be alike: the ranks of each follow those of the one before, and fill hosts and
  // domains as they come.
  std::vector<EngineLayout> engines;
  SideShape source;
  SideShape destination;
  // As published, where they were.
  std::string wire;         // "BF16"
  std::string engine_name;  // "vLLM"
  std::string method;
  std::string scope;  // what the seconds are of
  std::string origin;
  std::optional<double> seconds_min;
  std::optional<double> seconds_max;
  std::optional<double> bulk_fraction;
  // What was published beside the numbers, and every number that was replaced to make them agree.
  std::string note;
};

// Megatron's layout of `gpus` ranks: dp = gpus / (tp * cp * pp), which replaces parallel.dp.
//   invalid_option  a number below 1; virtual stages of a single one
//   shape_mismatch  tp * cp * pp does not divide gpus; what RanksOf refuses
//   out_of_bounds   more than kMaxSideRanks gpus
absl::StatusOr<MegatronLayout> FitMegatron(MegatronLayout layout, Index gpus);

// FSDP on `gpus` ranks: replicas = gpus / (shards * tp), which replaces `replicas`.
//   invalid_option  a number below 1
//   shape_mismatch  shards * tp does not divide gpus
//   out_of_bounds   more than kMaxSideRanks gpus
absl::StatusOr<FsdpLayout> FitFsdp(FsdpLayout layout, Index gpus);

// Engines on `gpus` ranks: dp = gpus / (tp * pp). ep 1: experts are cut by TP, as all else (etp = tp). Above 1 they are
// dealt to ep ranks: at least tp, a multiple of it (vLLM's expert parallel over tp * data parallel, etp = 1), or a
// divisor of it, and TP cuts each further (SGLang, etp = tp / ep).
//   tp 32, ep 1, 256 gpus: dp 8, etp 32        tp 4, ep 4, 16 gpus: dp 4, etp 1: four engines
//   tp 1, ep 8, 16 gpus: dp 16, etp 1, two replicas of each expert
//   invalid_option  a number below 1
//   shape_mismatch  tp * pp does not divide gpus; neither of tp, ep divides the other; what RanksOf refuses
//   out_of_bounds   more than kMaxSideRanks gpus
absl::StatusOr<EngineLayout> FitEngines(Index gpus, Index tp, Index pp, Index ep);

// Ranks of the trainer. Errors of RanksOf and MeshSize.
absl::StatusOr<Index> RanksOf(const TrainerLayout& layout);
// Ranks of all engines.
//   invalid_option  no engines
//   out_of_bounds   more than kMaxSideRanks ranks
//   what RanksOf refuses of one of them
absl::StatusOr<Index> RanksOf(const std::vector<EngineLayout>& engines);

// The layers of each pipeline stage, as segments of [0, layers). With one of layers_first and layers_last the other
// stages share the rest.
//   shape_mismatch  what EndStages refuses; a rest that does not divide; what VirtualChunks refuses
absl::StatusOr<std::vector<Segments>> StagesOf(const MegatronLayout& layout, Index layers);
// LateStages.
absl::StatusOr<std::vector<Segments>> StagesOf(const EngineLayout& layout, Index layers);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_JOB_LAYOUT_H_
