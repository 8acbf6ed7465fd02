#include "planner/models/attention.h"

namespace headrace {

Attention ReadAttention(Arch& a) {
  Attention attention = {.in = a.Number("hidden"),
                         .out = a.Number("hidden"),
                         .heads = a.Number("heads"),
                         .kv_heads = a.Number("kv_heads"),
                         .head_dim = a.Number("head_dim"),
                         .qk_norm = a.FlagOr("qk_norm", false)};
  a.Require(attention.heads % attention.kv_heads == 0, "heads", "be a multiple of kv_heads");
  return attention;
}

void AddAttention(UnitBuilder& u, const std::string& pre, const Attention& t) {
  const RowPart heads = {t.heads, t.head_dim}, kv_heads = {t.kv_heads, t.head_dim};
  const Index gates = t.gate ? 2 : 1;
  const int q = u.Rows(pre + "q_proj.weight", std::vector<RowPart>(gates, heads), t.in);
  // Megatron has, for each KV head, its queries and then their gates.
  if (t.gate) u.tensor(q).groups = t.heads;
  const int k = u.Rows(pre + "k_proj.weight", {kv_heads}, t.in);
  const int v = u.Rows(pre + "v_proj.weight", {kv_heads}, t.in);
  u.FuseEngine(pre + "qkv_proj.weight", {q, k, v});
  u.FuseTrainer(pre + "linear_qkv.weight", {q, k, v}, t.kv_heads);
  u.Columns(pre + "o_proj.weight", t.out, heads);
  if (t.bias) {
    const int q_bias = u.Cut(pre + "q_proj.bias", {t.heads * t.head_dim}, 0, {heads});
    const int k_bias = u.Cut(pre + "k_proj.bias", {t.kv_heads * t.head_dim}, 0, {kv_heads});
    const int v_bias = u.Cut(pre + "v_proj.bias", {t.kv_heads * t.head_dim}, 0, {kv_heads});
    u.FuseEngine(pre + "qkv_proj.bias", {q_bias, k_bias, v_bias});
    u.FuseTrainer(pre + "linear_qkv.bias", {q_bias, k_bias, v_bias}, t.kv_heads);
    u.Whole(pre + "o_proj.bias", {t.out});
  }
  if (t.sinks) u.Cut(pre + "sinks", {t.heads}, 0, {{t.heads, 1}});
  if (t.qk_norm) {
    u.Whole(pre + "q_norm.weight", {t.head_dim});
    u.Whole(pre + "k_norm.weight", {t.head_dim});
  }
}

LatentAttention ReadLatentAttention(Arch& a) {
  return {.hidden = a.Number("hidden"),
          .heads = a.Number("heads"),
          .q_lora = a.Number("q_lora"),
          .kv_lora = a.Number("kv_lora"),
          .nope = a.Number("nope"),
          .rope = a.Number("rope"),
          .v_dim = a.Number("v_dim")};
}

void AddLatentAttention(UnitBuilder& u, const std::string& pre, const LatentAttention& t) {
  const RowPart values = {t.heads, t.v_dim};
  const int q_a = u.WholeLinear(pre + "q_a_proj.weight", t.q_lora, t.hidden);
  const int kv_a = u.WholeLinear(pre + "kv_a_proj_with_mqa.weight", t.kv_lora + t.rope, t.hidden);
  u.Whole(pre + "q_a_layernorm.weight", {t.q_lora});
  u.Whole(pre + "kv_a_layernorm.weight", {t.kv_lora});
  u.Rows(pre + "q_b_proj.weight", {{t.heads, t.nope + t.rope}}, t.q_lora);
  u.Rows(pre + "kv_b_proj.weight", {{t.heads, t.nope + t.v_dim}}, t.kv_lora);
  u.Columns(pre + "o_proj.weight", t.hidden, values);
  if (t.gate) {
    const int g = u.Rows(pre + "g_proj.weight", {values}, t.hidden);
    u.FuseEngine(pre + "fused_qkv_a_g_proj.weight", {q_a, kv_a, g});
  } else {
    u.FuseEngine(pre + "fused_qkv_a_proj.weight", {q_a, kv_a});
  }
}

}  // namespace headrace
