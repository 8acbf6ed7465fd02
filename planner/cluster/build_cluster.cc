#include "planner/cluster/build_cluster.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "planner/cluster/unit_rules.h"
#include "planner/layout/segments.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Of a model's units. They are listed one by one, and records come from users.
constexpr Index kMaxInstances = Index{1} << 20;

// Where the instances of a unit are on one side.
struct UnitPlaces {
  std::vector<RankGroup> groups;
  bool stacked = false;
  // Group of (layer, expert) = layer_group[layer] + expert_group[expert]; what is outside of the layers is in group 0.
  std::vector<int32_t> layer_group;
  std::vector<int32_t> expert_group;
  std::vector<int32_t> local_expert;
};

void PlaceExperts(UnitPlaces& places, Index experts, Index parts, ChunkRule rule) {
  places.expert_group.resize(experts);
  places.local_expert.resize(experts);
  for (Index p = 0; p < parts; ++p) {
    const Segment mine = ChunkOf(experts, parts, p, rule);
    for (Index i = 0; i < mine.count; ++i) {
      places.expert_group[mine.first + i] = static_cast<int32_t>(p);
      places.local_expert[mine.first + i] = static_cast<int32_t>(i);
    }
  }
}

// Pipeline, tensor and expert parallel ranks of one side.
class ParallelSide {
 public:
  static absl::StatusOr<ParallelSide> Make(const ParallelLayout& layout, const std::vector<Segments>& stages,
                                           Index layers) {
    ParallelSide side;
    side.layout_ = layout;
    HR_ASSIGN_OR_RETURN(const Index ranks, RanksOf(layout));
    for (Index rank = 0; rank < ranks; ++rank) {
      HR_ASSIGN_OR_RETURN(const RankPlace place, PlaceOf(layout, rank));
      side.places_.push_back(place);
    }
    side.stage_of_layer_.resize(layers);
    for (size_t s = 0; s < stages.size(); ++s) {
      for (const Segment& run : stages[s]) {
        for (Index i = 0; i < run.count; ++i) side.stage_of_layer_[run.first + i] = static_cast<int32_t>(s);
      }
    }
    return side;
  }

  size_t ranks() const { return places_.size(); }

  std::vector<int32_t> StageOfRank() const {
    std::vector<int32_t> stages;
    for (const RankPlace& place : places_) stages.push_back(static_cast<int32_t>(place.pp));
    return stages;
  }

  UnitPlaces Place(const ModelUnit& unit) const {
    UnitPlaces places;
    const bool experts = unit.experts > 0;
    if (unit.place != UnitPlace::kLayers) {
      const bool first = unit.place != UnitPlace::kLast, last = unit.place != UnitPlace::kFirst;
      RankGroup& group = places.groups.emplace_back();
      group.shards.resize(layout_.tp);
      for (size_t r = 0; r < places_.size(); ++r) {
        const RankPlace& place = places_[r];
        if ((first && place.pp == 0) || (last && place.pp == layout_.pp - 1)) {
          group.shards[place.tp].push_back(static_cast<int32_t>(r));
        }
      }
      return places;
    }
    const Index of_stage = experts ? layout_.ep : 1;
    places.groups.resize(layout_.pp * of_stage);
    for (RankGroup& group : places.groups) group.shards.resize(experts ? layout_.etp : layout_.tp);
    for (size_t r = 0; r < places_.size(); ++r) {
      const RankPlace& place = places_[r];
      RankGroup& group = places.groups[place.pp * of_stage + (experts ? place.ep : 0)];
      group.shards[experts ? place.etp : place.tp].push_back(static_cast<int32_t>(r));
    }
    for (const int32_t stage : stage_of_layer_) places.layer_group.push_back(static_cast<int32_t>(stage * of_stage));
    if (experts) PlaceExperts(places, unit.experts, layout_.ep, ChunkRule::kEven);
    return places;
  }

 private:
  ParallelLayout layout_;
  std::vector<RankPlace> places_;
  std::vector<int32_t> stage_of_layer_;
};

// Runs of elements (layers, experts) that no list tells apart. Without elements: one, empty.
struct Runs {
  std::vector<int32_t> of;     // by element
  std::vector<size_t> firsts;  // by run: its first element
};

Runs RunsOf(const std::vector<const std::vector<int32_t>*>& lists) {
  Runs runs{{}, {0}};
  for (size_t i = 0; i < lists[0]->size(); ++i) {
    const bool told_apart = i > 0 && std::any_of(lists.begin(), lists.end(), [i](const std::vector<int32_t>* list) {
                              return (*list)[i] != (*list)[i - 1];
                            });
    if (told_apart) runs.firsts.push_back(i);
    runs.of.push_back(static_cast<int32_t>(runs.firsts.size()) - 1);
  }
  return runs;
}

// Engines of one layout, and which ranks they are.
struct EngineRanks {
  ParallelSide side;
  int32_t first = 0;
};

