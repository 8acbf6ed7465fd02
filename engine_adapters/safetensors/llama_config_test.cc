#include "engine_adapters/safetensors/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "engine_adapters/safetensors/testing.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::NamedTensor;

// A model of 2 layers: hidden 12, 4 heads and 2 KV heads of 4, intermediate 6, vocabulary 10. Each test changes it.
struct Model {
  std::map<std::string, std::string> config = {{"model_type", "\"llama\""},
                                               {"hidden_size", "12"},
                                               {"intermediate_size", "6"},
                                               {"num_hidden_layers", "2"},
                                               {"num_attention_heads", "4"},
                                               {"num_key_value_heads", "2"},
                                               {"head_dim", "4"},
                                               {"vocab_size", "10"},
                                               {"tie_word_embeddings", "true"},
                                               {"torch_dtype", "\"bfloat16\""},
                                               {"rope_theta", "10000.0"}};
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", "BF16", {10, 12}},
                                      {"model.norm.weight", "BF16", {12}}};

  Model() {
    AddToLayers("input_layernorm.weight", {12});
    AddToLayers("self_attn.q_proj.weight", {16, 12});
    AddToLayers("self_attn.k_proj.weight", {8, 12});
    AddToLayers("self_attn.v_proj.weight", {8, 12});
    AddToLayers("self_attn.o_proj.weight", {12, 16});
    AddToLayers("post_attention_layernorm.weight", {12});
    AddToLayers("mlp.gate_proj.weight", {6, 12});
    AddToLayers("mlp.up_proj.weight", {6, 12});
    AddToLayers("mlp.down_proj.weight", {12, 6});
  }

  void AddToLayers(const std::string& name, const std::vector<int64_t>& shape) {
    for (const char* layer : {"0", "1"}) {
      tensors.push_back({std::string("model.layers.") + layer + "." + name, "BF16", shape});
    }
  }
  void AddBiases() {
    AddToLayers("self_attn.q_proj.bias", {16});
    AddToLayers("self_attn.k_proj.bias", {8});
    AddToLayers("self_attn.v_proj.bias", {8});
  }
  NamedTensor& Tensor(const std::string& name) {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  }

  absl::StatusOr<LlamaConfig> Read(const std::string* config_text = nullptr) const {
    const std::string dir = testing::NewDirectory();
    testing::WriteFile(dir + "/model.safetensors", testing::FileOf(tensors));
    std::string text;
    for (const auto& [field, value] : config) text += (text.empty() ? "{\"" : ",\"") + field + "\":" + value;
    testing::WriteFile(dir + "/config.json", config_text != nullptr ? *config_text : text + "}");
    auto checkpoint = Checkpoint::Open(dir);
    if (!checkpoint.ok()) return checkpoint.status();
    return ReadLlamaConfig(**checkpoint);
  }

  // "code: message", or "ok".
  std::string Outcome() const {
    const auto read = Read();
    return read.ok() ? "ok" : std::string(CodeOf(read.status())) + ": " + std::string(read.status().message());
  }
};

TEST(LlamaConfig, ReadsEveryField) {
  const auto config = Model().Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden, 12);
  EXPECT_EQ(config->intermediate, 6);
  EXPECT_EQ(config->layers, 2);
  EXPECT_EQ(config->heads, 4);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->vocab, 10);
  EXPECT_TRUE(config->tied);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_FALSE(config->attention_bias);
  EXPECT_EQ(config->dtype, Dtype::kBF16);
}

TEST(LlamaConfig, TakesDefaults) {
  Model model;
  model.config["hidden_size"] = "16";
  model.config.erase("num_key_value_heads");
  model.config["head_dim"] = "null";
  model.config.erase("tie_word_embeddings");
  model.config.erase("torch_dtype");
  for (NamedTensor& tensor : model.tensors) {
    tensor.dtype = "F32";
    std::replace(tensor.shape.begin(), tensor.shape.end(), 12, 16);
    std::replace(tensor.shape.begin(), tensor.shape.end(), 8, 16);
  }
  model.tensors.push_back({"lm_head.weight", "F32", {10, 16}});
  const auto config = model.Read();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_FALSE(config->tied);
  EXPECT_EQ(config->dtype, Dtype::kF32);
}

TEST(LlamaConfig, KnowsTheFamilies) {
  Model mistral;
  mistral.config["model_type"] = "\"mistral\"";
  EXPECT_EQ(mistral.Outcome(), "ok");

  Model biased;
  biased.config["attention_bias"] = "true";
  EXPECT_THAT(biased.Outcome(), HasSubstr("uncovered: "));
  biased.AddBiases();
  EXPECT_EQ(biased.Outcome(), "ok");
  biased.AddToLayers("self_attn.o_proj.bias", {12});
  EXPECT_THAT(biased.Outcome(), AllOf(HasSubstr("unwanted: "), HasSubstr("\"model.layers.0.self_attn.o_proj.bias\"")));

  Model qwen2;
  qwen2.config["model_type"] = "\"qwen2\"";
  EXPECT_THAT(qwen2.Outcome(), AllOf(HasSubstr("uncovered: "), HasSubstr("\"model.layers.0.self_attn.k_proj.bias\"")));
  qwen2.AddBiases();
  EXPECT_EQ(qwen2.Outcome(), "ok");

  Model qwen3;
  qwen3.config["model_type"] = "\"qwen3\"";
  qwen3.AddToLayers("self_attn.q_norm.weight", {4});
  qwen3.AddToLayers("self_attn.k_norm.weight", {4});
  EXPECT_EQ(qwen3.Outcome(), "ok");
  qwen3.config.erase("head_dim");
  EXPECT_THAT(qwen3.Outcome(), AllOf(HasSubstr("shape_mismatch: "), HasSubstr("is [4], by config.json it is [128]")));
}

