#include "tests/layouts/tiny_model.h"

#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

constexpr char kScale[] = "_scale_inv";

}  // namespace

std::vector<TinyModel> TinyModels() {
  return {
      {.name = "dense",
       .mixers = "aaaaa",
       .mlps = "ddddd",
       .vocab = 50,
       .tied = true,
       .heads = 12,
       .kv_heads = 2,
       .head_dim = 3,
       .inter = 24},
      {.name = "experts",
       .mixers = "aaaa",
       .mlps = "deee",
       .vocab = 37,
       .heads = 8,
       .kv_heads = 4,
       .head_dim = 2,
       .inter = 24,
       .experts = 7,
       .moe_inter = 12},
      {.name = "mla",
       .mixers = "lllll",
       .mlps = "deeee",
       .vocab = 41,
       .heads = 8,
       .q_lora = 6,
       .kv_lora = 4,
       .nope = 3,
       .rope = 2,
       .v_dim = 2,
       .inter = 24,
       .experts = 6,
       .moe_inter = 8},
      {.name = "mamba hybrid",
       .mixers = "mamamm",
       .mlps = "d-de-d",
       .vocab = 45,
       .heads = 4,
       .kv_heads = 1,
       .head_dim = 2,
       .m_heads = 12,
       .m_head_dim = 2,
       .groups = 2,
       .state = 3,
       .inter = 24,
       .experts = 5,
       .moe_inter = 12},
      {.name = "gated delta by groups",
       .mixers = "ddda",
       .mlps = "eeee",
       .vocab = 33,
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 2,
       .k_heads = 4,
       .k_dim = 2,
       .v_heads = 8,
       .d_v_dim = 3,
       .by_groups = true,
       .experts = 6,
       .moe_inter = 8},
      {.name = "gated delta by parts",
       .mixers = "ddda",
       .mlps = "eeee",
       .vocab = 33,
       .heads = 8,
       .kv_heads = 1,
       .head_dim = 2,
       .k_heads = 2,
       .k_dim = 3,
       .v_heads = 8,
       .d_v_dim = 2,
       .experts = 5,
       .moe_inter = 8,
       .stacked = true},
      {.name = "fp8 blocks",
       .mixers = "lala",
       .mlps = "dede",
       .hidden = 10,
       .vocab = 30,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 4,
       .q_lora = 8,
       .kv_lora = 6,
       .nope = 4,
       .rope = 4,
       .v_dim = 4,
       .inter = 20,
       .experts = 4,
       .moe_inter = 12,
       .block = 4},
  };
}

std::string InLayer(Index layer, const std::string& name) { return absl::StrCat("layers.", layer, ".", name); }