// A group for each run of layers and of experts that are together in every engine: all engines' shards of them. An
// engine's stages and expert-parallel ranks are runs of layers and experts, so the experts of a group lie side by side.
UnitPlaces PlaceEngines(const ModelUnit& unit, const std::vector<EngineRanks>& engines) {
  std::vector<UnitPlaces> each;
  for (const EngineRanks& engine : engines) each.push_back(engine.side.Place(unit));
  std::vector<const std::vector<int32_t>*> of_layers, of_experts;
  for (const UnitPlaces& places : each) {
    of_layers.push_back(&places.layer_group);
    of_experts.push_back(&places.expert_group);
  }
  const Runs layers = RunsOf(of_layers), experts = RunsOf(of_experts);
  const auto of_first = [](const std::vector<int32_t>& list, size_t first) { return list.empty() ? 0 : list[first]; };
  UnitPlaces joined;
  joined.stacked = unit.experts > 0;
  for (const size_t layer : layers.firsts) {
    for (const size_t expert : experts.firsts) {
      RankGroup& group = joined.groups.emplace_back();
      bool all_begin = true;
      for (size_t e = 0; e < engines.size(); ++e) {
        const UnitPlaces& places = each[e];
        const int32_t before = of_first(places.local_expert, expert);
        all_begin = all_begin && before == 0;
        const size_t number = of_first(places.layer_group, layer) + of_first(places.expert_group, expert);
        for (std::vector<int32_t> ranks : places.groups[number].shards) {
          for (int32_t& rank : ranks) rank += engines[e].first;
          group.shards.push_back(std::move(ranks));
          group.experts_before.push_back(before);
        }
      }
      if (all_begin) group.experts_before.clear();
    }
  }
  for (const int32_t run : layers.of) {
    joined.layer_group.push_back(run * static_cast<int32_t>(experts.firsts.size()));
  }
  joined.expert_group = experts.of;
  for (size_t e = 0; e < experts.of.size(); ++e) {
    joined.local_expert.push_back(static_cast<int32_t>(e - experts.firsts[experts.of[e]]));
  }
  return joined;
}

UnitPlaces PlaceFsdp(const ModelUnit& unit, const FsdpLayout& layout, Index layers) {
  UnitPlaces places;
  places.stacked = unit.stacked;
  places.layer_group.resize(layers);
  const Index groups = unit.stacked ? layout.shards : 1, shards = unit.stacked ? 1 : layout.shards;
  places.groups.resize(groups);
  for (RankGroup& group : places.groups) group.shards.resize(shards * layout.tp);
  for (Index replica = 0; replica < layout.replicas; ++replica) {
    for (Index s = 0; s < layout.shards; ++s) {
      for (Index t = 0; t < layout.tp; ++t) {
        const Index rank = (replica * layout.shards + s) * layout.tp + t;
        places.groups[unit.stacked ? s : 0].shards[(unit.stacked ? 0 : s) * layout.tp + t].push_back(
            static_cast<int32_t>(rank));
      }
    }
  }
  PlaceExperts(places, unit.experts, groups, ChunkRule::kCeil);
  if (!unit.stacked) std::fill(places.local_expert.begin(), places.local_expert.end(), 0);
  return places;
}

std::vector<UnitInstance> Instances(const ModelUnit& unit, const UnitPlaces& source, const UnitPlaces& destination) {
  std::vector<UnitInstance> instances;
  const bool outside = unit.place != UnitPlace::kLayers;
  const std::vector<Index> layers = outside ? std::vector<Index>{-1} : unit.layers;
  for (const Index layer : layers) {
    UnitInstance instance;
    instance.layer = static_cast<int32_t>(layer);
    if (!outside) {
      instance.source_group = source.layer_group[layer];
      instance.destination_group = destination.layer_group[layer];
    }
    if (unit.experts == 0) instances.push_back(instance);
    for (Index e = 0; e < unit.experts; ++e) {
      UnitInstance& expert = instances.emplace_back(instance);
      expert.expert = static_cast<int32_t>(e);
      expert.source_group += source.expert_group[e];
      expert.destination_group += destination.expert_group[e];
      expert.source_expert = source.local_expert[e];
      expert.destination_expert = destination.local_expert[e];
    }
  }
  return instances;
}

