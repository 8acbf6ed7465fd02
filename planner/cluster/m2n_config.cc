#include "planner/cluster/m2n_config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/cluster/json_fields.h"
#include "planner/dtype.h"
#include "planner/models/arch.h"
#include "planner/models/hardware.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr Index kMaxElements = Index{1} << 60;
constexpr Index kMaxNumber = Index{1} << 20;  // of layers and experts

struct M2nSizes {
  Index gpus = 1, tp = 1, cp = 1, ep = 1, pp = 1, fsdp = 1, dp = 1;
};

absl::StatusOr<M2nSizes> ReadSizes(const Json& json, const std::string& side) {
  JsonFields f(json, side);
  f.Only({"num_gpus", "tp_size", "cp_size", "ep_size", "pp_size", "fsdp_size", "dp_size", "_comment"});
  M2nSizes sizes;
  sizes.gpus = f.Number("num_gpus");
  sizes.tp = f.Number("tp_size", 1);
  sizes.cp = f.Number("cp_size", 1);
  sizes.ep = f.Number("ep_size", 1);
  sizes.pp = f.Number("pp_size", 1);
  sizes.fsdp = f.Number("fsdp_size", 1);
  sizes.dp = f.Number("dp_size", 1);
  HR_RETURN_IF_ERROR(f.status());
  return sizes;
}

absl::Status Inexpressible(const std::string& field, const std::string& why) {
  return Error(ErrorCode::kInvalidOption, absl::StrCat(field, " ", why));
}

absl::Status On(const char* side, const absl::Status& status) {
  return WithMessage(status, absl::StrCat(side, ": ", status.message()));
}

absl::StatusOr<TrainerLayout> TrainerOf(const M2nSizes& s, std::string* note) {
  if (s.fsdp > 1) {
    if (s.cp > 1 || s.ep > 1 || s.pp > 1) {
      return Inexpressible("train.fsdp_size",
                           absl::StrCat("is ", s.fsdp, " beside cp, ep or pp: give FSDP with tp alone"));
    }
    const auto fsdp = FitFsdp({.shards = s.fsdp, .tp = s.tp}, s.gpus);
    if (!fsdp.ok()) return On("train", fsdp.status());
    return *fsdp;
  }
  MegatronLayout layout;
  layout.parallel = {.tp = s.tp, .cp = s.cp, .pp = s.pp, .ep = s.ep};
  const auto fitted = FitMegatron(layout, s.gpus);
  if (!fitted.ok()) return On("train", fitted.status());
  if (fitted->parallel.dp != s.dp) {
    absl::StrAppend(note, note->empty() ? "" : " ", "train.dp_size is ", fitted->parallel.dp,
                    " = num_gpus / (tp * cp * pp), not ", s.dp, ".");
  }
  return *fitted;
}

absl::StatusOr<EngineLayout> EnginesOf(const M2nSizes& s, std::string* note) {
  if (s.cp > 1) return Inexpressible("generation.cp_size", "is above 1: engines have no context parallelism");
  if (s.fsdp > 1) return Inexpressible("generation.fsdp_size", "is above 1: engines have no FSDP");
  const auto fitted = FitEngines(s.gpus, s.tp, s.pp, s.ep);
  if (!fitted.ok()) return On("generation", fitted.status());
  if (fitted->parallel.dp != s.dp) {
    absl::StrAppend(note, note->empty() ? "" : " ", "generation.dp_size is ", fitted->parallel.dp,
                    " = num_gpus / (tp * pp), not ", s.dp, ".");
  }
  return fitted;
}

// A tensor's name with {layer} and {expert} where its numbers are.
struct Pattern {
  std::string name;
  Index layer = -1;
  Index expert = -1;
};

