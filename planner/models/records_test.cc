#include "planner/models/records.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/row_parts.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
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

const Extents& ViewOf(const UnitTensor& tensor) { return tensor.view.empty() ? tensor.shape : tensor.view; }

Index Elements(const Extents& shape) {
  return std::accumulate(shape.begin(), shape.end(), Index{1}, std::multiplies());
}

void ExpectSoundTensor(const ModelUnit& unit, const UnitTensor& tensor) {
  SCOPED_TRACE(tensor.name);
  EXPECT_EQ(absl::StrContains(tensor.name, "{layer}"), unit.place == UnitPlace::kLayers);
  EXPECT_EQ(absl::StrContains(tensor.name, "{expert}"), unit.experts > 0 && !unit.stacked);
  EXPECT_EQ(Elements(ViewOf(tensor)), Elements(tensor.shape));
  for (const Index extent : ViewOf(tensor)) EXPECT_GE(extent, 1);
  if (tensor.cut_axis < 0) {
    EXPECT_TRUE(tensor.parts.empty());
    EXPECT_EQ(tensor.groups, 0);
    EXPECT_FALSE(tensor.vocabulary);
  } else {
    ASSERT_LT(tensor.cut_axis, static_cast<int>(ViewOf(tensor).size()));
    const absl::StatusOr<Index> rows = TotalRows(tensor.parts);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(*rows, ViewOf(tensor)[tensor.cut_axis]);
  }
  for (const RowPart& part : tensor.parts) {
    if (tensor.groups > 0) {
      EXPECT_EQ(part.units % tensor.groups, 0);
    }
  }
  if (tensor.scale_of < 0) {
    EXPECT_TRUE(tensor.block.empty());
    return;
  }
  ASSERT_LT(tensor.scale_of, static_cast<int>(unit.tensors.size()));
  const UnitTensor& weight = unit.tensors[tensor.scale_of];
  EXPECT_LT(weight.scale_of, 0);
  EXPECT_EQ(tensor.cut_axis, -1);
  ASSERT_EQ(tensor.block.size(), ViewOf(weight).size());
  ASSERT_EQ(tensor.block.size(), ViewOf(tensor).size());
  for (size_t a = 0; a < tensor.block.size(); ++a) {
    EXPECT_EQ(ViewOf(tensor)[a], (ViewOf(weight)[a] + tensor.block[a] - 1) / tensor.block[a]) << "axis " << a;
  }
}

void ExpectSoundBuffers(const ModelUnit& unit, const std::vector<FusedBuffer>& buffers) {
  std::set<int> used;
  std::set<std::string> names;
  for (const FusedBuffer& buffer : buffers) {
    SCOPED_TRACE(buffer.name);
    EXPECT_TRUE(names.insert(buffer.name).second);
    ASSERT_FALSE(buffer.tensors.empty());
    for (const int t : buffer.tensors) {
      ASSERT_GE(t, 0);
      ASSERT_LT(t, static_cast<int>(unit.tensors.size()));
      EXPECT_TRUE(used.insert(t).second) << unit.tensors[t].name << " is in two buffers";
      const UnitTensor& tensor = unit.tensors[t];
      const UnitTensor& first = unit.tensors[buffer.tensors[0]];
      EXPECT_LT(tensor.scale_of, 0) << "scales follow their weights";
      EXPECT_EQ(tensor.dtype, first.dtype);
      ASSERT_EQ(ViewOf(tensor).size(), ViewOf(first).size());
      for (int a = 0; a < static_cast<int>(ViewOf(first).size()); ++a) {
        if (a != buffer.axis) {
          EXPECT_EQ(ViewOf(tensor)[a], ViewOf(first)[a]);
        }
      }
      if (buffer.tensors.size() > 1) {
        EXPECT_TRUE(tensor.cut_axis < 0 || tensor.cut_axis == buffer.axis);
      }
      for (const RowPart& part : tensor.parts) {
        if (buffer.groups > 0) {
          EXPECT_EQ(part.units % buffer.groups, 0) << tensor.name;
        }
      }
    }
  }
}

