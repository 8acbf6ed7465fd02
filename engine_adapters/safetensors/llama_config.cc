#include "engine_adapters/safetensors/llama_config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine_adapters/safetensors/json_object.h"
#include "engine_adapters/safetensors/mapped_file.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kModelTypes[] = {"llama", "mistral", "qwen2", "qwen3"};
constexpr absl::string_view kEmbedding = "model.embed_tokens.weight";
constexpr absl::string_view kHead = "lm_head.weight";

// Reads fields of one object; the first error is kept, and readers return neutral values after it.
class Fields {
 public:
  Fields(const Json& json, absl::string_view path) : json_(json), path_(path) {}

  const absl::Status& status() const { return status_; }

  // nullopt when it is absent or null.
  std::optional<Index> OptionalInteger(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<Index>::max()));
    if (fits) return value->get<Index>();
    Fail(absl::StrCat(Quoted(field), " must be an integer of 64 bits"));
    return std::nullopt;
  }

  Index Integer(const char* field) {
    const std::optional<Index> value = OptionalInteger(field);
    if (!value) Fail(absl::StrCat("lacks ", Quoted(field)));
    return value.value_or(0);
  }

  bool BoolOrFalse(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    Fail(absl::StrCat(Quoted(field), " must be true or false"));
    return false;
  }

  // nullopt when it is absent or null.
  std::optional<std::string> OptionalText(const char* field) {
    const Json* value = Find(field);
    if (value == nullptr) return std::nullopt;
    if (value->is_string()) return value->get<std::string>();
    Fail(absl::StrCat(Quoted(field), " must be a string"));
    return std::nullopt;
  }

 private:
  const Json* Find(const char* field) const {
    const auto value = json_.find(field);
    return value == json_.end() || value->is_null() ? nullptr : &*value;
  }

  void Fail(absl::string_view what) { status_.Update(Error(ErrorCode::kIo, absl::StrCat(path_, ": ", what))); }

  const Json& json_;
  const absl::string_view path_;
  absl::Status status_;
};

absl::StatusOr<Dtype> TorchDtype(absl::string_view name, absl::string_view path) {
  static constexpr std::pair<absl::string_view, Dtype> kNames[] = {
      {"bfloat16", Dtype::kBF16}, {"float16", Dtype::kF16}, {"float32", Dtype::kF32}, {"float64", Dtype::kF64}};
  for (const auto& [known, dtype] : kNames) {
    if (known == name) return dtype;
  }
  return Error(ErrorCode::kInvalidOption,
               absl::StrCat(path, ": the dtype ", Quoted(name), " is none of bfloat16, float16, float32, float64"));
}

// The config that the file states, with the dtype of its tensors if it states none.
absl::StatusOr<LlamaConfig> ReadConfig(const Json& json, absl::string_view path, const Checkpoint& checkpoint) {
  Fields fields(json, path);
  const std::optional<std::string> model_type = fields.OptionalText("model_type");
  HR_RETURN_IF_ERROR(fields.status());
  if (!model_type) return Error(ErrorCode::kIo, absl::StrCat(path, ": lacks \"model_type\""));
  if (std::find(std::begin(kModelTypes), std::end(kModelTypes), *model_type) == std::end(kModelTypes)) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat(path, ": there are no layout rules for model_type ", Quoted(*model_type),
                              "; there are for ", absl::StrJoin(kModelTypes, ", ")));
  }
  LlamaConfig config;
  config.hidden = fields.Integer("hidden_size");
  config.intermediate = fields.Integer("intermediate_size");
  config.layers = fields.Integer("num_hidden_layers");
  config.heads = fields.Integer("num_attention_heads");
  config.kv_heads = fields.OptionalInteger("num_key_value_heads").value_or(config.heads);
  std::optional<Index> head_dim = fields.OptionalInteger("head_dim");
  config.vocab = fields.Integer("vocab_size");
  config.tied = fields.BoolOrFalse("tie_word_embeddings");
  config.qk_norm = *model_type == "qwen3";
  config.attention_bias = fields.BoolOrFalse("attention_bias") || *model_type == "qwen2";
  std::optional<std::string> dtype = fields.OptionalText("torch_dtype");
  if (!dtype) dtype = fields.OptionalText("dtype");
  HR_RETURN_IF_ERROR(fields.status());

  if (!head_dim && *model_type == "qwen3") head_dim = 128;
  if (!head_dim && config.heads >= 1) {
    if (config.hidden % config.heads != 0) {
      return Error(ErrorCode::kShapeMismatch,
                   absl::StrCat(path, ": ", config.heads, " heads do not divide hidden_size ", config.hidden,
                                ": state head_dim"));
    }
    head_dim = config.hidden / config.heads;
  }
  config.head_dim = head_dim.value_or(0);
  if (dtype) {
    HR_ASSIGN_OR_RETURN(config.dtype, TorchDtype(*dtype, path));
  } else if (const CheckpointTensor* embedding = checkpoint.Find(kEmbedding)) {
    config.dtype = embedding->spec.dtype;
  } else {
    return Error(ErrorCode::kUncovered, absl::StrCat(checkpoint.dir(), ": lacks tensor ", Quoted(kEmbedding)));
  }
  return config;
}

