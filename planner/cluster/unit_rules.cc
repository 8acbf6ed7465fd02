#include "planner/cluster/unit_rules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "planner/layout/block_scales.h"
#include "planner/layout/piece_array.h"
#include "planner/layout/placement.h"
#include "planner/layout/row_parts.h"
#include "planner/status.h"
#include "planner/validate.h"

namespace headrace {
namespace {

// What tells the tensor-parallel sides apart.
struct SideRules {
  const char* side;
  Index tp = 1;
  bool replicate = false;  // parts of fewer units than ranks, beside others that divide
  bool uneven = false;     // EngineLayout::uneven_units
  bool by_parts = false;   // what the checkpoint has group by group becomes part after part
  bool scales_follow = false;
  Index vocabulary_multiple = 1;
  PieceKind vocabulary_padding = PieceKind::kZero;
  bool stacked = false;  // experts of a layer share a buffer
};

const Extents& ViewOf(const UnitTensor& tensor) { return tensor.view.empty() ? tensor.shape : tensor.view; }

TensorSpec SpecOf(const UnitTensor& tensor) { return {tensor.name, tensor.shape, tensor.dtype}; }

std::string BufferName(const ModelUnit& unit, std::string name, bool stacked) {
  if (unit.experts == 0) return name;
  if (stacked) return absl::StrReplaceAll(name, {{".{expert}", ""}, {"{expert}", ""}});
  if (name.find("{expert}") == std::string::npos) absl::StrAppend(&name, ".{expert}");
  return name;
}

// "qkv_proj.weight" with what the scale's name adds to its weight's: "qkv_proj.weight_scale_inv".
std::string ScaleName(const std::string& fused, const std::string& weight, const std::string& scale) {
  size_t common = 0;
  while (common < weight.size() && common < scale.size() && weight[common] == scale[common]) ++common;
  absl::string_view suffix = absl::string_view(scale).substr(common);
  while (!suffix.empty() && (suffix[0] == '_' || suffix[0] == '.')) suffix.remove_prefix(1);
  return absl::StrCat(fused, "_", suffix.empty() ? "scale" : suffix);
}

// One side's tensor-parallel shards of a unit.
class UnitCutter {
 public:
  UnitCutter(const ModelUnit& unit, const SideRules& rules) : unit_(unit), rules_(rules) {}

  absl::StatusOr<UnitShards> Cut(const std::vector<FusedBuffer>& fused) {
    HR_RETURN_IF_ERROR(CheckTensors());
    std::vector<bool> placed(unit_.tensors.size());
    std::vector<FusedBuffer> buffers = fused;
    for (const FusedBuffer& buffer : fused) {
      HR_RETURN_IF_ERROR(CheckFused(buffer));
      for (const int t : buffer.tensors) placed[t] = true;
    }
    for (size_t t = 0; t < unit_.tensors.size(); ++t) {
      if (unit_.tensors[t].scale_of >= 0 && rules_.scales_follow) continue;
      if (!placed[t]) buffers.push_back({unit_.tensors[t].name, {static_cast<int>(t)}, 0, 0});
    }
    for (const FusedBuffer& buffer : buffers) HR_RETURN_IF_ERROR(CheckUnits(buffer));
    UnitShards shards{rules_.tp, {}};
    for (Index r = 0; r < rules_.tp; ++r) {
      for (const FusedBuffer& buffer : buffers) {
        const ScaledArray local = Local(buffer, r);
        const UnitTensor& first = unit_.tensors[buffer.tensors[0]];
        HR_RETURN_IF_ERROR(Add(shards, r, buffer.name, first.dtype, local.weight));
        if (!local.scale) continue;
        const UnitTensor& scale = unit_.tensors[ScaleOf(buffer.tensors[0])];
        const std::string name =
            buffer.name == first.name ? scale.name : ScaleName(buffer.name, first.name, scale.name);
        HR_RETURN_IF_ERROR(Add(shards, r, name, scale.dtype, *local.scale));
      }
    }
    return shards;
  }

 private:
  std::string Where(absl::string_view what, absl::string_view name) const {
    return absl::StrCat("unit \"", unit_.name, "\", ", what, " \"", name, "\", ", rules_.side);
  }
  absl::Status Bad(const UnitTensor& tensor, absl::string_view message) const {
    return About(Error(ErrorCode::kMalformed, absl::StrCat(Where("tensor", tensor.name), ": ", message)),
                 {.tensor = tensor.name});
  }

  int ScaleOf(int weight) const {
    for (size_t t = 0; t < unit_.tensors.size(); ++t) {
      if (unit_.tensors[t].scale_of == weight) return static_cast<int>(t);
    }
    return -1;
  }