// Takes the number behind `prefix` out of the name. False when there is none.
bool TakeNumber(std::string& name, const std::string& prefix, const char* placeholder, Index* number) {
  size_t at = name.find(prefix);
  while (at != std::string::npos) {
    const size_t first = at + prefix.size();
    size_t end = first;
    while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
    if (end > first && end < name.size() && name[end] == '.' &&
        absl::SimpleAtoi(name.substr(first, end - first), number) && *number < kMaxNumber) {
      name.replace(first, end - first, placeholder);
      return true;
    }
    at = name.find(prefix, first);
  }
  return false;
}

Pattern PatternOf(const std::string& name) {
  Pattern pattern;
  pattern.name = name;
  if (!TakeNumber(pattern.name, "layers.", "{layer}", &pattern.layer)) return pattern;
  TakeNumber(pattern.name, ".experts.", "{expert}", &pattern.expert);
  return pattern;
}

// placement_rules of the benchmark. -1: whole.
int CutAxis(const std::string& name) {
  for (const char* rows : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight",
                           "q_a_proj.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight", "kv_b_proj.weight"}) {
    if (absl::EndsWith(name, rows)) return 0;
  }
  for (const char* columns : {"o_proj.weight", "down_proj.weight"}) {
    if (absl::EndsWith(name, columns)) return 1;
  }
  const bool vocabulary = absl::StrContains(name, "embed_tokens.weight") || absl::StrContains(name, "lm_head.weight");
  return vocabulary ? 0 : -1;
}

absl::StatusOr<UnitTensor> ReadTensor(const std::string& name, const Json& json) {
  JsonFields f(json, name);
  f.Only({"shape", "dtype", "shard"});
  UnitTensor tensor;
  const std::string dtype = f.Has("dtype") ? f.Text("dtype", true) : "BF16";
  const std::optional<Dtype> known = DtypeFromName(dtype);
  if (!known) f.Fail("dtype", absl::StrCat("\"", dtype, "\" is unknown"));
  if (!f.Has("shape") || !json["shape"].is_array() || json["shape"].empty())
    f.Fail("shape", "must be a list of numbers");
  HR_RETURN_IF_ERROR(f.status());
  tensor.dtype = *known;
  Index elements = 1;
  for (const Json& extent : json["shape"]) {
    if (!extent.is_number_integer() || extent.get<Index>() < 1) f.Fail("shape", "must be numbers of at least 1");
    HR_RETURN_IF_ERROR(f.status());
    if (extent.get<Index>() > kMaxElements / elements) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat(name, ".shape has 2^60 elements or more"));
    }
    elements *= extent.get<Index>();
    tensor.shape.push_back(extent.get<Index>());
  }
  return tensor;
}

// 0, 1, ... without a gap. Errors name a tensor.
absl::Status CheckNumbers(const std::set<Index>& numbers, const std::string& what, const std::string& name) {
  if (*numbers.begin() == 0 && *numbers.rbegin() == static_cast<Index>(numbers.size()) - 1) return absl::OkStatus();
  return Error(ErrorCode::kMalformed, absl::StrCat(name, " has ", numbers.size(), " ", what, " numbered up to ",
                                                   *numbers.rbegin(), ": give all of them, from 0 on"));
}

}  // namespace

absl::StatusOr<JobLayout> ParseM2nSystem(absl::string_view json, const std::string& id, const std::string& model,
                                         const std::string& gpu) {
  HR_ASSIGN_OR_RETURN(const Json document, ParseJsonObject("a system config", json));
  JsonFields f(document, "");
  f.Only({"train", "generation", "_comment"});
  JobLayout layout;
  layout.id = id;
  layout.model = model;
  layout.gpu = gpu;
  layout.engine_name = "nccl_m2n benchmark";
  layout.note = f.Text("_comment", false);
  const Json &train = f.Object("train"), &generation = f.Object("generation");
  HR_RETURN_IF_ERROR(f.status());
  HR_ASSIGN_OR_RETURN(const M2nSizes source, ReadSizes(train, "train"));
  HR_ASSIGN_OR_RETURN(const M2nSizes destination, ReadSizes(generation, "generation"));
  HR_ASSIGN_OR_RETURN(layout.trainer, TrainerOf(source, &layout.note));
  HR_ASSIGN_OR_RETURN(const EngineLayout engine, EnginesOf(destination, &layout.note));
  layout.engines = {engine};
  HR_ASSIGN_OR_RETURN(const Hardware hardware, HardwareNamed(gpu));
  layout.source = {static_cast<int32_t>(source.gpus), hardware.gpus_per_node, hardware.nvlink_domain};
  layout.destination = {static_cast<int32_t>(destination.gpus), hardware.gpus_per_node, hardware.nvlink_domain};
  return layout;
}