absl::Status CheckTensors(const LlamaConfig& config, const Checkpoint& checkpoint) {
  auto error = [&](ErrorCode code, absl::string_view what) {
    return Error(code, absl::StrCat(checkpoint.dir(), ": ", what));
  };
  auto expected = LlamaTensors(config);
  if (!expected.ok()) {
    return ErrorFromName(CodeOf(expected.status()),
                         absl::StrCat(checkpoint.dir(), "/config.json: ", expected.status().message()));
  }
  for (const TensorSpec& spec : *expected) {
    const CheckpointTensor* tensor = checkpoint.Find(spec.name);
    if (tensor == nullptr) {
      return error(
          ErrorCode::kUncovered,
          absl::StrCat("lacks tensor ", Quoted(spec.name), ", which config.json asks for",
                       spec.name == kHead ? "; if its head is the embedding, set tie_word_embeddings to true" : ""));
    }
    if (tensor->spec.shape != spec.shape) {
      return error(ErrorCode::kShapeMismatch,
                   absl::StrCat("tensor ", Quoted(spec.name), " is [", absl::StrJoin(tensor->spec.shape, ", "),
                                "], by config.json it is [", absl::StrJoin(spec.shape, ", "), "]"));
    }
    if (tensor->spec.dtype != spec.dtype) {
      return error(ErrorCode::kDtypeMismatch,
                   absl::StrCat("tensor ", Quoted(spec.name), " is ", DtypeName(tensor->spec.dtype), ", the model is ",
                                DtypeName(spec.dtype), ": convert the tensor, or correct config.json's dtype"));
    }
  }
  auto before = [](const TensorSpec& spec, absl::string_view name) { return spec.name < name; };
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.spec.name;
    const auto place = std::lower_bound(expected->begin(), expected->end(), name, before);
    if (place != expected->end() && place->name == name) continue;
    if (name == kHead) {
      return error(ErrorCode::kUnwanted,
                   absl::StrCat("holds ", Quoted(kHead),
                                ", but config.json ties the head to the embedding: remove the "
                                "tensor if it is the embedding again, or set tie_word_embeddings to false"));
    }
    return error(ErrorCode::kUnwanted, absl::StrCat("tensor ", Quoted(name),
                                                    " is none of the model that config.json "
                                                    "describes: remove it, or correct config.json"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaConfig> ReadLlamaConfig(const Checkpoint& checkpoint) {
  const std::string path = absl::StrCat(checkpoint.dir(), "/config.json");
  HR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const absl::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  HR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, path));
  HR_ASSIGN_OR_RETURN(const LlamaConfig config, ReadConfig(json, path, checkpoint));
  HR_RETURN_IF_ERROR(CheckTensors(config, checkpoint));
  return config;
}

}  // namespace headrace
