#ifndef HEADRACE_PLANNER_LAYOUT_PARALLEL_H_
#define HEADRACE_PLANNER_LAYOUT_PARALLEL_H_

// Which part of a model a rank has: its place in each parallel dimension, its layers, its experts.
//
// A pipeline stage's ranks form two grids: tp x cp x dp for everything but experts, etp x ep x edp for experts, with as
// many ranks (https://github.com/NVIDIA/Megatron-LM, core/parallel_state.py, order tp-cp-ep-dp-pp). Ranks that differ
// in dp or cp alone hold the same dense weights, ranks that differ in edp alone the same experts: replicas, which the
// planner shares the load among. Virtual pipeline stages deal a stage's layers out in several chunks.
//
// An engine is the same: vLLM with expert parallelism is {tp, dp, pp, ep = dp * tp, etp = 1, data_outermost}, without
// it ep = 1, etp = dp * tp; SGLang's ep x moe_tp = tp is {tp, ep, etp = tp / ep}.
//
// Pure and thread-safe.

#include <vector>

#include "absl/status/statusor.h"
#include "planner/layout/segments.h"
#include "planner/manifest.h"

namespace headrace {

struct ParallelLayout {
  Index tp = 1;
  Index cp = 1;
  Index dp = 1;
  Index pp = 1;
  Index ep = 1;
  Index etp = 1;                // ep * etp divides tp * cp * dp
  bool data_outermost = false;  // dp changes slowest (vLLM), not pp (Megatron)
};

// Each from 0 on, below the layout's number; edp is below tp * cp * dp / (ep * etp).
struct RankPlace {
  Index tp = 0;
  Index cp = 0;
  Index dp = 0;
  Index pp = 0;
  Index ep = 0;
  Index etp = 0;
  Index edp = 0;

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

// pp * dp * cp * tp.
//   invalid_option  a number below 1
//   shape_mismatch  ep * etp does not divide tp * cp * dp
//   out_of_bounds   2^63 ranks or more
absl::StatusOr<Index> RanksOf(const ParallelLayout& layout);

// In numpy, where `rank` is the row-major index of a grid:
//
//   pp, dp, cp, tp = np.unravel_index(rank, (PP, DP, CP, TP))      data_outermost: dp, pp, cp, tp of (DP, PP, CP, TP)
//   edp, ep, etp = np.unravel_index((dp * CP + cp) * TP + tp, (EDP, EP, ETP))
//
//   tp 2, dp 2, ep 2, etp 1 (edp 2): ranks 0 to 3 have (dp, tp) 00 01 10 11 and (edp, ep) 00 01 10 11
//   what RanksOf refuses; out_of_bounds for a rank outside
absl::StatusOr<RankPlace> PlaceOf(const ParallelLayout& layout, Index rank);

// Layers of each pipeline stage, in order.
//   EvenStages    the first layers % pp stages have one more                             10 over 4: 3 3 2 2
//   LateStages    one more on the stages before the last one, from the back (vLLM's get_pp_indices)   10 over 4: 2 3 3
//   2 EndStages     `first` and `last` on the end stages, as many on each of the others (Megatron's
//                 num_layers_in_first_pipeline_stage)                                    10 over 4, ends 2, 2: 2 3 3 2
//   invalid_option  pp below 1 (EndStages: below 2), a negative number of layers
//   shape_mismatch  EndStages: what the ends leave does not divide
absl::StatusOr<std::vector<Index>> EvenStages(Index layers, Index pp);
absl::StatusOr<std::vector<Index>> LateStages(Index layers, Index pp);
absl::StatusOr<std::vector<Index>> EndStages(Index layers, Index pp, Index first, Index last);

// The chunks of `vpp` virtual stages, in the model's order: chunk c is on stage c % pp, and a stage's layers are dealt
// to its chunks in equal numbers.
//   stages 4 2, vpp 2: 2 1 2 1
//   invalid_option  vpp below 1
//   shape_mismatch  a stage whose layers vpp does not divide
absl::StatusOr<std::vector<Index>> VirtualChunks(const std::vector<Index>& stages, Index vpp);

// The layers of one stage: those of chunks stage, stage + pp, stage + 2 * pp, ... Local layer i is the i-th of them.
// Without virtual stages the chunks are the stages.
//   chunks 2 1 2 1, pp 2: stage 0 has {0, 2} {3, 2}, stage 1 {2, 1} {5, 1}
//   invalid_option  pp below 1, a stage outside [0, pp), a negative number of layers
//   shape_mismatch  a number of chunks that pp does not divide
//   out_of_bounds   2^63 layers or more
absl::StatusOr<Segments> LayersOf(const std::vector<Index>& chunks, Index pp, Index stage);

enum class ExpertOrder {
  kLinear,      // runs of experts in order; the first experts % ep ranks have one more
  kRoundRobin,  // expert e is on rank e % ep (vLLM's expert_placement_strategy=round_robin)
};

// The experts of rank `index` of `ep`. Their weights are then cut by etp along the intermediate axis.
//   invalid_option  ep below 1, an index outside [0, ep), a negative number of experts
absl::StatusOr<Segments> ExpertsOf(Index experts, Index ep, Index index, ExpertOrder order = ExpertOrder::kLinear);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_LAYOUT_PARALLEL_H_
