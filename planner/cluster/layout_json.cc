#include "planner/cluster/layout_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/cluster/json_fields.h"
#include "planner/models/arch.h"
#include "planner/models/hardware.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr char kPublished[] =
#include "planner/cluster/data/layouts.inc"
    ;

void AddNote(std::string& note, const std::string& more) { absl::StrAppend(&note, note.empty() ? "" : " ", more); }

void NoteReplaced(std::string& note, const std::string& side, Index published, Index used, const char* rule) {
  if (published == used) return;
  AddNote(note, absl::StrCat(side, ".dp is ", used, " = ", rule, ", not ", published, "."));
}

absl::StatusOr<TrainerLayout> ReadTrainer(const Json& json, Index* gpus, std::string* note) {
  JsonFields f(json, "train");
  *gpus = f.Number("gpus");
  if (f.Has("fsdp")) {
    f.Only({"gpus", "gpus_src", "fsdp", "tp"});
    FsdpLayout layout;
    layout.shards = f.Number("fsdp");
    layout.tp = f.Number("tp", 1);
    HR_RETURN_IF_ERROR(f.status());
    absl::StatusOr<FsdpLayout> fitted = FitFsdp(layout, *gpus);
    if (!fitted.ok()) return WithMessage(fitted.status(), absl::StrCat("train: ", fitted.status().message()));
    return *std::move(fitted);
  }
  f.Only({"gpus", "gpus_src", "tp", "cp", "pp", "dp", "ep", "etp", "vpp", "layers_first", "layers_last"});
  MegatronLayout layout;
  ParallelLayout& p = layout.parallel;
  p.tp = f.Number("tp");
  p.cp = f.Number("cp", 1);
  p.pp = f.Number("pp", 1);
  p.ep = f.Number("ep", 1);
  p.etp = f.Number("etp", 1);
  layout.vpp = f.Number("vpp", 1);
  if (f.Has("layers_first")) layout.layers_first = f.Number("layers_first");
  if (f.Has("layers_last")) layout.layers_last = f.Number("layers_last");
  const std::optional<Index> dp = f.Has("dp") ? std::optional(f.Number("dp")) : std::nullopt;
  HR_RETURN_IF_ERROR(f.status());
  absl::StatusOr<MegatronLayout> fitted = FitMegatron(layout, *gpus);
  if (!fitted.ok()) return WithMessage(fitted.status(), absl::StrCat("train: ", fitted.status().message()));
  if (dp) NoteReplaced(*note, "train", *dp, fitted->parallel.dp, "gpus / (tp * cp * pp)");
  return *std::move(fitted);
}

absl::StatusOr<EngineLayout> ReadEngine(const Json& json, const std::string& path, std::string* name,
                                        std::string* note) {
  JsonFields f(json, path);
  f.Only({"gpus", "gpus_src", "tp", "pp", "ep", "dp", "engine"});
  const Index gpus = f.Number("gpus");
  const Index tp = f.Number("tp"), pp = f.Number("pp", 1), ep = f.Number("ep", 1);
  const std::optional<Index> dp = f.Has("dp") ? std::optional(f.Number("dp")) : std::nullopt;
  const std::string engine = f.Text("engine", false);
  HR_RETURN_IF_ERROR(f.status());
  absl::StatusOr<EngineLayout> fitted = FitEngines(gpus, tp, pp, ep);
  if (!fitted.ok()) return WithMessage(fitted.status(), absl::StrCat(path, ": ", fitted.status().message()));
  if (dp) NoteReplaced(*note, path, *dp, fitted->parallel.dp, "gpus / (tp * pp)");
  if (!engine.empty() && *name != engine) absl::StrAppend(name, name->empty() ? "" : ", ", engine);
  return fitted;
}