absl::Status CheckUnit(const Model& model, const ModelUnit& unit, const JobLayout& layout) {
  const auto bad = [&](const std::string& message) {
    return Error(ErrorCode::kMalformed, absl::StrCat("unit \"", unit.name, "\": ", message));
  };
  for (const Index layer : unit.layers) {
    if (layer < 0 || layer >= model.layers) return bad(absl::StrCat("layer ", layer, " of ", model.layers));
  }
  if (unit.stacked && unit.experts == 0) return bad("is stacked over experts and has none");
  if (unit.experts > 0 && unit.place != UnitPlace::kLayers) return bad("has experts outside of the layers");
  const auto* megatron = std::get_if<MegatronLayout>(&layout.trainer);
  if (megatron != nullptr && unit.experts % megatron->parallel.ep != 0) {
    return Error(ErrorCode::kShapeMismatch,
                 absl::StrCat("unit \"", unit.name, "\", trainer: ", unit.experts, " experts do not divide over EP ",
                              megatron->parallel.ep, ": choose an EP that divides them"));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const char* side, Index ranks, const SideShape& shape) {
  if (ranks > kMaxSideRanks) {
    return Error(ErrorCode::kOutOfBounds, absl::StrCat(side, ": ", ranks, " ranks: give at most ", kMaxSideRanks));
  }
  if (ranks == shape.ranks && shape.ranks_per_host >= 1 && shape.ranks_per_domain >= 1) return absl::OkStatus();
  return Error(ErrorCode::kShapeMismatch,
               absl::StrCat(side, ": a layout of ", ranks, " ranks on ", shape.ranks, " GPUs in hosts of ",
                            shape.ranks_per_host, " and domains of ", shape.ranks_per_domain));
}

absl::Status CheckInstances(const Model& model) {
  Index instances = 0;
  for (const ModelUnit& unit : model.units) {
    if (unit.draft) continue;
    const Index experts = std::max(unit.experts, Index{1});
    const Index layers = std::max(static_cast<Index>(unit.layers.size()), Index{1});
    if (layers <= (kMaxInstances - instances) / experts) {
      instances += layers * experts;
      continue;
    }
    return Error(ErrorCode::kOutOfBounds,
                 absl::StrCat("unit \"", unit.name, "\": ", layers, " layers of ", experts,
                              " experts: a model has at most ", kMaxInstances, " instances of its units"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Cluster> Build(const Model& model, const JobLayout& layout) {
  Cluster cluster;
  cluster.model = model.name;
  cluster.layout = layout.id;
  cluster.source = layout.source;
  cluster.destination = layout.destination;
  HR_ASSIGN_OR_RETURN(const Index source_ranks, RanksOf(layout.trainer));
  HR_ASSIGN_OR_RETURN(const Index destination_ranks, RanksOf(layout.engines));
  HR_RETURN_IF_ERROR(CheckRanks("trainer", source_ranks, layout.source));
  HR_RETURN_IF_ERROR(CheckRanks("engine", destination_ranks, layout.destination));

  HR_RETURN_IF_ERROR(CheckInstances(model));

  const auto* megatron = std::get_if<MegatronLayout>(&layout.trainer);
  ParallelSide source;
  if (megatron != nullptr) {
    HR_ASSIGN_OR_RETURN(const std::vector<Segments> stages, StagesOf(*megatron, model.layers));
    HR_ASSIGN_OR_RETURN(source, ParallelSide::Make(megatron->parallel, stages, model.layers));
    cluster.source_stage = source.StageOfRank();
  } else {
    cluster.source_stage.resize(source_ranks);
  }
  std::vector<EngineRanks> engines;
  int32_t engine_ranks = 0;
  for (const EngineLayout& engine : layout.engines) {
    HR_ASSIGN_OR_RETURN(const std::vector<Segments> stages, StagesOf(engine, model.layers));
    HR_ASSIGN_OR_RETURN(ParallelSide side, ParallelSide::Make(engine.parallel, stages, model.layers));
    if (engine_ranks > 0) cluster.engine_borders.push_back(engine_ranks);
    engines.push_back({std::move(side), engine_ranks});
    engine_ranks += static_cast<int32_t>(engines.back().side.ranks());
  }

  for (const ModelUnit& unit : model.units) {
    if (unit.draft) continue;
    HR_RETURN_IF_ERROR(CheckUnit(model, unit, layout));
    UnitPlaces from =
        megatron != nullptr ? source.Place(unit) : PlaceFsdp(unit, std::get<FsdpLayout>(layout.trainer), model.layers);
    UnitPlaces to = PlaceEngines(unit, engines);
    ClusterUnit& placed = cluster.units.emplace_back();
    placed.unit = unit;
    HR_ASSIGN_OR_RETURN(placed.manifest, UnitManifest(unit, layout));
    placed.source_stacked = from.stacked;
    placed.destination_stacked = to.stacked;
    placed.instances = Instances(unit, from, to);
    placed.source_groups = std::move(from.groups);
    placed.destination_groups = std::move(to.groups);
  }
  return cluster;
}

}  // namespace

absl::StatusOr<Cluster> BuildCluster(const Model& model, const JobLayout& layout) {
  absl::StatusOr<Cluster> cluster = Build(model, layout);
  if (cluster.ok()) return cluster;
  return WithMessage(cluster.status(), absl::StrCat("model \"", model.name, "\", layout \"", layout.id,
                                                    "\": ", cluster.status().message()));
}

}  // namespace headrace
