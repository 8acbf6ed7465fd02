#include "planner/cluster/job_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/layout/placement.h"
#include "planner/status.h"

namespace headrace {
namespace {

// gpus / ranks of a replica.
absl::StatusOr<Index> ReplicasOf(Index gpus, const Extents& sizes, absl::string_view names) {
  HR_ASSIGN_OR_RETURN(const Index each, MeshSize({sizes, {}}));
  if (gpus < 1) return Error(ErrorCode::kInvalidOption, absl::StrCat(gpus, " GPUs: give at least 1"));
  if (gpus > kMaxSideRanks) {
    return Error(ErrorCode::kOutOfBounds, absl::StrCat(gpus, " GPUs: a side has at most ", kMaxSideRanks));
  }
  if (gpus % each != 0) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat(gpus, " GPUs are no multiple of ", names, " = ", each, " (", absl::StrJoin(sizes, " x "),
                              "): the GPUs are whole replicas"));
  }
  return gpus / each;
}

// `rest` layers over `stages`, as many each.
absl::StatusOr<std::vector<Index>> EqualStages(Index rest, Index stages) {
  if (rest < 0 || (stages == 0 ? rest != 0 : rest % stages != 0)) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat(rest, " layers beside the end stage do not divide over ", stages, " pipeline stages"));
  }
  return std::vector<Index>(stages, stages == 0 ? 0 : rest / stages);
}

absl::StatusOr<std::vector<Index>> StageSizes(const MegatronLayout& layout, Index layers) {
  const Index pp = layout.parallel.pp;
  const auto &first = layout.layers_first, &last = layout.layers_last;
  if (!first && !last) return EvenStages(layers, pp);
  if (first && last) return EndStages(layers, pp, *first, *last);
  const Index end = first ? *first : *last;
  if (end < 0 || end > layers) {
    return Error(ErrorCode::kShapeMismatch, absl::StrCat(first ? "layers_first" : "layers_last", " is ", end, " of ",
                                                         layers, " layers: give a number of 0 to ", layers));
  }
  HR_ASSIGN_OR_RETURN(std::vector<Index> stages, EqualStages(layers - end, pp - 1));
  stages.insert(first ? stages.begin() : stages.end(), end);
  return stages;
}

absl::StatusOr<std::vector<Segments>> LayersOfStages(const std::vector<Index>& chunks, Index pp) {
  std::vector<Segments> stages(pp);
  for (Index s = 0; s < pp; ++s) {
    // Each walks all chunks; of many stages most have no layers.
    bool empty = true;
    for (size_t c = s; c < chunks.size(); c += pp) empty = empty && chunks[c] == 0;
    if (empty) continue;
    HR_ASSIGN_OR_RETURN(stages[s], LayersOf(chunks, pp, s));
  }
  return stages;
}

}  // namespace

absl::StatusOr<MegatronLayout> FitMegatron(MegatronLayout layout, Index gpus) {
  ParallelLayout& p = layout.parallel;
  if (layout.vpp > 1 && p.pp == 1) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("VPP ", layout.vpp, " without pipeline stages: Megatron wants PP above 1 for it"));
  }
  HR_ASSIGN_OR_RETURN(p.dp, ReplicasOf(gpus, {p.tp, p.cp, p.pp}, "tp * cp * pp"));
  HR_RETURN_IF_ERROR(RanksOf(p).status());
  return layout;
}

absl::StatusOr<FsdpLayout> FitFsdp(FsdpLayout layout, Index gpus) {
  HR_ASSIGN_OR_RETURN(layout.replicas, ReplicasOf(gpus, {layout.shards, layout.tp}, "shards * tp"));
  return layout;
}

absl::StatusOr<EngineLayout> FitEngines(Index gpus, Index tp, Index pp, Index ep) {
  EngineLayout layout;
  HR_ASSIGN_OR_RETURN(const Index dp, ReplicasOf(gpus, {tp, pp}, "tp * pp"));
  if (ep < 1) return Error(ErrorCode::kInvalidOption, absl::StrCat("EP ", ep, ": give at least 1"));
  if (tp % ep != 0 && ep % tp != 0) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("EP ", ep, " and TP ", tp, " of an engine: one must divide the other"));
  }
  layout.parallel = {
      .tp = tp, .dp = dp, .pp = pp, .ep = ep, .etp = std::max(tp / ep, Index{1}), .data_outermost = true};
  HR_RETURN_IF_ERROR(RanksOf(layout.parallel).status());
  return layout;
}

absl::StatusOr<Index> RanksOf(const TrainerLayout& layout) {
  if (const auto* megatron = std::get_if<MegatronLayout>(&layout)) return RanksOf(megatron->parallel);
  const auto& fsdp = std::get<FsdpLayout>(layout);
  return MeshSize({{fsdp.replicas, fsdp.shards, fsdp.tp}, {"replicas", "shards", "tp"}});
}

absl::StatusOr<Index> RanksOf(const std::vector<EngineLayout>& engines) {
  if (engines.empty()) return Error(ErrorCode::kInvalidOption, "a layout without engines: give at least one");
  Index ranks = 0;
  for (const EngineLayout& engine : engines) {
    HR_ASSIGN_OR_RETURN(const Index more, RanksOf(engine.parallel));
    if (more > kMaxSideRanks - ranks) {
      return Error(ErrorCode::kOutOfBounds,
                   absl::StrCat("engines of ", ranks, " + ", more, " ranks: a side has at most ", kMaxSideRanks));
    }
    ranks += more;
  }
  return ranks;
}

absl::StatusOr<std::vector<Segments>> StagesOf(const MegatronLayout& layout, Index layers) {
  HR_ASSIGN_OR_RETURN(const std::vector<Index> stages, StageSizes(layout, layers));
  HR_ASSIGN_OR_RETURN(const std::vector<Index> chunks, VirtualChunks(stages, layout.vpp));
  return LayersOfStages(chunks, layout.parallel.pp);
}

absl::StatusOr<std::vector<Segments>> StagesOf(const EngineLayout& layout, Index layers) {
  HR_ASSIGN_OR_RETURN(const std::vector<Index> stages, LateStages(layers, layout.parallel.pp));
  return LayersOfStages(stages, layout.parallel.pp);
}

}  // namespace headrace
