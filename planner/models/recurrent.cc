#include "planner/models/recurrent.h"

namespace headrace {

Mamba2 ReadMamba2(Arch& a) {
  const Mamba2 mamba = {.hidden = a.Number("hidden"),
                        .heads = a.Number("m_heads"),
                        .head_dim = a.Number("m_head_dim"),
                        .groups = a.Number("n_groups"),
                        .state = a.Number("d_state"),
                        .conv = a.Number("conv")};
  a.Require(mamba.heads % mamba.groups == 0, "m_heads", "be a multiple of n_groups");
  return mamba;
}

void AddMamba2(UnitBuilder& u, const std::string& pre, const Mamba2& m) {
  const RowPart inner = {m.heads, m.head_dim}, group = {m.groups, m.state}, each = {m.heads, 1};
  const Index channels = m.heads * m.head_dim + 2 * m.groups * m.state;
  u.Rows(pre + "in_proj.weight", {inner, inner, group, group, each}, m.hidden);  // z x B C dt
  u.Cut(pre + "conv1d.weight", {channels, 1, m.conv}, 0, {inner, group, group});
  u.Cut(pre + "conv1d.bias", {channels}, 0, {inner, group, group});
  for (const char* name : {"dt_bias", "A_log", "D"}) u.Cut(pre + name, {m.heads}, 0, {each});
  u.Cut(pre + "norm.weight", {m.heads * m.head_dim}, 0, {inner});
  u.Columns(pre + "out_proj.weight", m.hidden, inner);
}

GatedDelta ReadGatedDelta(Arch& a) {
  const GatedDelta delta = {.hidden = a.Number("hidden"),
                            .k_heads = a.Number("gdn_k_heads"),
                            .k_dim = a.Number("gdn_k_dim"),
                            .v_heads = a.Number("gdn_v_heads"),
                            .v_dim = a.Number("gdn_v_dim"),
                            .conv = a.Number("conv")};
  a.Require(delta.v_heads % delta.k_heads == 0, "gdn_v_heads", "be a multiple of gdn_k_heads");
  return delta;
}

void AddGatedDelta(UnitBuilder& u, const std::string& pre, const GatedDelta& d) {
  const RowPart k = {d.k_heads, d.k_dim}, v = {d.v_heads, d.v_dim}, each = {d.v_heads, 1};
  // Megatron has one in_proj of q k v z b a.
  if (d.by_groups) {
    const int qkvz = u.Rows(pre + "in_proj_qkvz.weight", {k, k, v, v}, d.hidden);
    const int ba = u.Rows(pre + "in_proj_ba.weight", {each, each}, d.hidden);
    u.tensor(qkvz).groups = u.tensor(ba).groups = d.k_heads;
    u.FuseTrainer(pre + "in_proj.weight", {qkvz, ba});
  } else {
    const int qkv = u.Rows(pre + "in_proj_qkv.weight", {k, k, v}, d.hidden);
    const int z = u.Rows(pre + "in_proj_z.weight", {v}, d.hidden);
    const int b = u.Rows(pre + "in_proj_b.weight", {each}, d.hidden);
    const int a = u.Rows(pre + "in_proj_a.weight", {each}, d.hidden);
    u.FuseEngine(pre + "in_proj_qkvz.weight", {qkv, z});
    u.FuseEngine(pre + "in_proj_ba.weight", {b, a});
    u.FuseTrainer(pre + "in_proj.weight", {qkv, z, b, a});
  }
  u.Cut(pre + "conv1d.weight", {2 * d.k_heads * d.k_dim + d.v_heads * d.v_dim, 1, d.conv}, 0, {k, k, v});
  u.Cut(pre + "dt_bias", {d.v_heads}, 0, {each});
  u.Cut(pre + "A_log", {d.v_heads}, 0, {each}, d.state_dtype);
  u.Whole(pre + "norm.weight", {d.v_dim}, d.state_dtype);
  u.Columns(pre + "out_proj.weight", d.hidden, v);
}

KimiDelta ReadKimiDelta(Arch& a) {
  return {.hidden = a.Number("hidden"),
          .heads = a.Number("kda_heads"),
          .dim = a.Number("kda_dim"),
          .conv = a.Number("conv")};
}

void AddKimiDelta(UnitBuilder& u, const std::string& pre, const KimiDelta& d) {
  const RowPart heads = {d.heads, d.dim};
  const Index inner = d.heads * d.dim;
  std::vector<int> in, conv;
  for (const char* name : {"q", "k", "v"}) in.push_back(u.Rows(pre + name + "_proj.weight", {heads}, d.hidden));
  for (const char* name : {"q", "k", "v"}) {
    conv.push_back(u.Cut(pre + name + "_conv1d.weight", {inner, 1, d.conv}, 0, {heads}, Dtype::kF32));
  }
  in.push_back(u.Rows(pre + "g_proj.weight", {heads}, d.hidden));
  in.push_back(u.WholeLinear(pre + "f_a_proj.weight", d.dim, d.hidden));
  in.push_back(u.Rows(pre + "b_proj.weight", {{d.heads, 1}}, d.hidden));
  u.FuseEngine(pre + "in_proj_qkvgfab.weight", in);
  u.FuseEngine(pre + "conv1d.weight", conv);
  u.Rows(pre + "f_b_proj.weight", {heads}, d.dim);
  u.Cut(pre + "dt_bias", {inner}, 0, {heads}, Dtype::kF32);
  u.Whole(pre + "A_log", {d.dim}, Dtype::kF32);  // stored by the channels of a head
  u.Whole(pre + "o_norm.weight", {d.dim}, Dtype::kF32);
  u.Columns(pre + "o_proj.weight", d.hidden, heads);
}

}  // namespace headrace
