#include "planner/cluster/layout_json.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/models/hardware.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr char kPublished[] =
#include "planner/cluster/data/layouts.inc"
    ;

// Reads an object's fields. The first error is kept; readers return neutral values.
class Fields {
 public:
  Fields(const Json& object, std::string path, std::initializer_list<const char*> known)
      : object_(object), path_(std::move(path)) {
    if (!object.is_object()) {
      Fail(path_.empty() ? "a layout" : path_, "must be an object");
      return;
    }
    const std::set<std::string> names(known.begin(), known.end());
    for (const auto& [name, value] : object.items()) {
      if (!names.contains(name)) {
        Fail(Path(name), absl::StrCat("is unknown; known: ", absl::StrJoin(names, ", ")));
      }
    }
  }

  const absl::Status& status() const { return status_; }
  bool Has(const char* name) const { return object_.is_object() && object_.contains(name); }

  // A missing field is `otherwise`; nullopt: it is required. Null never counts as a number.
  Index Number(const char* name, std::optional<Index> otherwise) {
    if (!Has(name)) {
      if (!otherwise) Fail(Path(name), "is missing: give a number");
      return otherwise.value_or(1);
    }
    const Json& value = object_[name];
    if (value.is_null()) {
      Fail(Path(name), "is null: it was not published, and a size is never guessed; give a number");
    } else if (!value.is_number_integer()) {
      Fail(Path(name), "must be a whole number");
    } else if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
      Fail(Path(name), absl::StrCat("is ", value.dump(), ": give less than 2^31"));
    } else if (value.get<Index>() < 1) {
      Fail(Path(name), absl::StrCat("is ", value.dump(), ": give at least 1"));
    } else {
      return value.get<Index>();
    }
    return 1;
  }

  std::string Text(const char* name, bool required) {
    if (!Has(name)) {
      if (required) Fail(Path(name), "is missing: give a text");
      return "";
    }
    if (object_[name].is_string()) return object_[name].get<std::string>();
    Fail(Path(name), object_[name].is_null() ? "is null: it was not published; give a text" : "must be a text");
    return "";
  }

  // Null and missing are the same.
  std::optional<double> Measure(const char* name) {
    if (!Has(name) || object_[name].is_null()) return std::nullopt;
    if (object_[name].is_number()) return object_[name].get<double>();
    Fail(Path(name), "must be a number or null");
    return std::nullopt;
  }

 private:
  std::string Path(const std::string& name) const { return path_.empty() ? name : absl::StrCat(path_, ".", name); }
  void Fail(const std::string& field, const std::string& what) {
    if (status_.ok()) status_ = Error(ErrorCode::kMalformed, absl::StrCat(field, " ", what));
  }

  const Json& object_;
  std::string path_;
  absl::Status status_;
};

void AddNote(std::string& note, const std::string& more) { absl::StrAppend(&note, note.empty() ? "" : " ", more); }

void NoteReplaced(std::string& note, const char* side, Index published, Index used, const char* rule) {
  if (published == used) return;
  AddNote(note, absl::StrCat(side, ".dp is ", used, " = ", rule, ", not ", published, "."));
}

absl::StatusOr<TrainerLayout> ReadTrainer(const Json& json, Index* gpus, std::string* note) {
  const bool fsdp = json.is_object() && json.contains("fsdp");
  Fields f(json, "train",
           fsdp ? std::initializer_list<const char*>{"gpus", "gpus_src", "fsdp", "tp"}
                : std::initializer_list<const char*>{"gpus", "gpus_src", "tp", "cp", "pp", "dp", "ep", "etp", "vpp",
                                                     "layers_first", "layers_last"});
  *gpus = f.Number("gpus", std::nullopt);
  if (fsdp) {
    FsdpLayout layout;
    layout.shards = f.Number("fsdp", std::nullopt);
    layout.tp = f.Number("tp", 1);
    HR_RETURN_IF_ERROR(f.status());
    if (*gpus % (layout.shards * layout.tp) != 0) {
      return Error(
          ErrorCode::kShapeMismatch,
          absl::StrCat("train.gpus: ", *gpus, " GPUs are no multiple of fsdp * tp = ", layout.shards * layout.tp));
    }
    layout.replicas = *gpus / (layout.shards * layout.tp);
    return layout;
  }
  MegatronLayout layout;
  ParallelLayout& p = layout.parallel;
  p.tp = f.Number("tp", std::nullopt);
  p.cp = f.Number("cp", 1);
  p.pp = f.Number("pp", 1);
  p.ep = f.Number("ep", 1);
  p.etp = f.Number("etp", 1);
  layout.vpp = f.Number("vpp", 1);
  if (f.Has("layers_first")) layout.layers_first = f.Number("layers_first", 1);
  if (f.Has("layers_last")) layout.layers_last = f.Number("layers_last", 1);
  const std::optional<Index> dp = f.Has("dp") ? std::optional(f.Number("dp", 1)) : std::nullopt;
  HR_RETURN_IF_ERROR(f.status());
  absl::StatusOr<MegatronLayout> fitted = FitMegatron(layout, *gpus);
  if (!fitted.ok()) return WithMessage(fitted.status(), absl::StrCat("train: ", fitted.status().message()));
  if (dp) NoteReplaced(*note, "train", *dp, fitted->parallel.dp, "gpus / (tp * cp * pp)");
  return *std::move(fitted);
}

