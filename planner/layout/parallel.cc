#include "planner/layout/parallel.h"

#include "absl/strings/str_cat.h"
#include "planner/layout/placement.h"
#include "planner/status.h"

namespace headrace {
namespace {

Mesh DenseMesh(const ParallelLayout& l) {
  if (l.data_outermost) return {{l.dp, l.pp, l.cp, l.tp}, {"dp", "pp", "cp", "tp"}};
  return {{l.pp, l.dp, l.cp, l.tp}, {"pp", "dp", "cp", "tp"}};
}

absl::Status CheckStages(Index layers, Index pp, Index least) {
  if (layers >= 0 && pp >= least) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, absl::StrCat(layers, " layers over ", pp, " pipeline stages: give at least ",
                                                       least, " stages, and no negative number of layers"));
}

}  // namespace

absl::StatusOr<Index> RanksOf(const ParallelLayout& layout) {
  HR_ASSIGN_OR_RETURN(const Index ranks, MeshSize(DenseMesh(layout)));
  HR_ASSIGN_OR_RETURN(const Index expert_ranks, MeshSize({{layout.ep, layout.etp}, {"ep", "etp"}}));
  const Index stage_ranks = ranks / layout.pp;
  if (stage_ranks % expert_ranks != 0) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("EP ", layout.ep, " x expert TP ", layout.etp, " does not divide the ", stage_ranks,
                              " ranks of a pipeline stage (TP ", layout.tp, " x CP ", layout.cp, " x DP ", layout.dp,
                              "): choose numbers whose product divides it"));
  }
  return ranks;
}

absl::StatusOr<RankPlace> PlaceOf(const ParallelLayout& layout, Index rank) {
  HR_ASSIGN_OR_RETURN(const Index ranks, RanksOf(layout));
  HR_ASSIGN_OR_RETURN(const Extents dense, MeshCoordinate(DenseMesh(layout), rank));
  RankPlace place;
  place.dp = dense[layout.data_outermost ? 0 : 1];
  place.pp = dense[layout.data_outermost ? 1 : 0];
  place.cp = dense[2];
  place.tp = dense[3];
  const Index edp = ranks / layout.pp / (layout.ep * layout.etp);
  HR_ASSIGN_OR_RETURN(const Extents expert, MeshCoordinate({{edp, layout.ep, layout.etp}, {"edp", "ep", "etp"}},
                                                           (place.dp * layout.cp + place.cp) * layout.tp + place.tp));
  place.edp = expert[0];
  place.ep = expert[1];
  place.etp = expert[2];
  return place;
}

absl::StatusOr<std::vector<Index>> EvenStages(Index layers, Index pp) {
  HR_RETURN_IF_ERROR(CheckStages(layers, pp, 1));
  std::vector<Index> stages;
  for (Index s = 0; s < pp; ++s) stages.push_back(ChunkOf(layers, pp, s, ChunkRule::kEven).count);
  return stages;
}

absl::StatusOr<std::vector<Index>> LateStages(Index layers, Index pp) {
  HR_RETURN_IF_ERROR(CheckStages(layers, pp, 1));
  std::vector<Index> stages(pp, layers / pp);
  for (Index i = 0; i < layers % pp; ++i) ++stages[pp - 2 - i];
  return stages;
}

absl::StatusOr<std::vector<Index>> EndStages(Index layers, Index pp, Index first, Index last) {
  HR_RETURN_IF_ERROR(CheckStages(layers, pp, 2));
  if (first < 0 || last < 0) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("end stages of ", first, " and ", last, " layers"));
  }
  const Index inner = pp - 2;
  const bool fits = first <= layers && last <= layers - first;
  const Index rest = fits ? layers - first - last : -1;
  if (!fits || (inner == 0 ? rest != 0 : rest % inner != 0)) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat(layers, " layers less ", first, " and ", last, " on the end stages do not divide over ",
                              inner, " stages between them"));
  }
  std::vector<Index> stages(pp, inner == 0 ? 0 : rest / inner);
  stages.front() = first;
  stages.back() = last;
  return stages;
}

absl::StatusOr<std::vector<Index>> VirtualChunks(const std::vector<Index>& stages, Index vpp) {
  if (vpp < 1) return Error(ErrorCode::kInvalidOption, absl::StrCat(vpp, " virtual stages: give at least 1"));
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stages[s] % vpp == 0) continue;
    return Error(ErrorCode::kShapeMismatch, absl::StrCat("the ", stages[s], " layers of pipeline stage ", s,
                                                         " do not divide into ", vpp, " virtual stages"));
  }
  std::vector<Index> chunks;
  for (Index v = 0; v < vpp; ++v) {
    for (Index layers : stages) chunks.push_back(layers / vpp);
  }
  return chunks;
}

absl::StatusOr<Segments> LayersOf(const std::vector<Index>& chunks, Index pp, Index stage) {
  if (pp < 1 || stage < 0 || stage >= pp) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("pipeline stage ", stage, " of ", pp, ": count from 0"));
  }
  if (chunks.size() % pp != 0) {
    return Error(ErrorCode::kShapeMismatch, absl::StrCat(chunks.size(), " chunks of layers do not divide over ", pp,
                                                         " pipeline stages: each has as many"));
  }
  Segments mine;
  Index first = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (chunks[c] < 0) return Error(ErrorCode::kInvalidOption, absl::StrCat("a chunk of ", chunks[c], " layers"));
    if (static_cast<Index>(c) % pp == stage) Append(mine, {first, chunks[c]});
    if (__builtin_add_overflow(first, chunks[c], &first)) {
      return Error(ErrorCode::kOutOfBounds, "2^63 layers or more: check the chunks");
    }
  }
  return mine;
}

absl::StatusOr<Segments> ExpertsOf(Index experts, Index ep, Index index, ExpertOrder order) {
  if (experts < 0 || ep < 1 || index < 0 || index >= ep) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("expert-parallel rank ", index, " of ", ep, " with ", experts,
                                                         " experts: count ranks from 0, give at least 1"));
  }
  Segments mine;
  if (order == ExpertOrder::kLinear) {
    Append(mine, ChunkOf(experts, ep, index, ChunkRule::kEven));
  } else {
    for (Index e = index; e < experts; e += ep) Append(mine, {e, 1});
  }
  return mine;
}

}  // namespace headrace
