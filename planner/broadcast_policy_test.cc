#include "planner/broadcast_policy.h"

#include "gtest/gtest.h"

namespace headrace {
namespace {

TEST(BroadcastPolicy, QkvInItsManyNames) {
  EXPECT_EQ(BroadcastKind("model.layers.0.self_attn.q_proj.weight"), "QKV (q_proj)");
  EXPECT_EQ(BroadcastKind("model.layers.11.self_attn.k_proj.bias"), "QKV (k_proj)");
  EXPECT_EQ(BroadcastKind("v_proj"), "QKV (v_proj)");
  EXPECT_EQ(BroadcastKind("decoder.layers.3.self_attention.linear_qkv.weight"), "QKV (linear_qkv)");
  EXPECT_EQ(BroadcastKind("transformer.h.0.attn.c_attn.weight"), "QKV (c_attn)");
  EXPECT_EQ(BroadcastKind("model.layers.0.self_attn.kv_a_proj_with_mqa.weight"), "QKV (kv_a_proj_with_mqa)");
  EXPECT_EQ(BroadcastKind("model.layers.0.self_attn.q_b_proj.weight_scale_inv"), "QKV (q_b_proj)");
}

TEST(BroadcastPolicy, MambaAndGatedDelta) {
  for (const char* word : {"A_log", "D", "dt_bias", "conv1d.weight", "in_proj.weight"}) {
    EXPECT_NE(BroadcastKind(std::string("backbone.layers.2.mixer.") + word), "") << word;
  }
  EXPECT_EQ(BroadcastKind("backbone.layers.2.mixer.in_proj.weight"), "Mamba (mixer.in_proj)");
  EXPECT_EQ(BroadcastKind("model.layers.1.linear_attn.in_proj_qkvz.weight"), "Mamba (linear_attn.in_proj_qkvz)");
  EXPECT_EQ(BroadcastKind("model.layers.1.linear_attn.in_proj_qkv.weight"), "Mamba (linear_attn.in_proj_qkv)");
  // Attention layers of hybrid models are called mixers, too.
  EXPECT_EQ(BroadcastKind("backbone.layers.5.mixer.q_proj.weight"), "QKV (q_proj)");
}

TEST(BroadcastPolicy, TheRestIsResharded) {
  for (const char* name :
       {"", ".", "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.experts.3.up_proj.weight",
        "model.layers.0.mlp.experts.down_proj", "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.self_attn.q_norm.weight", "backbone.layers.2.mixer.out_proj.weight",
        "backbone.layers.2.mixer.norm.weight",
        // no component, only letters in one; no Mamba layer around it
        "my_q_proj_like.weight", "D", "model.in_proj.weight", "vision.conv1d.weight", "model.D.mixer"}) {
    EXPECT_EQ(BroadcastKind(name), "") << name;
  }
}

}  // namespace
}  // namespace headrace