Checkpoint::Checkpoint(const TinyModel& m) : model_(m) {
  Add("embed", {m.vocab, m.hidden});
  for (Index n = 0; n < static_cast<Index>(m.mixers.size()); ++n) {
    auto add = [&](const std::string& name, const Extents& shape) { Add(InLayer(n, name), shape); };
    auto linear = [&](const std::string& name, Index out, Index in) { AddLinear(InLayer(n, name), {out, in}); };
    add("input_norm", {m.hidden});
    switch (m.mixers[n]) {
      case 'a':
        linear("q", m.heads * m.head_dim, m.hidden);
        linear("k", m.kv_heads * m.head_dim, m.hidden);
        linear("v", m.kv_heads * m.head_dim, m.hidden);
        linear("o", m.hidden, m.heads * m.head_dim);
        break;
      case 'l':
        linear("q_a", m.q_lora, m.hidden);
        add("q_a_norm", {m.q_lora});
        linear("q_b", m.heads * (m.nope + m.rope), m.q_lora);
        linear("kv_a_with_mqa", m.kv_lora + m.rope, m.hidden);
        add("kv_a_norm", {m.kv_lora});
        linear("kv_b", m.heads * (m.nope + m.v_dim), m.kv_lora);
        linear("o", m.hidden, m.heads * m.v_dim);
        break;
      case 'm': {
        const Index inner = m.m_heads * m.m_head_dim, group = m.groups * m.state;
        linear("in_proj", 2 * inner + 2 * group + m.m_heads, m.hidden);
        add("conv1d", {inner + 2 * group, 1, 4});
        add("conv1d_bias", {inner + 2 * group});
        for (const char* name : {"A_log", "D", "dt_bias"}) Add(InLayer(n, name), {m.m_heads}, Dtype::kF32);
        add("ssm_norm", {inner});
        linear("out_proj", m.hidden, inner);
        break;
      }
      case 'd': {
        const Index k = m.k_heads * m.k_dim, v = m.v_heads * m.d_v_dim;
        if (m.by_groups) {
          linear("in_proj_qkvz", 2 * k + 2 * v, m.hidden);
          linear("in_proj_ba", 2 * m.v_heads, m.hidden);
        } else {
          linear("in_proj_qkv", 2 * k + v, m.hidden);
          linear("in_proj_z", v, m.hidden);
          linear("in_proj_b", m.v_heads, m.hidden);
          linear("in_proj_a", m.v_heads, m.hidden);
        }
        add("conv1d", {2 * k + v, 1, 4});
        for (const char* name : {"A_log", "dt_bias"}) Add(InLayer(n, name), {m.v_heads}, Dtype::kF32);
        add("ssm_norm", {m.d_v_dim});
        linear("out_proj", m.hidden, v);
        break;
      }
      default:
        std::abort();
    }
    if (m.mlps[n] == '-') continue;
    add("post_norm", {m.hidden});
    if (m.mlps[n] == 'd') {
      linear("gate", m.inter, m.hidden);
      linear("up", m.inter, m.hidden);
      linear("down", m.hidden, m.inter);
      continue;
    }
    add("router", {m.experts, m.hidden});
    if (m.stacked) {
      AddLinear(InLayer(n, "experts.gate_up"), {m.experts, 2 * m.moe_inter, m.hidden});
      AddLinear(InLayer(n, "experts.down"), {m.experts, m.hidden, m.moe_inter});
      continue;
    }
    for (Index e = 0; e < m.experts; ++e) {
      linear(absl::StrCat("experts.", e, ".gate"), m.moe_inter, m.hidden);
      linear(absl::StrCat("experts.", e, ".up"), m.moe_inter, m.hidden);
      linear(absl::StrCat("experts.", e, ".down"), m.hidden, m.moe_inter);
    }
  }
  Add("norm", {m.hidden});
  if (!m.tied) Add("lm_head", {m.vocab, m.hidden});
}

void Checkpoint::Add(const std::string& name, const Extents& shape, Dtype dtype) {
  by_name_[name] = tensors_.size();
  tensors_.push_back({name, shape, dtype});
}

void Checkpoint::AddLinear(const std::string& name, const Extents& shape) {
  if (model_.block == 0) return Add(name, shape);
  Add(name, shape, Dtype::kF8E4M3);
  Extents block(shape.size(), 1);
  Extents scale = shape;
  for (size_t a = shape.size() - 2; a < shape.size(); ++a) {
    block[a] = model_.block;
    scale[a] = (shape[a] + model_.block - 1) / model_.block;
  }
  Add(name + kScale, scale, Dtype::kF32);
  coupled_.push_back({name, name + kScale, block});
}

const TensorSpec& Checkpoint::Find(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) {
    std::cerr << model_.name << " has no tensor " << name << "\n";
    std::abort();
  }
  return tensors_[it->second];
}

ScaledArray Checkpoint::Get(const std::string& name) const {
  for (const Coupling& c : coupled_) {
    if (c.weight == name) return Scaled(Find(name), &Find(c.scale), c.block);
  }
  return Scaled(Find(name), nullptr, {});
}

ScaledArray Checkpoint::Experts(Index layer, const std::string& what) const {
  if (model_.stacked) {
    if (what == "down") return Get(InLayer(layer, "experts.down"));
    return Take(Get(InLayer(layer, "experts.gate_up")), 1, {what == "up" ? model_.moe_inter : 0, model_.moe_inter});
  }
  std::vector<ScaledArray> experts;
  for (Index e = 0; e < model_.experts; ++e) {
    experts.push_back(Get(InLayer(layer, absl::StrCat("experts.", e, ".", what))));
  }
  return Stack(experts, 0);
}

Dtype Checkpoint::DtypeOf(const std::string& name) const { return Find(name).dtype; }

}  // namespace headrace