absl::StatusOr<Model> ParseM2nModel(absl::string_view json, const std::string& name) {
  HR_ASSIGN_OR_RETURN(const Json document, ParseJsonObject("a model config", json));
  // Tensors of one name pattern, shape and dtype are the instances of one unit's tensor.
  struct Family {
    UnitTensor tensor;
    std::set<Index> layers;
    std::map<Index, std::set<Index>> experts;  // by layer
  };
  std::map<std::tuple<std::string, Extents, Dtype>, Family> families;
  Model model;
  model.name = name;
  for (const auto& [tensor_name, value] : document.items()) {
    HR_ASSIGN_OR_RETURN(UnitTensor tensor, ReadTensor(tensor_name, value));
    const Pattern pattern = PatternOf(tensor_name);
    if (InstanceName(pattern.name, pattern.layer, pattern.expert) != tensor_name) {
      // "layers.007", "{layer}": it would be taken for another tensor.
      return Error(ErrorCode::kMalformed, absl::StrCat("tensor \"", tensor_name,
                                                       "\": write its numbers without leading zeros, and no {layer} "
                                                       "or {expert}"));
    }
    tensor.name = pattern.name;
    const int axis = CutAxis(pattern.name);
    if (axis >= 0 && tensor.shape.size() == 2) tensor.cut_axis = axis;
    Family& family = families[{pattern.name, tensor.shape, tensor.dtype}];
    family.tensor = std::move(tensor);
    if (pattern.layer < 0) continue;
    model.layers = std::max(model.layers, pattern.layer + 1);
    family.layers.insert(pattern.layer);
    if (pattern.expert >= 0) family.experts[pattern.layer].insert(pattern.expert);
  }
  // Those of the same place are a unit.
  std::map<std::tuple<UnitPlace, std::set<Index>, Index>, ModelUnit> units;
  for (const auto& [key, family] : families) {
    Index experts = 0;
    for (const auto& [layer, numbers] : family.experts) {
      HR_RETURN_IF_ERROR(CheckNumbers(numbers, "experts", family.tensor.name));
      if (experts != 0 && experts != static_cast<Index>(numbers.size())) {
        return Error(ErrorCode::kMalformed,
                     absl::StrCat(family.tensor.name, " has ", experts, " experts in some layers and ", numbers.size(),
                                  " in layer ", layer));
      }
      experts = static_cast<Index>(numbers.size());
    }
    const UnitPlace place = !family.layers.empty()                                  ? UnitPlace::kLayers
                            : absl::StrContains(family.tensor.name, "embed_tokens") ? UnitPlace::kFirst
                                                                                    : UnitPlace::kLast;
    ModelUnit& unit = units[{place, family.layers, experts}];
    unit.place = place;
    unit.layers.assign(family.layers.begin(), family.layers.end());
    unit.experts = experts;
    unit.tensors.push_back(family.tensor);
  }
  if (units.empty()) return Error(ErrorCode::kMalformed, "a model config must have tensors");
  for (auto& [key, unit] : units) {
    unit.name = absl::StrCat("unit", model.units.size());
    model.units.push_back(std::move(unit));
  }
  return model;
}

}  // namespace headrace
