#include "planner/models/records.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/models/arch.h"
#include "planner/models/families.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr char kRecords[] =
#include "planner/models/records_json.inc"
    ;

const Json& Records() {
  static const Json& records = *new Json(Json::parse(kRecords)["models"]);
  return records;
}

const std::map<std::string, Family>& Families() {
  static const auto& families = *new std::map<std::string, Family>{
      {"llama", Llama},          {"mixtral", Mixtral}, {"qwen3_moe", Qwen3Moe},   {"deepseek", DeepSeek},
      {"gpt_oss", GptOss},       {"kimi_k3", KimiK3},  {"qwen3_next", Qwen3Next}, {"qwen3_5_moe", Qwen35Moe},
      {"nemotron_h", NemotronH}, {"bamba", Bamba},     {"zamba2", Zamba2}};
  return families;
}

std::string Names(const std::map<std::string, Family>& families) {
  return absl::StrJoin(families, ", ", [](std::string* out, const auto& f) { *out += f.first; });
}

absl::Status NoRecord(const std::string& name) {
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat("there is no model \"", name, "\"; known: ", absl::StrJoin(ModelNames(), ", ")));
}

// The numbers of a record or of the one that its "same_arch" names, which has them itself.
absl::StatusOr<const Json*> ArchOf(Arch& record) {
  if (!record.Has("same_arch")) return &record.Object("arch");
  record.Require(!record.Has("arch"), "same_arch", "not stand beside \"arch\"");
  const std::string other = record.Text("same_arch");
  const auto found = Records().find(other);
  if (found == Records().end()) return NoRecord(other);
  const auto arch = found->find("arch");
  if (arch == found->end()) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("\"same_arch\" names \"", other, "\", which has no \"arch\" itself"));
  }
  return &*arch;
}

absl::Status CheckExpertsOneByOne(const Model& model) {
  bool found = false;
  for (const ModelUnit& unit : model.units) {
    if (unit.experts == 0) continue;
    found = true;
    if (!unit.stacked) continue;
    return Error(ErrorCode::kInvalidOption,
                 "\"quant\" must not be mxfp4_experts where the checkpoint stacks the experts of a layer");
  }
  if (found) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, "\"quant\" must not be mxfp4_experts where there are no experts");
}

absl::StatusOr<Model> ReadRecord(const std::string& name, const Json& json) {
  Arch record("", json);
  for (const char* text : {"hf", "status", "source", "note", "traits"}) record.TextOr(text, "");
  const std::string family_name = record.Text("family"), quant = record.TextOr("quant", "");
  const std::string scale = record.TextOr("scale_dtype", "F32");
  record.Ignore("expect");
  const auto family = Families().find(family_name);
  record.Require(family != Families().end(), "family", absl::StrCat("be one of ", Names(Families())));
  record.Require(quant.empty() || quant == "fp8_block128" || quant == "mxfp4_experts" || quant == "mxfp4", "quant",
                 "be fp8_block128, mxfp4_experts or mxfp4, or be left out");
  record.Require(scale == "F32" || scale == "BF16", "scale_dtype", "be F32 or BF16");
  record.Require((quant == "mxfp4") <= (family_name == "gpt_oss"), "quant", "be mxfp4 only in the family gpt_oss");
  record.Require((family_name == "gpt_oss") <= (quant.empty() || quant == "mxfp4"), "quant",
                 "be mxfp4 or be left out in the family gpt_oss");
  const absl::StatusOr<const Json*> numbers = ArchOf(record);
  HR_RETURN_IF_ERROR(record.Done());
  HR_RETURN_IF_ERROR(numbers.status());

  LinearFormat format, expert_format;
  if (quant == "fp8_block128") {
    format = {LinearFormat::kFp8Block128, *DtypeFromName(scale)};
    expert_format = format;
  }
  if (quant == "mxfp4_experts") expert_format = {.kind = LinearFormat::kMxfp4};
  Arch arch("arch", **numbers);
  ModelBuilder model(name, format, expert_format);
  (quant == "mxfp4" ? GptOssMxfp4 : family->second)(arch, model);
  HR_RETURN_IF_ERROR(arch.Done());
  HR_RETURN_IF_ERROR(model.Check());
  Model made = model.Take();
  if (quant == "mxfp4_experts") {
    HR_RETURN_IF_ERROR(CheckExpertsOneByOne(made));
    // Ranks get whole runs of values that share a scale.
    const std::string inter = arch.Has("moe_inter") ? "moe_inter" : "inter";
    arch.Require(arch.Number(inter) % kMxValues == 0, inter, absl::StrCat("be a multiple of ", kMxValues));
    HR_RETURN_IF_ERROR(arch.Done());
  }
  return made;
}

absl::StatusOr<Model> FromRecord(const std::string& name, const Json& json) {
  absl::StatusOr<Model> model = ReadRecord(name, json);
  if (model.ok()) return model;
  return WithMessage(model.status(), absl::StrCat("model \"", name, "\": ", model.status().message()));
}

}  // namespace

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const auto& [name, record] : Records().items()) names.push_back(name);
  return names;
}

absl::StatusOr<Model> ModelNamed(const std::string& name) {
  const auto record = Records().find(name);
  if (record == Records().end()) return NoRecord(name);
  return FromRecord(name, *record);
}

absl::StatusOr<Model> ParseModelRecord(const std::string& name, absl::string_view json) {
  HR_ASSIGN_OR_RETURN(const Json record, ParseJsonObject(absl::StrCat("the record of model \"", name, "\""), json));
  return FromRecord(name, record);
}

}  // namespace headrace
