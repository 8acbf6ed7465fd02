#include "planner/models/records.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/models/expect_sound.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(Records, RecurrentLayersAreCutByHeads) {
  const Model nemotron = ModelNamed("nemotron-nano-9b-v2").value();
  const ModelUnit& mamba = UnitNamed(nemotron, "mamba");
  EXPECT_EQ(Parts(TensorNamed(mamba, "in_proj.weight")), "{128, 80}{128, 80}{8, 128}{8, 128}{128, 1}");
  EXPECT_EQ(Parts(TensorNamed(mamba, "conv1d.weight")), "{128, 80}{8, 128}{8, 128}");
  EXPECT_EQ(Parts(TensorNamed(mamba, "norm.weight")), "");  // the layer's
  EXPECT_EQ(Parts(TensorNamed(mamba, "mixer.norm.weight")), "{128, 80}");
  EXPECT_THAT(UnitNamed(nemotron, "attention").layers, ElementsAre(14, 21, 30, 39));

  const Model qwen = ModelNamed("tiny-qwen3.5").value();
  const ModelUnit& delta = UnitNamed(qwen, "gated_delta");
  EXPECT_EQ(Parts(TensorNamed(delta, "in_proj_qkv.weight")), "{2, 32}{2, 32}{8, 32}");
  EXPECT_EQ(Parts(TensorNamed(delta, "conv1d.weight")), "{2, 32}{2, 32}{8, 32}");
  const std::string pre = "model.language_model.layers.{layer}.linear_attn.in_proj";
  EXPECT_EQ(Fused(delta, delta.engine), absl::StrCat(pre, "_qkvz.weight: ", pre, "_qkv.weight ", pre, "_z.weight\n",  //
                                                     pre, "_ba.weight: ", pre, "_b.weight ", pre, "_a.weight\n"));
  EXPECT_EQ(Fused(delta, delta.trainer), absl::StrCat(pre, ".weight: ", pre, "_qkv.weight ", pre, "_z.weight ", pre,
                                                      "_b.weight ", pre, "_a.weight\n"));
  EXPECT_THAT(UnitNamed(qwen, "attention").layers, ElementsAre(3));
  EXPECT_EQ(UnitNamed(qwen, "vision").place, UnitPlace::kFirst);
  EXPECT_FALSE(UnitNamed(qwen, "draft0.expert").stacked);
  EXPECT_TRUE(UnitNamed(qwen, "expert").stacked);
}

TEST(Records, KimiDeltaAttention) {
  const Model model = ModelNamed("kimi-k3-bf16").value();
  EXPECT_EQ(TensorCount(model), 249756);
  const ModelUnit& kda = UnitNamed(model, "kda");
  EXPECT_EQ(kda.layers.size(), 69u);
  const std::string pre = "language_model.model.layers.{layer}.self_attn.";
  EXPECT_EQ(
      Fused(kda, kda.engine),
      absl::StrCat(pre, "in_proj_qkvgfab.weight: ", pre, "q_proj.weight ", pre, "k_proj.weight ", pre, "v_proj.weight ",
                   pre, "g_proj.weight ", pre, "f_a_proj.weight ", pre, "b_proj.weight\n",  //
                   pre, "conv1d.weight: ", pre, "q_conv1d.weight ", pre, "k_conv1d.weight ", pre, "v_conv1d.weight\n"));
  EXPECT_EQ(TensorNamed(kda, "f_a_proj.weight").cut_axis, -1);
  EXPECT_EQ(TensorNamed(kda, "A_log").cut_axis, -1);
  EXPECT_EQ(Parts(TensorNamed(kda, "f_b_proj.weight")), "{96, 128}");
  const ModelUnit& mla = UnitNamed(model, "mla");
  EXPECT_EQ(mla.layers.back(), 92);
  EXPECT_EQ(mla.layers.front(), 3);
  EXPECT_THAT(Fused(mla, mla.engine), HasSubstr("fused_qkv_a_g_proj.weight"));
  EXPECT_EQ(TensorNamed(UnitNamed(model, "moe"), "routed_expert_up_proj.weight").cut_axis, -1);
}

TEST(Records, SharedBlocksAreInTheLayersThatUseThemFirst) {
  const Model model = ModelNamed("zamba2-7b").value();
  EXPECT_EQ(UnitNamed(model, "embedding").place, UnitPlace::kEnds);
  EXPECT_THAT(UnitNamed(model, "shared_block").layers, ElementsAre(6, 11));
  EXPECT_EQ(UnitNamed(model, "adapters0").tensors.size(), 14u);
  EXPECT_EQ(UnitNamed(model, "adapters1").tensors.size(), 12u);
  EXPECT_EQ(Parts(TensorNamed(UnitNamed(model, "adapters1"), "_list.1.1.weight")), "{14336, 1}{14336, 1}");
}

TEST(Records, UnknownModelsAreNamed) {
  const absl::Status status = ModelNamed("qwen3-4").status();
  EXPECT_TRUE(HasCode(status, ErrorCode::kInvalidOption));
  EXPECT_THAT(status.message(), HasSubstr("\"qwen3-4\""));
  EXPECT_THAT(status.message(), HasSubstr("qwen3-4b"));
}

}  // namespace
}  // namespace headrace