TEST(LlamaConfig, RefusesUnknownFamilies) {
  Model model;
  model.config["model_type"] = "\"gpt2\"";
  EXPECT_THAT(model.Outcome(), AllOf(HasSubstr("invalid_option: "), HasSubstr("model_type \"gpt2\""),
                                     HasSubstr("llama, mistral, qwen2, qwen3")));
  model.config.erase("model_type");
  EXPECT_THAT(model.Outcome(), HasSubstr("lacks \"model_type\""));
}

TEST(LlamaConfig, RefusesBadFields) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                            "vocab_size", "num_key_value_heads", "head_dim"}) {
    for (const char* value : {"\"12\"", "1.5", "true", "[]", "18446744073709551615"}) {
      Model model;
      model.config[field] = value;
      EXPECT_THAT(model.Outcome(), AllOf(HasSubstr("io: "), HasSubstr("/config.json: "), HasSubstr(field))) << value;
    }
    for (const char* value : {"-1", "9223372036854775807"}) {
      Model model;
      model.config[field] = value;
      EXPECT_THAT(model.Outcome(), AllOf(HasSubstr("/config.json: "), Not(HasSubstr("internal")))) << field << value;
    }
  }
  for (const char* field :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    Model model;
    model.config.erase(field);
    EXPECT_THAT(model.Outcome(), AllOf(HasSubstr("io: "), HasSubstr("lacks"), HasSubstr(field)));
  }
  Model heads;
  heads.config["num_attention_heads"] = "0";
  heads.config.erase("head_dim");
  EXPECT_THAT(heads.Outcome(), HasSubstr("invalid_option: "));
  Model tied;
  tied.config["tie_word_embeddings"] = "1";
  EXPECT_THAT(tied.Outcome(), AllOf(HasSubstr("io: "), HasSubstr("must be true or false")));
  Model uneven;
  uneven.config["num_attention_heads"] = "5";
  uneven.config.erase("head_dim");
  EXPECT_THAT(uneven.Outcome(), AllOf(HasSubstr("shape_mismatch: "), HasSubstr("state head_dim")));
  Model dtype;
  dtype.config["torch_dtype"] = "\"int8\"";
  EXPECT_THAT(dtype.Outcome(), AllOf(HasSubstr("invalid_option: "), HasSubstr("\"int8\"")));
}

TEST(LlamaConfig, RefusesAConfigThatIsNoJsonObject) {
  const Model model;
  for (const std::string text : {"", "[]", "{", "{\"model_type\":\"llama\",\"model_type\":\"llama\"}"}) {
    const auto config = model.Read(&text);
    EXPECT_EQ(CodeOf(config.status()), "io") << text;
    EXPECT_THAT(config.status().message(), HasSubstr("/config.json: ")) << text;
  }
}

TEST(LlamaConfig, RefusesTensorsThatAreNotTheModels) {
  Model shape;
  shape.Tensor("model.layers.1.mlp.up_proj.weight").shape = {12, 6};
  EXPECT_THAT(
      shape.Outcome(),
      AllOf(HasSubstr("shape_mismatch: "),
            HasSubstr("tensor \"model.layers.1.mlp.up_proj.weight\" is [12, 6], by config.json it is [6, 12]")));
  Model dtype;
  dtype.Tensor("model.norm.weight").dtype = "F32";
  EXPECT_THAT(dtype.Outcome(), AllOf(HasSubstr("dtype_mismatch: "),
                                     HasSubstr("tensor \"model.norm.weight\" is F32, the model is BF16")));
  Model missing;
  missing.Tensor("model.embed_tokens.weight").name = "embed_tokens.weight";
  EXPECT_THAT(missing.Outcome(), AllOf(HasSubstr("uncovered: "), HasSubstr("\"model.embed_tokens.weight\"")));
  missing.config.erase("torch_dtype");
  EXPECT_THAT(missing.Outcome(), AllOf(HasSubstr("uncovered: "), HasSubstr("\"model.embed_tokens.weight\"")));
  Model extra;
  extra.AddToLayers("self_attn.rotary_emb.inv_freq", {2});
  EXPECT_THAT(extra.Outcome(), AllOf(HasSubstr("unwanted: "), HasSubstr("inv_freq\" is none of the model")));
}

TEST(LlamaConfig, SaysWhatToDoWithTheHead) {
  Model tied;
  tied.tensors.push_back({"lm_head.weight", "BF16", {10, 12}});
  EXPECT_THAT(tied.Outcome(), AllOf(HasSubstr("unwanted: "), HasSubstr("set tie_word_embeddings to false")));
  tied.config["tie_word_embeddings"] = "false";
  EXPECT_EQ(tied.Outcome(), "ok");
  Model untied;
  untied.config["tie_word_embeddings"] = "false";
  EXPECT_THAT(untied.Outcome(), AllOf(HasSubstr("uncovered: "), HasSubstr("set tie_word_embeddings to true")));
}

}  // namespace
}  // namespace headrace
