#ifndef HEADRACE_PLANNER_MODELS_RECURRENT_H_
#define HEADRACE_PLANNER_MODELS_RECURRENT_H_

// Layers with a recurrent state: Mamba2, gated delta nets (GDN), Kimi delta attention (KDA). `pre` is the module's
// prefix.

#include <string>

#include "planner/models/arch.h"
#include "planner/models/unit_builder.h"

namespace headrace {

struct Mamba2 {
  Index hidden = 0;
  Index heads = 0;
  Index head_dim = 0;
  Index groups = 0;  // of B and C
  Index state = 0;
  Index conv = 0;
};

// Fields hidden, m_heads, m_head_dim, n_groups, d_state, conv.
Mamba2 ReadMamba2(Arch& a);
void AddMamba2(UnitBuilder& u, const std::string& pre, const Mamba2& mamba);

struct GatedDelta {
  Index hidden = 0;
  Index k_heads = 0;
  Index k_dim = 0;
  Index v_heads = 0;
  Index v_dim = 0;
  Index conv = 0;
  bool by_groups = false;  // in_proj_qkvz and in_proj_ba, key head by key head; else qkv, z, b, a
  Dtype state_dtype = Dtype::kBF16;
};

// Fields hidden, gdn_k_heads, gdn_k_dim, gdn_v_heads, gdn_v_dim, conv.
GatedDelta ReadGatedDelta(Arch& a);
void AddGatedDelta(UnitBuilder& u, const std::string& pre, const GatedDelta& delta);

struct KimiDelta {
  Index hidden = 0;
  Index heads = 0;
  Index dim = 0;
  Index conv = 0;
};

// Fields hidden, kda_heads, kda_dim, conv.
KimiDelta ReadKimiDelta(Arch& a);
void AddKimiDelta(UnitBuilder& u, const std::string& pre, const KimiDelta& delta);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_MODELS_RECURRENT_H_
