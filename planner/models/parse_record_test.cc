#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/models/expect_sound.h"
#include "planner/models/records.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr char kRecords[] =
#include "planner/models/records_json.inc"
    ;

// A record with the numbers that "same_arch" would bring.
Json RecordOf(const std::string& name) {
  const Json records = Json::parse(kRecords)["models"];
  Json record = records[name];
  if (record.contains("same_arch")) {
    record["arch"] = records[record["same_arch"].get<std::string>()]["arch"];
    record.erase("same_arch");
  }
  return record;
}

TEST(ParseModelRecord, TakesWhatTheProgramHas) {
  for (const std::string& name : ModelNames()) {
    const absl::StatusOr<Model> model = ParseModelRecord("mine", RecordOf(name).dump());
    ASSERT_TRUE(model.ok()) << name << ": " << model.status();
    const Model same = ModelNamed(name).value();
    EXPECT_EQ(model->name, "mine");
    EXPECT_EQ(TensorCount(*model), TensorCount(same)) << name;
    EXPECT_EQ(TensorBytes(*model), TensorBytes(same)) << name;
  }
  const auto scaled =
      ParseModelRecord("mine", R"({"family": "llama", "quant": "fp8_block128", "same_arch": "qwen3-4b"})");
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_GT(TensorCount(*scaled), TensorCount(ModelNamed("qwen3-4b").value()));
}

TEST(ParseModelRecord, NamesTheField) {
  struct Case {
    std::string record, change;  // a merge patch (RFC 7396)
    ErrorCode code;
    std::string field;
  };
  const Case cases[] = {
      {"tiny-qwen3", R"({"family": null})", ErrorCode::kMalformed, ": \"family\" is missing"},
      {"tiny-qwen3", R"({"family": "gpt-2"})", ErrorCode::kInvalidOption,
       ": \"family\" must be one of bamba, deepseek"},
      {"tiny-qwen3", R"({"family": 3})", ErrorCode::kMalformed, ": \"family\" must be text"},
      {"tiny-qwen3", R"({"arch": null})", ErrorCode::kMalformed, ": \"arch\" is missing"},
      {"tiny-qwen3", R"({"arch": [1]})", ErrorCode::kMalformed, ": \"arch\" must be an object"},
      {"tiny-qwen3", R"({"same_arch": "tiny-bamba"})", ErrorCode::kInvalidOption,
       ": \"same_arch\" must not stand beside"},
      {"tiny-qwen3", R"({"arch": null, "same_arch": "nobody"})", ErrorCode::kInvalidOption, "\"nobody\""},
      {"tiny-qwen3", R"({"arch": null, "same_arch": "kimi-k2-fp8"})", ErrorCode::kInvalidOption, "\"kimi-k2-fp8\""},
      {"tiny-qwen3", R"({"arch": null, "same_arch": 7})", ErrorCode::kMalformed, ": \"same_arch\" must be text"},
      {"tiny-qwen3", R"({"parameters": 7})", ErrorCode::kMalformed, ": \"parameters\" is no field"},
      {"tiny-qwen3", R"({"quant": "fp4"})", ErrorCode::kInvalidOption, ": \"quant\" must be fp8_block128"},
      {"tiny-qwen3", R"({"quant": "mxfp4"})", ErrorCode::kInvalidOption, ": \"quant\" must be mxfp4 only in"},
      {"tiny-qwen3", R"({"quant": "mxfp4_experts"})", ErrorCode::kInvalidOption, ": \"quant\" must not"},
      {"tiny-qwen3", R"({"scale_dtype": "F16"})", ErrorCode::kInvalidOption, ": \"scale_dtype\" must be F32"},
      {"tiny-gpt-oss-bf16", R"({"quant": "fp8_block128"})", ErrorCode::kInvalidOption, ": \"quant\" must be mxfp4"},
      {"tiny-gpt-oss-bf16", R"({"quant": "mxfp4"})", ErrorCode::kInvalidOption,
       "\"arch.moe_inter\" must be a multiple"},
      {"tiny-kimi-k3", R"({"quant": "mxfp4_experts"})", ErrorCode::kInvalidOption,
       "\"arch.moe_inter\" must be a multiple"},
      {"tiny-qwen3.5", R"({"quant": "mxfp4_experts", "arch": {"moe_inter": 64}})", ErrorCode::kInvalidOption,
       ": \"quant\""},
      {"tiny-qwen3", R"({"arch": {"heads": null}})", ErrorCode::kMalformed, "\"arch.heads\" is missing"},
      {"tiny-qwen3", R"({"arch": {"heads": "8"}})", ErrorCode::kMalformed, "\"arch.heads\" must be a whole number"},
      {"tiny-qwen3", R"({"arch": {"heads": 8.0}})", ErrorCode::kMalformed, "\"arch.heads\" must be a whole number"},
      {"tiny-qwen3", R"({"arch": {"heads": 0}})", ErrorCode::kOutOfBounds, "\"arch.heads\" is 0"},
      {"tiny-qwen3", R"({"arch": {"heads": -8}})", ErrorCode::kOutOfBounds, "\"arch.heads\" is -8"},
      {"tiny-qwen3", R"({"arch": {"heads": 18446744073709551615}})", ErrorCode::kOutOfBounds, "\"arch.heads\" is 1844"},
      {"tiny-qwen3", R"({"arch": {"heads": 7}})", ErrorCode::kInvalidOption, "\"arch.heads\" must be a multiple of kv"},
      {"tiny-qwen3", R"({"arch": {"layers": 4097}})", ErrorCode::kOutOfBounds, "\"arch.layers\" is 4097"},
      {"tiny-qwen3", R"({"arch": {"tied": 1}})", ErrorCode::kMalformed, "\"arch.tied\" must be true or false"},
      {"tiny-qwen3", R"({"arch": {"experts": 4}})", ErrorCode::kMalformed, "\"arch.experts\" is no field"},
      {"tiny-bamba", R"({"arch": {"attn_layers": 2}})", ErrorCode::kMalformed, "\"arch.attn_layers\" must be a list"},
      {"tiny-bamba", R"({"arch": {"attn_layers": [2, 2]}})", ErrorCode::kOutOfBounds, "\"arch.attn_layers[1]\" is 2"},
      {"tiny-bamba", R"({"arch": {"attn_layers": [5]}})", ErrorCode::kOutOfBounds, "\"arch.attn_layers[0]\" is 5"},
      {"tiny-bamba", R"({"arch": {"attn_layers": [4, 5]}})", ErrorCode::kOutOfBounds, "\"arch.attn_layers[1]\""},
      {"tiny-nemotron-h", R"({"arch": {"pattern": "MX"}})", ErrorCode::kInvalidOption, "\"arch.pattern\" must be"},
      {"tiny-nemotron-h", R"({"arch": {"pattern": ""}})", ErrorCode::kInvalidOption, "\"arch.pattern\" must have"},
      {"tiny-nemotron-h", R"({"arch": {"n_groups": 5}})", ErrorCode::kInvalidOption, "\"arch.m_heads\" must be a"},
      {"tiny-qwen3.5", R"({"arch": {"vision": 3}})", ErrorCode::kMalformed, "\"arch.vision\" must be an object"},
      {"tiny-qwen3.5", R"({"arch": {"vision": {"pos": null}}})", ErrorCode::kMalformed,
       "\"arch.vision.pos\" is missing"},
      {"tiny-qwen3.5", R"({"arch": {"vision": {"heads": 4}}})", ErrorCode::kMalformed,
       "\"arch.vision.heads\" is no field"},
      {"tiny-qwen3.5", R"({"arch": {"mtp_experts": "x"}})", ErrorCode::kInvalidOption, "\"arch.mtp_experts\" must be"},
      {"tiny-qwen3.5", R"({"arch": {"prefix": "{layer}."}})", ErrorCode::kInvalidOption, "\"arch.prefix\" must"},
      {"tiny-qwen3.5", R"({"arch": {"gdn_k_heads": 3}})", ErrorCode::kInvalidOption, "\"arch.gdn_v_heads\" must be a"},
      {"tiny-deepseek-bf16", R"({"arch": {"dense_layers": 6}})", ErrorCode::kInvalidOption, "\"arch.dense_layers\""},
      {"tiny-deepseek-bf16", R"({"arch": {"mtp": 65}})", ErrorCode::kOutOfBounds, "\"arch.mtp\" is 65"},
      {"tiny-qwen3-moe", R"({"arch": {"experts": 1048576, "moe_inter": 1048576, "hidden": 1048576}})",
       ErrorCode::kOutOfBounds, "\"mine\""},
  };
  for (const Case& c : cases) {
    Json record = RecordOf(c.record);
    record.merge_patch(Json::parse(c.change));
    const absl::Status status = ParseModelRecord("mine", record.dump()).status();
    EXPECT_TRUE(HasCode(status, c.code)) << c.record << c.change << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(c.field)) << c.record << c.change;
    EXPECT_THAT(status.message(), HasSubstr("model \"mine\"")) << c.record << c.change;
  }
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"),
        std::string("{\"family\": \"llama\"}\0", 21), std::string(R"({"family": "llama", "family": "bamba"})"),
        std::string("{\"\xff\": 1}"), std::string(100000, '[')}) {
    EXPECT_TRUE(HasCode(ParseModelRecord("mine", text).status(), ErrorCode::kMalformed)) << text.substr(0, 50);
  }
}