// Only small models are looked at name by name.
void ExpectSound(const Model& model, bool small) {
  SCOPED_TRACE(model.name);
  std::set<std::string> units, names;
  std::set<Index> layers;
  for (const ModelUnit& unit : model.units) {
    SCOPED_TRACE(unit.name);
    EXPECT_TRUE(units.insert(unit.name).second) << "two units of one name";
    EXPECT_FALSE(unit.tensors.empty());
    EXPECT_EQ(unit.place == UnitPlace::kLayers, !unit.layers.empty());
    if (unit.draft) {
      EXPECT_EQ(unit.place, UnitPlace::kLast);
    }
    if (unit.stacked) {
      EXPECT_GT(unit.experts, 0);
    }
    for (const Index layer : unit.layers) {
      EXPECT_GE(layer, 0);
      EXPECT_LT(layer, model.layers);
    }
    EXPECT_TRUE(std::is_sorted(unit.layers.begin(), unit.layers.end(), std::less_equal())) << "not ascending";
    layers.insert(unit.layers.begin(), unit.layers.end());
    for (const UnitTensor& tensor : unit.tensors) ExpectSoundTensor(unit, tensor);
    ExpectSoundBuffers(unit, unit.engine);
    ExpectSoundBuffers(unit, unit.trainer);
    if (!small) continue;
    const std::vector<Index> instances = unit.layers.empty() ? std::vector<Index>{-1} : unit.layers;
    for (const Index layer : instances) {
      for (Index e = 0; e < (unit.stacked ? 1 : std::max<Index>(unit.experts, 1)); ++e) {
        for (const UnitTensor& tensor : unit.tensors) {
          EXPECT_TRUE(names.insert(InstanceName(tensor.name, layer, e)).second) << tensor.name;
        }
      }
    }
  }
  EXPECT_EQ(static_cast<Index>(layers.size()), model.layers);
  if (small) {
    EXPECT_EQ(static_cast<Index>(names.size()), TensorCount(model));
  }
}

const ModelUnit& UnitNamed(const Model& model, const std::string& name) {
  for (const ModelUnit& unit : model.units) {
    if (unit.name == name) return unit;
  }
  ADD_FAILURE() << model.name << " has no unit " << name;
  return model.units[0];
}

const UnitTensor& TensorNamed(const ModelUnit& unit, const std::string& end) {
  for (const UnitTensor& tensor : unit.tensors) {
    if (absl::EndsWith(tensor.name, end)) return tensor;
  }
  ADD_FAILURE() << unit.name << " has no tensor " << end;
  return unit.tensors[0];
}

std::string Parts(const UnitTensor& tensor) {
  std::string text;
  for (const RowPart& part : tensor.parts) absl::StrAppend(&text, "{", part.units, ", ", part.rows, "}");
  return text;
}