absl::StatusOr<JobLayout> ReadLayout(const Json& json) {
  JsonFields f(json, "");
  f.Only({"id", "model", "wire", "gpu", "train", "gen", "method", "seconds_min", "seconds_max", "scope",
          "bulk_fraction", "nvlink_domain_used", "source", "note", "assumed"});
  JobLayout layout;
  layout.id = f.Text("id", true);
  layout.model = f.Text("model", true);
  layout.wire = f.Text("wire", false);
  layout.method = f.Text("method", false);
  layout.scope = f.Text("scope", false);
  layout.origin = f.Text("source", false);
  layout.note = f.Text("note", false);
  layout.seconds_min = f.Measure("seconds_min");
  layout.seconds_max = f.Measure("seconds_max");
  if (layout.seconds_min.has_value() != layout.seconds_max.has_value()) {
    f.Fail(layout.seconds_min ? "seconds_max" : "seconds_min", "is missing: give both ends of the range, or none");
  } else if (layout.seconds_min && !(*layout.seconds_min >= 0 && *layout.seconds_min <= *layout.seconds_max)) {
    f.Fail("seconds_min", "must be at least 0 and at most seconds_max");
  }
  layout.bulk_fraction = f.Measure("bulk_fraction");
  const std::optional<Index> domain = f.NumberOrNull("nvlink_domain_used");
  if (domain && *domain > kMaxSideRanks) {
    f.Fail("nvlink_domain_used", absl::StrCat("is ", *domain, ": give at most ", kMaxSideRanks));
  }
  const bool assumed = f.Flag("assumed");
  const Json& train = f.Object("train");
  const auto gen = f.Objects("gen");
  HR_RETURN_IF_ERROR(f.status());
  Index source_gpus = 0;
  HR_ASSIGN_OR_RETURN(layout.trainer, ReadTrainer(train, &source_gpus, &layout.note));
  for (const auto& [path, json] : gen) {
    HR_ASSIGN_OR_RETURN(EngineLayout engine, ReadEngine(*json, path, &layout.engine_name, &layout.note));
    engine.uneven_units = assumed;
    layout.engines.push_back(engine);
  }
  const absl::StatusOr<Index> destination_gpus = RanksOf(layout.engines);
  if (!destination_gpus.ok()) {
    return WithMessage(destination_gpus.status(), absl::StrCat("gen: ", destination_gpus.status().message()));
  }
  layout.gpu = f.Text("gpu", true);
  HR_RETURN_IF_ERROR(f.status());
  HR_ASSIGN_OR_RETURN(const Hardware hardware, HardwareNamed(layout.gpu));
  const auto per_domain = static_cast<int32_t>(domain.value_or(hardware.nvlink_domain));
  layout.source = {static_cast<int32_t>(source_gpus), hardware.gpus_per_node, per_domain};
  layout.destination = {static_cast<int32_t>(*destination_gpus), hardware.gpus_per_node, per_domain};
  if (assumed) {
    AddNote(layout.note, "Heads that the engine's TP does not divide are dealt out unevenly, which no engine does.");
  }
  return layout;
}

const std::vector<NamedLayout>& Published() {
  static const auto* const kLayouts = new std::vector<NamedLayout>(ParseLayouts(kPublished).value());
  return *kLayouts;
}

}  // namespace

absl::StatusOr<JobLayout> ParseLayout(absl::string_view json) {
  HR_ASSIGN_OR_RETURN(const Json document, ParseJsonObject("a layout", json));
  return ReadLayout(document);
}

absl::StatusOr<std::vector<NamedLayout>> ParseLayouts(absl::string_view json) {
  HR_ASSIGN_OR_RETURN(const Json document, ParseJsonObject("layouts", json));
  std::vector<NamedLayout> layouts;
  for (const std::string list : {"layouts", "assumed"}) {
    if (!document.contains(list) && list == "assumed") continue;
    if (!document.contains(list) || !document[list].is_array()) {
      return Error(ErrorCode::kMalformed, absl::StrCat(list, " must be a list of layouts"));
    }
    for (const Json& entry : document[list]) {
      if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_string()) {
        return Error(ErrorCode::kMalformed, absl::StrCat("entry ", layouts.size(), " of ", list, " has no id"));
      }
      const std::string id = entry["id"].get<std::string>();
      absl::StatusOr<JobLayout> layout = ReadLayout(entry);
      if (!layout.ok()) layout = WithMessage(layout.status(), absl::StrCat(id, ": ", layout.status().message()));
      layouts.emplace_back(id, std::move(layout));
    }
  }
  return layouts;
}

absl::StatusOr<JobLayout> LayoutNamed(absl::string_view id) {
  for (const auto& [name, layout] : Published()) {
    if (name == id) return layout;
  }
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat("no layout \"", id, "\"; known: ", absl::StrJoin(LayoutIds(), ", ")));
}

std::vector<std::string> LayoutIds() {
  std::vector<std::string> ids;
  for (const auto& [name, layout] : Published()) ids.push_back(name);
  return ids;
}

}  // namespace headrace