absl::StatusOr<EngineLayout> ReadEngines(const Json& json, Index* gpus, std::string* name, std::string* note) {
  Fields f(json, "gen", {"gpus", "gpus_src", "tp", "pp", "ep", "dp", "engine"});
  *gpus = f.Number("gpus", std::nullopt);
  const Index tp = f.Number("tp", std::nullopt), pp = f.Number("pp", 1), ep = f.Number("ep", 1);
  const std::optional<Index> dp = f.Has("dp") ? std::optional(f.Number("dp", 1)) : std::nullopt;
  *name = f.Text("engine", false);
  HR_RETURN_IF_ERROR(f.status());
  absl::StatusOr<EngineLayout> fitted = FitEngines(*gpus, tp, pp, ep);
  if (!fitted.ok()) return WithMessage(fitted.status(), absl::StrCat("gen: ", fitted.status().message()));
  if (dp) NoteReplaced(*note, "gen", *dp, fitted->parallel.dp, "gpus / (tp * pp)");
  return fitted;
}

absl::StatusOr<JobLayout> ReadLayout(const Json& json) {
  Fields f(json, "",
           {"id", "model", "wire", "gpu", "train", "gen", "method", "seconds_min", "seconds_max", "scope",
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
  layout.bulk_fraction = f.Measure("bulk_fraction");
  HR_RETURN_IF_ERROR(f.status());
  for (const char* side : {"train", "gen"}) {
    if (!f.Has(side)) return Error(ErrorCode::kMalformed, absl::StrCat(side, " is missing: give an object"));
  }
  if (f.Has("assumed") && !json["assumed"].is_boolean()) {
    return Error(ErrorCode::kMalformed, "assumed must be true or false");
  }
  Index source_gpus = 0, destination_gpus = 0;
  HR_ASSIGN_OR_RETURN(layout.trainer, ReadTrainer(json["train"], &source_gpus, &layout.note));
  HR_ASSIGN_OR_RETURN(layout.engine, ReadEngines(json["gen"], &destination_gpus, &layout.engine_name, &layout.note));
  layout.gpu = f.Text("gpu", true);
  const bool narrower = f.Has("nvlink_domain_used") && !json["nvlink_domain_used"].is_null();
  const Index domain = narrower ? f.Number("nvlink_domain_used", 1) : 1;
  HR_RETURN_IF_ERROR(f.status());
  HR_ASSIGN_OR_RETURN(const Hardware hardware, HardwareNamed(layout.gpu));
  const int32_t per_domain = narrower ? static_cast<int32_t>(domain) : hardware.nvlink_domain;
  layout.source = {static_cast<int32_t>(source_gpus), hardware.gpus_per_node, per_domain};
  layout.destination = {static_cast<int32_t>(destination_gpus), hardware.gpus_per_node, per_domain};
  if (f.Has("assumed") && json["assumed"].get<bool>()) {
    layout.engine.uneven_units = true;
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
  const Json document = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return Error(ErrorCode::kMalformed, "a layout must be JSON");
  return ReadLayout(document);
}

absl::StatusOr<std::vector<NamedLayout>> ParseLayouts(absl::string_view json) {
  const Json document = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded() || !document.is_object()) {
    return Error(ErrorCode::kMalformed, "layouts must be a JSON object with the list \"layouts\"");
  }
  std::vector<NamedLayout> layouts;
  for (const char* list : {"layouts", "assumed"}) {
    if (!document.contains(list) && std::string(list) == "assumed") continue;
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