std::string Fused(const ModelUnit& unit, const std::vector<FusedBuffer>& buffers) {
  std::string text;
  for (const FusedBuffer& buffer : buffers) {
    absl::StrAppend(&text, buffer.name, buffer.groups > 0 ? absl::StrCat(" by ", buffer.groups) : "", ":");
    for (const int t : buffer.tensors) absl::StrAppend(&text, " ", unit.tensors[t].name);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

TEST(Records, AllModelsAreSound) {
  ASSERT_GT(ModelNames().size(), 30u);
  const std::vector<std::string> names = ModelNames();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : ModelNames()) {
    const absl::StatusOr<Model> model = ModelNamed(name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->name, name);
    EXPECT_LE(model->units.size(), 12u) << name;
    ExpectSound(*model, absl::StartsWith(name, "tiny"));
  }
}

TEST(Records, DeepSeek) {
  const Model model = ModelNamed("deepseek-v3-bf16").value();
  std::vector<std::string> names;
  Index main = 0;
  for (const ModelUnit& unit : model.units) {
    names.push_back(unit.name);
    if (!unit.draft) main += TensorCount(unit);
  }
  EXPECT_THAT(names, ElementsAre("embedding", "head", "mla", "mlp", "moe", "expert", "draft0.ends", "draft0.mla",
                                 "draft0.moe", "draft0.expert"));
  EXPECT_EQ(main, 45395);
  const ModelUnit& expert = UnitNamed(model, "expert");
  EXPECT_EQ(expert.experts, 256);
  EXPECT_EQ(expert.layers.size(), 58u);
  EXPECT_EQ(expert.layers.front(), 3);
  EXPECT_EQ(Parts(TensorNamed(expert, "down_proj.weight")), "{2048, 1}");
  EXPECT_EQ(TensorNamed(expert, "down_proj.weight").cut_axis, 1);
  const ModelUnit& mla = UnitNamed(model, "mla");
  EXPECT_EQ(Fused(mla, mla.engine),
            "model.layers.{layer}.self_attn.fused_qkv_a_proj.weight: model.layers.{layer}.self_attn.q_a_proj.weight "
            "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight\n");
  EXPECT_EQ(Fused(mla, mla.trainer), "");
  EXPECT_EQ(Parts(TensorNamed(mla, ".q_b_proj.weight")), "{128, 192}");
  EXPECT_EQ(Parts(TensorNamed(mla, ".kv_b_proj.weight")), "{128, 256}");
  EXPECT_EQ(TensorNamed(mla, ".q_a_proj.weight").cut_axis, -1);
  EXPECT_EQ(TensorNamed(UnitNamed(model, "draft0.mla"), ".o_proj.weight").name,
            "model.layers.61.self_attn.o_proj.weight");
}

TEST(Records, Fp8BlocksHaveTheirScales) {
  const Model model = ModelNamed("qwen3-30b-a3b-fp8").value();
  const ModelUnit& attention = UnitNamed(model, "attention");
  const UnitTensor& scale = TensorNamed(attention, "o_proj.weight_scale_inv");
  EXPECT_EQ(scale.dtype, Dtype::kBF16);
  EXPECT_EQ(scale.shape, (Extents{16, 32}));
  EXPECT_EQ(scale.block, (Extents{128, 128}));
  EXPECT_EQ(attention.tensors[scale.scale_of].name, "model.layers.{layer}.self_attn.o_proj.weight");
  EXPECT_EQ(attention.tensors[scale.scale_of].dtype, Dtype::kF8E4M3);
  EXPECT_EQ(TensorNamed(attention, "q_norm.weight").dtype, Dtype::kBF16);
  EXPECT_EQ(TensorNamed(UnitNamed(ModelNamed("deepseek-v3-fp8").value(), "mla"), "q_a_proj.weight_scale_inv").dtype,
            Dtype::kF32);
}

TEST(Records, PackedExpertsAreCutByScales) {
  const Model model = ModelNamed("kimi-k3-mxfp4").value();
  const ModelUnit& expert = UnitNamed(model, "expert");
  const UnitTensor& gate = TensorNamed(expert, "w1.weight_packed");
  EXPECT_EQ(gate.shape, (Extents{3072, 1792}));
  EXPECT_EQ(gate.cut_axis, 0);
  EXPECT_EQ(Parts(gate), "{96, 32}");
  const UnitTensor& down = TensorNamed(expert, "w2.weight_packed");
  EXPECT_EQ(down.shape, (Extents{3584, 1536}));
  EXPECT_EQ(down.cut_axis, 1);
  EXPECT_EQ(Parts(down), "{96, 16}");
  EXPECT_EQ(TensorNamed(expert, "w2.weight_scale").shape, (Extents{3584, 96}));
  EXPECT_EQ(TensorNamed(expert, "w2.weight_scale").block, (Extents{1, 16}));
}

TEST(Records, AttentionGatesLieHeadByHead) {
  const Model model = ModelNamed("qwen3-next-80b-a3b").value();
  const ModelUnit& attention = UnitNamed(model, "attention");
  const UnitTensor& q = TensorNamed(attention, "q_proj.weight");
  EXPECT_EQ(q.shape, (Extents{8192, 2048}));
  EXPECT_EQ(Parts(q), "{16, 256}{16, 256}");
  EXPECT_EQ(q.groups, 16);
  EXPECT_THAT(Fused(attention, attention.trainer), HasSubstr("linear_qkv.weight by 2:"));
  const ModelUnit& delta = UnitNamed(model, "gated_delta");
  EXPECT_EQ(Parts(TensorNamed(delta, "in_proj_qkvz.weight")), "{16, 128}{16, 128}{32, 128}{32, 128}");
  EXPECT_EQ(TensorNamed(delta, "in_proj_qkvz.weight").groups, 16);
  EXPECT_TRUE(delta.engine.empty());
}

TEST(Records, StackedExperts) {
  const Model model = ModelNamed("gpt-oss-120b-bf16").value();
  const ModelUnit& expert = UnitNamed(model, "expert");
  EXPECT_TRUE(expert.stacked);
  const UnitTensor& in = TensorNamed(expert, "gate_up_proj");
  EXPECT_EQ(in.shape, (Extents{2880, 5760}));
  EXPECT_EQ(in.view, (Extents{2880, 2880, 2}));
  EXPECT_EQ(in.cut_axis, 1);
  EXPECT_EQ(TensorCount(expert), 4 * 36);
  const ModelUnit packed = UnitNamed(ModelNamed("gpt-oss-120b-mxfp4").value(), "expert");
  EXPECT_EQ(TensorNamed(packed, "gate_up_proj_blocks").shape, (Extents{5760, 90, 16}));
  EXPECT_EQ(Parts(TensorNamed(packed, "gate_up_proj_blocks")), "{90, 32}");
  EXPECT_EQ(Parts(TensorNamed(packed, "gate_up_proj_bias")), "{90, 32}");
  EXPECT_EQ(Parts(TensorNamed(packed, "down_proj_blocks")), "{90, 16}");
  const ModelUnit qwen = UnitNamed(ModelNamed("qwen3.5-397b-a17b").value(), "expert");
  EXPECT_EQ(Parts(TensorNamed(qwen, "gate_up_proj")), "{1024, 1}{1024, 1}");
}

TEST(Records, UnknownModelsAreNamed) {
  const absl::Status status = ModelNamed("qwen3-4").status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption));
  EXPECT_THAT(status.message(), HasSubstr("\"qwen3-4\""));
  EXPECT_THAT(status.message(), HasSubstr("qwen3-4b"));
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
      {"tiny-qwen3", R"({"family": null})", ErrorCode::kMalformed, ".family\" is missing"},
      {"tiny-qwen3", R"({"family": "gpt-2"})", ErrorCode::kInvalidOption, ".family\" must be one of bamba, deepseek"},
      {"tiny-qwen3", R"({"family": 3})", ErrorCode::kMalformed, ".family\" must be text"},
      {"tiny-qwen3", R"({"arch": null})", ErrorCode::kMalformed, ".arch\" is missing"},
      {"tiny-qwen3", R"({"arch": [1]})", ErrorCode::kMalformed, ".arch\" must be an object"},
      {"tiny-qwen3", R"({"same_arch": "tiny-bamba"})", ErrorCode::kInvalidOption, ".same_arch\" must not stand beside"},
      {"tiny-qwen3", R"({"arch": null, "same_arch": "nobody"})", ErrorCode::kInvalidOption, "\"nobody\""},
      {"tiny-qwen3", R"({"arch": null, "same_arch": "kimi-k2-fp8"})", ErrorCode::kInvalidOption, "\"kimi-k2-fp8\""},
      {"tiny-qwen3", R"({"arch": null, "same_arch": 7})", ErrorCode::kMalformed, ".same_arch\" must be text"},
      {"tiny-qwen3", R"({"parameters": 7})", ErrorCode::kMalformed, ".parameters\" is no field"},
      {"tiny-qwen3", R"({"quant": "fp4"})", ErrorCode::kInvalidOption, ".quant\" must be fp8_block128"},
      {"tiny-qwen3", R"({"quant": "mxfp4"})", ErrorCode::kInvalidOption, ".quant\" must be mxfp4 only in"},
      {"tiny-qwen3", R"({"quant": "mxfp4_experts"})", ErrorCode::kInvalidOption, ".quant\" must not"},
      {"tiny-qwen3", R"({"scale_dtype": "F16"})", ErrorCode::kInvalidOption, ".scale_dtype\" must be F32"},
      {"tiny-gpt-oss-bf16", R"({"quant": "fp8_block128"})", ErrorCode::kInvalidOption, ".quant\" must be mxfp4"},
      {"tiny-gpt-oss-bf16", R"({"quant": "mxfp4"})", ErrorCode::kInvalidOption, ".moe_inter\" must be a multiple"},
      {"tiny-kimi-k3", R"({"quant": "mxfp4_experts"})", ErrorCode::kInvalidOption, ".moe_inter\" must be a multiple"},
      {"tiny-qwen3.5", R"({"quant": "mxfp4_experts", "arch": {"moe_inter": 64}})", ErrorCode::kInvalidOption,
       ".quant\""},
      {"tiny-qwen3", R"({"arch": {"heads": null}})", ErrorCode::kMalformed, ": arch.heads\" is missing"},
      {"tiny-qwen3", R"({"arch": {"heads": "8"}})", ErrorCode::kMalformed, ": arch.heads\" must be a whole number"},
      {"tiny-qwen3", R"({"arch": {"heads": 8.0}})", ErrorCode::kMalformed, ": arch.heads\" must be a whole number"},
      {"tiny-qwen3", R"({"arch": {"heads": 0}})", ErrorCode::kOutOfBounds, ": arch.heads\" is 0"},
      {"tiny-qwen3", R"({"arch": {"heads": -8}})", ErrorCode::kOutOfBounds, ": arch.heads\" is -8"},
      {"tiny-qwen3", R"({"arch": {"heads": 18446744073709551615}})", ErrorCode::kOutOfBounds, ": arch.heads\" is 1844"},
      {"tiny-qwen3", R"({"arch": {"heads": 7}})", ErrorCode::kInvalidOption, ": arch.heads\" must be a multiple of kv"},
      {"tiny-qwen3", R"({"arch": {"layers": 4097}})", ErrorCode::kOutOfBounds, ": arch.layers\" is 4097"},
      {"tiny-qwen3", R"({"arch": {"tied": 1}})", ErrorCode::kMalformed, ": arch.tied\" must be true or false"},
      {"tiny-qwen3", R"({"arch": {"experts": 4}})", ErrorCode::kMalformed, ": arch.experts\" is no field"},
      {"tiny-bamba", R"({"arch": {"attn_layers": 2}})", ErrorCode::kMalformed, ": arch.attn_layers\" must be a list"},
      {"tiny-bamba", R"({"arch": {"attn_layers": [2, 2]}})", ErrorCode::kOutOfBounds, ": arch.attn_layers[1]\" is 2"},
      {"tiny-bamba", R"({"arch": {"attn_layers": [5]}})", ErrorCode::kOutOfBounds, ": arch.attn_layers[0]\" is 5"},
      {"tiny-bamba", R"({"arch": {"attn_layers": [4, 5]}})", ErrorCode::kOutOfBounds, ": arch.attn_layers[1]\""},
      {"tiny-nemotron-h", R"({"arch": {"pattern": "MX"}})", ErrorCode::kInvalidOption, ": arch.pattern\" must be"},
      {"tiny-nemotron-h", R"({"arch": {"pattern": ""}})", ErrorCode::kInvalidOption, ": arch.pattern\" must have"},
      {"tiny-nemotron-h", R"({"arch": {"n_groups": 5}})", ErrorCode::kInvalidOption, ": arch.m_heads\" must be a"},
      {"tiny-qwen3.5", R"({"arch": {"vision": 3}})", ErrorCode::kMalformed, ": arch.vision\" must be an object"},
      {"tiny-qwen3.5", R"({"arch": {"vision": {"pos": null}}})", ErrorCode::kMalformed, "arch.vision.pos\" is missing"},
      {"tiny-qwen3.5", R"({"arch": {"vision": {"heads": 4}}})", ErrorCode::kMalformed,
       "arch.vision.heads\" is no field"},
      {"tiny-qwen3.5", R"({"arch": {"mtp_experts": "x"}})", ErrorCode::kInvalidOption, ": arch.mtp_experts\" must be"},
      {"tiny-qwen3.5", R"({"arch": {"prefix": "{layer}."}})", ErrorCode::kInvalidOption, ": arch.prefix\" must"},
      {"tiny-qwen3.5", R"({"arch": {"gdn_k_heads": 3}})", ErrorCode::kInvalidOption, ": arch.gdn_v_heads\" must be a"},
      {"tiny-deepseek-bf16", R"({"arch": {"dense_layers": 6}})", ErrorCode::kInvalidOption, ": arch.dense_layers\""},
      {"tiny-deepseek-bf16", R"({"arch": {"mtp": 65}})", ErrorCode::kOutOfBounds, ": arch.mtp\" is 65"},
      {"tiny-qwen3-moe", R"({"arch": {"experts": 1048576, "moe_inter": 1048576, "hidden": 1048576}})",
       ErrorCode::kOutOfBounds, "\"mine\""},
  };
  for (const Case& c : cases) {
    Json record = RecordOf(c.record);
    record.merge_patch(Json::parse(c.change));
    const absl::Status status = ParseModelRecord("mine", record.dump()).status();
    EXPECT_TRUE(HasCode(status, c.code)) << c.record << c.change << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr(c.field)) << c.record << c.change;
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