// Each value of each record, replaced and removed: refused by type, or a model that is sound.
TEST(ParseModelRecord, DamagedFields) {
  const Json values = Json::parse(R"([null, true, -1, 0, 1, 3, 1048576, 1048577, 9223372036854775807, 1e300, "M", "",
                                      [], [0], {}])");
  int taken = 0, refused = 0;
  const auto parse = [&](const Json& record) {
    const absl::StatusOr<Model> model = ParseModelRecord("mine", record.dump());
    if (model.ok()) {
      ++taken;
      return ExpectSound(*model, false);
    }
    ++refused;
    const absl::Status& s = model.status();
    EXPECT_TRUE(HasCode(s, ErrorCode::kMalformed) || HasCode(s, ErrorCode::kOutOfBounds) ||
                HasCode(s, ErrorCode::kInvalidOption))
        << s;
  };
  for (const std::string& name : ModelNames()) {
    if (!absl::StartsWith(name, "tiny")) continue;
    const Json record = RecordOf(name);
    const Json flat = record.flatten();
    for (const auto& [path, old] : flat.items()) {
      const Json::json_pointer at(path);
      for (const Json& value : values) {
        Json changed = record;
        changed[at] = value;
        parse(changed);
      }
      Json changed = record;
      Json& parent = changed[at.parent_pointer()];
      if (!parent.is_object()) continue;
      parent.erase(at.back());
      parse(changed);
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 1000);
}

TEST(ParseModelRecord, DamagedText) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const std::vector<std::string> names = ModelNames();
  for (int i = 0; i < 2000; ++i) {
    std::string text = RecordOf(names[random() % names.size()]).dump();
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 9);
          break;
        default:
          text.insert(at, 1, "0123456789{}[]\",:-.eE"[random() % 21]);
      }
      if (text.empty()) break;
    }
    const absl::StatusOr<Model> model = ParseModelRecord("mine", text);
    if (model.ok()) ExpectSound(*model, false);
  }
}

}  // namespace
}  // namespace headrace
