#ifndef HEADRACE_PLANNER_MODELS_ATTENTION_H_
#define HEADRACE_PLANNER_MODELS_ATTENTION_H_

// Softmax attention: grouped-query, and multi-head latent (MLA). `pre` is the module's prefix, "...self_attn.".

#include <string>

#include "planner/models/arch.h"
#include "planner/models/unit_builder.h"

namespace headrace {

struct Attention {
  Index in = 0;   // of q, k, v
  Index out = 0;  // of o
  Index heads = 0;
  Index kv_heads = 0;
  Index head_dim = 0;
  bool qk_norm = false;
  bool gate = false;  // q_proj has, head by head, a query and an output gate
  bool bias = false;
  bool sinks = false;  // a logit for each head
};

// Fields hidden, heads, kv_heads, head_dim, qk_norm.
Attention ReadAttention(Arch& a);
void AddAttention(UnitBuilder& u, const std::string& pre, const Attention& attention);

struct LatentAttention {
  Index hidden = 0;
  Index heads = 0;
  Index q_lora = 0;
  Index kv_lora = 0;
  Index nope = 0;
  Index rope = 0;
  Index v_dim = 0;
  bool gate = false;  // g_proj, a gate for each of o_proj's inputs
};

// Fields hidden, heads, q_lora, kv_lora, nope, rope, v_dim.
LatentAttention ReadLatentAttention(Arch& a);
void AddLatentAttention(UnitBuilder& u, const std::string& pre, const LatentAttention& mla);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_ATTENTION_H_