  // The parts of the axis that is cut; those of the whole axis where the unit names none.
  std::vector<RowPart> PartsOf(const UnitTensor& tensor) const {
    const Index extent = ViewOf(tensor)[tensor.cut_axis];
    if (tensor.groups > 0 && !rules_.by_parts) return {{tensor.groups, extent / tensor.groups}};
    if (tensor.parts.empty()) return {{extent, 1}};
    return tensor.parts;
  }

  absl::Status CheckTensors() const {
    for (const UnitTensor& tensor : unit_.tensors) {
      if (tensor.scale_of >= static_cast<int>(unit_.tensors.size())) return Bad(tensor, "is the scale of no tensor");
      if (tensor.cut_axis < 0) continue;
      if (static_cast<size_t>(tensor.cut_axis) >= ViewOf(tensor).size()) {
        return Bad(tensor, absl::StrCat("is cut along axis ", tensor.cut_axis, ", which it has not"));
      }
      const Index extent = ViewOf(tensor)[tensor.cut_axis];
      if (tensor.groups < 0 || (tensor.groups > 0 && (extent % tensor.groups != 0 || tensor.parts.empty()))) {
        return Bad(tensor, absl::StrCat(extent, " rows are not in ", tensor.groups, " groups of parts"));
      }
      if (tensor.parts.empty()) continue;
      HR_ASSIGN_OR_RETURN(const Index rows, TotalRows(tensor.parts));
      if (rows != extent) {
        return Bad(tensor, absl::StrCat("its parts have ", rows, " rows, its axis ", tensor.cut_axis, " ", extent));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckFused(const FusedBuffer& buffer) const {
    const auto none = [&](int t) { return t < 0 || t >= static_cast<int>(unit_.tensors.size()); };
    if (buffer.tensors.empty() || std::any_of(buffer.tensors.begin(), buffer.tensors.end(), none)) {
      return Error(ErrorCode::kMalformed,
                   absl::StrCat(Where("buffer", buffer.name), ": names a tensor that the unit has not"));
    }
    for (const int t : buffer.tensors) {
      if (buffer.groups > 0 && unit_.tensors[t].cut_axis != buffer.axis) {
        return Bad(unit_.tensors[t],
                   absl::StrCat("lies group by group along axis ", buffer.axis, " and is not cut there"));
      }
    }
    return absl::OkStatus();
  }

  // That units divide over TP.
  absl::Status CheckUnits(const FusedBuffer& buffer) const {
    if (buffer.groups > 0 || rules_.uneven) return absl::OkStatus();
    Index most = 0;
    for (const int t : buffer.tensors) {
      const UnitTensor& tensor = unit_.tensors[t];
      if (tensor.cut_axis < 0 || tensor.vocabulary) continue;
      for (const RowPart& part : PartsOf(tensor)) most = std::max(most, part.units);
    }
    for (const int t : buffer.tensors) {
      const UnitTensor& tensor = unit_.tensors[t];
      if (tensor.cut_axis < 0 || tensor.vocabulary) continue;
      for (const RowPart& part : PartsOf(tensor)) {
        const bool replicated = rules_.replicate && part.units < most && rules_.tp % part.units == 0;
        if (part.units % rules_.tp == 0 || replicated) continue;
        return About(Error(ErrorCode::kShapeMismatch,
                           absl::StrCat(Where("tensor", tensor.name), ": ", part.units, " units of ", part.rows,
                                        " along axis ", tensor.cut_axis, " of [", absl::StrJoin(ViewOf(tensor), ", "),
                                        "] do not divide over TP ", rules_.tp, ": choose a TP that divides them")),
                     {.tensor = tensor.name});
      }
    }
    return absl::OkStatus();
  }

  ScaledArray Array(int t) const {
    const UnitTensor& tensor = unit_.tensors[t];
    const int s = rules_.scales_follow ? ScaleOf(t) : -1;
    if (s < 0) return {Whole(SpecOf(tensor), ViewOf(tensor)), std::nullopt, Extents(ViewOf(tensor).size(), 1)};
    const UnitTensor& scale = unit_.tensors[s];
    const Extents &weight_view = ViewOf(tensor), &scale_view = ViewOf(scale);
    ScaledArray both = {Whole(SpecOf(tensor), weight_view), Whole(SpecOf(scale), scale_view), scale.block};
    bool fits = weight_view.size() == scale_view.size() && weight_view.size() == scale.block.size();
    for (size_t a = 0; a < weight_view.size() && fits; ++a) {
      fits = scale.block[a] >= 1 && scale_view[a] == (weight_view[a] + scale.block[a] - 1) / scale.block[a];
    }
    if (!fits) both.weight.status = Bad(scale, absl::StrCat("is not the scale of \"", tensor.name, "\" by its block"));
    return both;
  }

  // The tensor in the side's order of parts.
  ScaledArray Ordered(int t) const {
    const UnitTensor& tensor = unit_.tensors[t];
    if (tensor.groups == 0 || !rules_.by_parts) return Array(t);
    return Take(Array(t), tensor.cut_axis, ByParts(tensor.parts, tensor.groups, {0, tensor.groups}));
  }

  absl::StatusOr<Segments> CutOf(const std::vector<RowPart>& parts, Index r) const {
    if (!rules_.uneven) return CutParts(parts, rules_.tp, r);
    Segments mine;
    Index first = 0;
    for (const RowPart& part : parts) {
      const bool even = part.units % rules_.tp == 0 || rules_.tp % part.units == 0;
      Segment units = ChunkOf(part.units, rules_.tp, r, ChunkRule::kEven);
      if (even) {
        HR_ASSIGN_OR_RETURN(units, UnitsOf(part.units, rules_.tp, r, "units"));
      }
      Append(mine, {first + units.first * part.rows, units.count * part.rows});
      first += part.units * part.rows;
    }
    return mine;
  }

  ScaledArray LocalTensor(int t, Index r) const {
    const UnitTensor& tensor = unit_.tensors[t];
    ScaledArray array = Ordered(t);
    if (tensor.vocabulary) {
      array.weight = PadToMultiple(array.weight, 0, rules_.vocabulary_multiple, rules_.vocabulary_padding);
      if (!array.weight.status.ok()) return array;
      const Index rows = array.weight.shape[0];
      if (rows % rules_.tp != 0) {
        array.weight.status =
            Error(ErrorCode::kShapeMismatch,
                  absl::StrCat("a vocabulary of ", tensor.shape[0], " rows, padded to ", rows,
                               ", does not divide over TP ", rules_.tp, ": choose a TP that divides it"));
        return array;
      }
      array.weight = Take(array.weight, 0, ChunkOf(rows, rules_.tp, r, ChunkRule::kEven));
      return array;
    }
    if (tensor.cut_axis < 0) return array;
    return Take(array, tensor.cut_axis, CutOf(PartsOf(tensor), r));
  }

  ScaledArray Local(const FusedBuffer& buffer, Index r) const {
    if (buffer.tensors.size() == 1 && buffer.groups == 0) return LocalTensor(buffer.tensors[0], r);
    std::vector<ScaledArray> arrays;
    if (buffer.groups == 0) {
      for (const int t : buffer.tensors) arrays.push_back(LocalTensor(t, r));
      return Concatenate(arrays, buffer.axis);
    }
    std::vector<RowPart> parts;
    for (const int t : buffer.tensors) {
      arrays.push_back(Ordered(t));
      for (const RowPart& part : PartsOf(unit_.tensors[t])) parts.push_back(part);
    }
    ScaledArray all = Take(Concatenate(arrays, buffer.axis), buffer.axis, ByGroups(parts, buffer.groups));
    if (!all.weight.status.ok()) return all;
    const Index rows = all.weight.shape[buffer.axis];
    if (rows % rules_.tp != 0) {
      all.weight.status = Error(ErrorCode::kShapeMismatch,
                                absl::StrCat(rows, " rows in ", buffer.groups, " groups do not divide over TP ",
                                             rules_.tp, ": choose a TP that divides them"));
      return all;
    }
    return Take(all, buffer.axis, ChunkOf(rows, rules_.tp, r, ChunkRule::kEven));
  }

  absl::Status Add(UnitShards& shards, Index r, const std::string& name, Dtype dtype, const PieceArray& array) const {
    if (!array.status.ok()) {
      return About(WithMessage(array.status,
                               absl::StrCat(Where("buffer", name), " TP ", rules_.tp, ": ", array.status.message())),
                   {.buffer = name});
    }
    if (std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end()) return absl::OkStatus();
    HR_ASSIGN_OR_RETURN(Buffer buffer, ToBuffer(r, BufferName(unit_, name, rules_.stacked), dtype, array));
    shards.buffers.push_back(std::move(buffer));
    return absl::OkStatus();
  }

  const ModelUnit& unit_;
  const SideRules rules_;
};

}  // namespace

absl::StatusOr<UnitShards> EngineShards(const ModelUnit& unit, const EngineLayout& layout) {
  return UnitCutter(unit, {.side = "engine",
                           .tp = unit.experts > 0 ? layout.parallel.etp : layout.parallel.tp,
                           .replicate = true,
                           .uneven = layout.uneven_units,
                           .scales_follow = true,
                           .vocabulary_multiple = layout.vocabulary_multiple,
                           .vocabulary_padding = PieceKind::kZero,
                           .stacked = unit.experts > 0})
      .Cut(unit.engine);
}

absl::StatusOr<UnitShards> TrainerShards(const ModelUnit& unit, const MegatronLayout& layout) {
  return UnitCutter(unit, {.side = "trainer",
                           .tp = unit.experts > 0 ? layout.parallel.etp : layout.parallel.tp,
                           .by_parts = true,
                           .vocabulary_multiple = layout.vocabulary_multiple * layout.parallel.tp,
                           .vocabulary_padding = PieceKind::kKeep})
      .Cut(unit.trainer);
}

absl::StatusOr<UnitShards> TrainerShards(const ModelUnit& unit, const FsdpLayout& layout) {
  const Index fsdp = unit.stacked ? 1 : layout.shards;
  UnitShards shards{fsdp * layout.tp, {}};
  // By tensor and TP rank. FSDP then shards what TP left to the rank. (DTensor says the same by a StridedShard on the
  // left of TP's Shard, where TP divides.)
  std::vector<std::vector<PieceArray>> cut;
  for (const UnitTensor& tensor : unit.tensors) {
    const bool plain = tensor.cut_axis >= 0 && tensor.view.empty() && tensor.parts.size() <= 1 && tensor.groups == 0;
    const MeshPlacement placement = plain ? MeshPlacement(Shard{tensor.cut_axis}) : MeshPlacement(Replicate{});
    std::vector<PieceArray>& arrays = cut.emplace_back();
    for (Index t = 0; t < layout.tp; ++t) {
      arrays.push_back(LocalPart(Whole(SpecOf(tensor)), {{layout.tp}, {"tp"}}, {placement}, {t}));
      if (!arrays.back().status.ok()) return About(arrays.back().status, {.tensor = tensor.name});
      if (!arrays.back().shape.empty()) continue;
      return About(Error(ErrorCode::kMalformed,
                         absl::StrCat("unit \"", unit.name, "\", tensor \"", tensor.name, "\", trainer: has no axes")),
                   {.tensor = tensor.name});
    }
  }
  for (Index s = 0; s < shards.shards; ++s) {
    for (size_t i = 0; i < unit.tensors.size(); ++i) {
      const PieceArray& of_tp = cut[i][s % layout.tp];
      const PieceArray local = Take(of_tp, 0, ChunkOf(of_tp.shape[0], fsdp, s / layout.tp, ChunkRule::kCeil));
      if (local.status.ok() && local.parts.empty()) continue;
      HR_ASSIGN_OR_RETURN(Buffer buffer, ToBuffer(s, BufferName(unit, unit.tensors[i].name, unit.stacked),
                                                  unit.tensors[i].dtype, local));
      shards.buffers.push_back(std::move(buffer));
    }
  }
  return shards;
}

absl::StatusOr<Manifest> UnitManifest(const ModelUnit& unit, const JobLayout& layout) {
  Manifest manifest;
  for (const UnitTensor& tensor : unit.tensors) {
    manifest.tensors.push_back(SpecOf(tensor));
    if (tensor.scale_of < 0) continue;
    if (static_cast<size_t>(tensor.scale_of) >= unit.tensors.size()) {
      return Error(ErrorCode::kMalformed,
                   absl::StrCat("unit \"", unit.name, "\", tensor \"", tensor.name, "\": is the scale of no tensor"));
    }
    // A manifest couples by the tensors' own axes. Where the block runs along views, the rules alone keep it whole.
    const UnitTensor& weight = unit.tensors[tensor.scale_of];
    if (weight.view.empty() && tensor.view.empty())
      manifest.coupled.push_back({weight.name, tensor.name, tensor.block});
  }
  absl::StatusOr<UnitShards> source =
      std::visit([&](const auto& trainer) { return TrainerShards(unit, trainer); }, layout.trainer);
  HR_RETURN_IF_ERROR(source.status());
  manifest.source = std::move(source->buffers);
  Index first = 0;
  for (size_t e = 0; e < layout.engines.size(); ++e) {
    absl::StatusOr<UnitShards> engine = EngineShards(unit, layout.engines[e]);
    if (!engine.ok() && layout.engines.size() > 1) {
      return WithMessage(engine.status(), absl::StrCat("engine layout ", e, ": ", engine.status().message()));
    }
    HR_RETURN_IF_ERROR(engine.status());
    for (Buffer& buffer : engine->buffers) {
      buffer.rank += first;
      manifest.destination.push_back(std::move(buffer));
    }
    first += engine->shards;
  }
  const absl::Status valid = Validate(manifest);
  if (!valid.ok()) return WithMessage(valid, absl::StrCat("unit \"", unit.name, "\": ", valid.message()));
  return manifest;
}

}  // namespace headrace
