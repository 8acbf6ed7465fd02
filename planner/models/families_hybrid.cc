#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/models/attention.h"
#include "planner/models/experts.h"
#include "planner/models/families.h"
#include "planner/models/recurrent.h"

namespace headrace {
namespace {

// --- Kimi K3

// Residual attention: what a layer's mixer and MLP each have beside their norm.
void AddKimiNorms(UnitBuilder& u, const std::string& norm, const std::string& residual, Index hidden) {
  u.Whole(u.prefix() + norm + ".weight", {hidden});
  u.Whole(u.prefix() + residual + "_norm.weight", {hidden});
  u.Whole(u.prefix() + residual + "_proj.weight", {1, hidden});
}

// --- Qwen3-Next and Qwen3.5

struct GatedDeltaModel {
  std::string prefix;          // "model."
  bool by_groups = false;      // GatedDelta::by_groups
  bool stacked = false;        // experts, in the decoder layers
  bool draft_stacked = false;  // in multi-token-prediction layers
  Dtype state = Dtype::kBF16;  // GatedDelta::state_dtype
};

void AddGatedAttentionUnit(Arch& a, ModelBuilder& m, const Site& site) {
  Attention attention = ReadAttention(a);
  attention.qk_norm = attention.gate = true;
  UnitBuilder u(site, "attention", m.format());
  u.Whole(u.prefix() + "input_layernorm.weight", {attention.in});
  AddAttention(u, u.prefix() + "self_attn.", attention);
  m.Add(std::move(u));
}

void AddQwenMoe(Arch& a, ModelBuilder& m, const Site& site, bool stacked) {
  const Index hidden = a.Number("hidden"), experts = a.Number("experts"), inter = a.Number("moe_inter");
  const std::string mlp = site.prefix + "mlp.";
  UnitBuilder u(site, "moe", m.format());
  u.Whole(u.prefix() + "post_attention_layernorm.weight", {hidden});
  AddRouter(u, mlp, experts, hidden, false);
  u.Whole(mlp + "shared_expert_gate.weight", {1, hidden});
  AddGatedMlp(u, mlp + "shared_expert.", hidden, a.Number("shared_inter"));
  m.Add(std::move(u));
  m.Add(stacked ? StackedExpertUnit(site, mlp, experts, hidden, inter)
                : ExpertUnit(site, m.expert_format(), mlp, experts, hidden, inter, {}));
}

void AddGatedDeltaModel(Arch& a, ModelBuilder& m, const GatedDeltaModel& model) {
  const Index hidden = a.Number("hidden"), interval = a.Number("interval");
  m.Add(AddEnds(a, m, {.embedding = model.prefix + "embed_tokens.weight", .norm = model.prefix + "norm.weight"}));
  const std::vector<Index> layers = ReadLayers(a, m);
  const std::string layer = model.prefix + "layers.{layer}.";
  std::vector<Index> attention;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(attention),
               [&](Index n) { return (n + 1) % interval == 0; });
  GatedDelta delta = ReadGatedDelta(a);
  delta.by_groups = model.by_groups;
  delta.state_dtype = model.state;
  UnitBuilder u(InLayers(Without(layers, attention), layer), "gated_delta", m.format());
  u.Whole(u.prefix() + "input_layernorm.weight", {hidden});
  AddGatedDelta(u, u.prefix() + "linear_attn.", delta);
  m.Add(std::move(u));
  AddGatedAttentionUnit(a, m, InLayers(attention, layer));
  AddQwenMoe(a, m, InLayers(layers, layer), model.stacked);
  const Index drafts = a.NumberOr("mtp", 0, kMaxDrafts);
  for (Index n = 0; n < drafts; ++n) {
    const Site site = InDraft(n, absl::StrCat("mtp.layers.", n, "."));
    if (n == 0) {
      UnitBuilder ends(site, "ends", m.format());
      ends.Cut("mtp.fc.weight", {hidden, 2 * hidden}, 0, {{hidden, 1}});
      for (const char* name : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}) {
        ends.Whole(absl::StrCat("mtp.", name, ".weight"), {hidden});
      }
      m.Add(std::move(ends));
    }
    AddGatedAttentionUnit(a, m, site);
    AddQwenMoe(a, m, site, model.draft_stacked);
  }
}

// Whole on every rank: vLLM's encoders are data-parallel, and the record does not say how many heads there are.
void AddVision(Arch& v, ModelBuilder& m) {
  constexpr Index kMaxSide = 4096;  // of a patch, and of what is merged
  const Index hidden = v.Number("hidden"), inter = v.Number("inter"), merge = v.Number("merge", kMaxSide);
  const Index patch = v.Number("patch", kMaxSide), merged = hidden * merge * merge;
  UnitBuilder u(Outside(UnitPlace::kFirst), "vision", m.format());
  const auto add = [&](const std::string& name, Extents shape) {
    u.Whole(absl::StrCat("model.visual.", name, ".bias"), {shape[0]});
    u.Whole(absl::StrCat("model.visual.", name, ".weight"), std::move(shape));
  };
  add("patch_embed.proj", {hidden, 3, v.Number("temporal", kMaxSide), patch, patch});
  u.Whole("model.visual.pos_embed.weight", {v.Number("pos"), hidden});
  const Index depth = v.Number("depth", Arch::kMaxLayers);
  for (Index n = 0; n < depth; ++n) {
    const std::string block = absl::StrCat("blocks.", n, ".");
    add(block + "norm1", {hidden});
    add(block + "norm2", {hidden});
    add(block + "attn.qkv", {3 * hidden, hidden});
    add(block + "attn.proj", {hidden, hidden});
    add(block + "mlp.linear_fc1", {inter, hidden});
    add(block + "mlp.linear_fc2", {hidden, inter});
  }
  add("merger.norm", {hidden});
  add("merger.linear_fc1", {merged, merged});
  add("merger.linear_fc2", {v.Number("out"), merged});
  m.Add(std::move(u));
}

// --- Nemotron-H

// A layer of one kind: M Mamba2, * attention, - MLP, E experts.
void AddNemotronUnit(Arch& a, ModelBuilder& m, char kind, const Site& site) {
  const Index hidden = a.Number("hidden");
  const std::string mixer = site.prefix + "mixer.";
  const char* name = kind == 'M' ? "mamba" : kind == '*' ? "attention" : kind == '-' ? "mlp" : "moe";
  UnitBuilder u(site, name, m.format());
  u.Whole(site.prefix + "norm.weight", {hidden});
  if (kind == 'M') AddMamba2(u, mixer, ReadMamba2(a));
  if (kind == '*') AddAttention(u, mixer, ReadAttention(a));
  if (kind == '-') AddMlp(u, mixer, hidden, a.Number("inter"));
  if (kind != 'E') return m.Add(std::move(u));
  const Index experts = a.Number("experts"), width = a.Has("latent") ? a.Number("latent") : hidden;
  AddRouter(u, mixer, experts, hidden, true);
  if (a.Has("latent")) {
    u.WholeLinear(mixer + "fc1_latent_proj.weight", width, hidden);
    u.WholeLinear(mixer + "fc2_latent_proj.weight", hidden, width);
  }
  AddMlp(u, mixer + "shared_experts.", hidden, a.Number("shared_inter"));
  m.Add(std::move(u));
  m.Add(ExpertUnit(site, m.expert_format(), mixer, experts, width, a.Number("moe_inter"), {.gate = ""}));
}

// A letter for each layer.
std::string ReadPattern(Arch& a, const std::string& field, Index most) {
  const std::string pattern = a.TextOr(field, "");
  const bool ok = pattern.find_first_not_of("M*-E") == std::string::npos && static_cast<Index>(pattern.size()) <= most;
  a.Require(ok, field, absl::StrCat("be at most ", most, " letters, each M, *, - or E"));
  return ok ? pattern : "";
}

// --- Zamba2

// A transformer block that the hybrid layers share; its tensors are in the first layer that uses it.
void AddSharedBlock(Arch& a, ModelBuilder& m, const std::vector<Index>& hybrid) {
  const Index hidden = a.Number("hidden"), inter = a.Number("inter"), rank = a.Number("rank");
  const Index blocks = a.Number("mem_blocks"), layers = static_cast<Index>(hybrid.size());
  const Index own = std::min(blocks, layers);
  const RowPart half = {inter, 1};
  const Attention attention = {.in = 2 * hidden,
                               .out = hidden,
                               .heads = a.Number("heads"),
                               .kv_heads = a.Number("heads"),
                               .head_dim = a.Number("head_dim")};
  const std::string prefix = "model.layers.{layer}.shared_transformer.";
  UnitBuilder u(InLayers({hybrid.begin(), hybrid.begin() + own}, prefix), "shared_block", m.format());
  u.Whole(prefix + "input_layernorm.weight", {2 * hidden});
  u.Whole(prefix + "pre_ff_layernorm.weight", {hidden});
  AddAttention(u, prefix + "self_attn.", attention);
  u.Rows(prefix + "feed_forward.gate_up_proj.weight", {half, half}, hidden);
  u.Columns(prefix + "feed_forward.down_proj.weight", hidden, half);
  m.Add(std::move(u));
  // Each layer that uses the block has an adapter in it.
  for (Index b = 0; b < own; ++b) {
    UnitBuilder adapters(InLayers({hybrid[b]}, prefix), absl::StrCat("adapters", b), m.format());
    for (Index k = b; k < layers; k += blocks) {
      const std::string adapter = absl::StrCat(prefix, "feed_forward.gate_up_proj_adapter_list.", k, ".");
      adapters.Cut(adapter + "0.weight", {rank, hidden}, 0, {{rank, 1}});
      adapters.Cut(adapter + "1.weight", {2 * inter, rank}, 0, {half, half});
    }
    m.Add(std::move(adapters));
  }
}

}  // namespace

void KimiK3(Arch& a, ModelBuilder& m) {
  const std::string root = "language_model.", layer = root + "model.layers.{layer}.";
  const Index hidden = a.Number("hidden"), experts = a.Number("experts"), latent = a.Number("latent");
  const Index inter = a.Number("moe_inter");
  UnitBuilder head = AddEnds(a, m,
                             {.embedding = root + "model.embed_tokens.weight",
                              .norm = root + "model.norm.weight",
                              .head = root + "lm_head.weight"});
  head.Whole(root + "model.output_attn_res_norm.weight", {hidden});
  head.Whole(root + "model.output_attn_res_proj.weight", {1, hidden});
  m.Add(std::move(head));
  const std::vector<Index> layers = ReadLayers(a, m);
  const Index count = static_cast<Index>(layers.size());
  std::vector<Index> full = a.Ascending("full_attn_1based", 1, count + 1);
  for (Index& n : full) --n;

  UnitBuilder kda(InLayers(Without(layers, full), layer), "kda", m.format());
  AddKimiNorms(kda, "input_layernorm", "self_attention_res", hidden);
  AddKimiDelta(kda, layer + "self_attn.", ReadKimiDelta(a));
  m.Add(std::move(kda));
  LatentAttention attention = ReadLatentAttention(a);
  attention.gate = true;
  UnitBuilder mla(InLayers(full, layer), "mla", m.format());
  AddKimiNorms(mla, "input_layernorm", "self_attention_res", hidden);
  AddLatentAttention(mla, layer + "self_attn.", attention);
  m.Add(std::move(mla));

  a.Require(a.NumberOr("dense_layers", 0) <= count, "dense_layers", "be at most layers");
  const auto moe_begin = layers.begin() + std::min(a.NumberOr("dense_layers", 0), count);
  UnitBuilder mlp(InLayers({layers.begin(), moe_begin}, layer), "mlp", m.format());
  AddKimiNorms(mlp, "post_attention_layernorm", "mlp_res", hidden);
  AddGatedMlp(mlp, layer + "mlp.", hidden, a.Number("inter"));
  m.Add(std::move(mlp));
  const Site site = InLayers({moe_begin, layers.end()}, layer);
  const std::string pre = layer + "block_sparse_moe.";
  UnitBuilder moe(site, "moe", m.format());
  AddKimiNorms(moe, "post_attention_layernorm", "mlp_res", hidden);
  AddRouter(moe, pre, experts, hidden, true);
  moe.WholeLinear(pre + "routed_expert_down_proj.weight", latent, hidden);
  moe.WholeLinear(pre + "routed_expert_up_proj.weight", hidden, latent);
  moe.Whole(pre + "routed_expert_norm.weight", {latent});
  AddGatedMlp(moe, pre + "shared_experts.", hidden, inter * a.Number("shared"));
  m.Add(std::move(moe));
  m.Add(ExpertUnit(site, m.expert_format(), pre, experts, latent, inter, {"w1", "w3", "w2"}));
}

void Qwen3Next(Arch& a, ModelBuilder& m) { AddGatedDeltaModel(a, m, {.prefix = "model.", .by_groups = true}); }

void Qwen35Moe(Arch& a, ModelBuilder& m) {
  const std::string draft = a.TextOr("mtp_experts", "stacked");
  a.Require(draft == "stacked" || draft == "split", "mtp_experts", "be \"stacked\" or \"split\"");
  const std::string prefix = a.Text("prefix");
  a.Require(prefix.find_first_of("{}") == std::string::npos, "prefix", "have no braces");
  AddGatedDeltaModel(a, m,
                     {.prefix = prefix, .stacked = true, .draft_stacked = draft == "stacked", .state = Dtype::kF32});
  if (!a.Has("vision")) return;
  Arch vision("arch.vision", a.Object("vision"));
  AddVision(vision, m);
  a.Adopt(vision.Done());
}

void NemotronH(Arch& a, ModelBuilder& m) {
  const Index hidden = a.Number("hidden");
  m.Add(AddEnds(a, m, {.embedding = "backbone.embeddings.weight", .norm = "backbone.norm_f.weight"}));
  const std::string pattern = ReadPattern(a, "pattern", Arch::kMaxLayers);
  a.Require(!pattern.empty(), "pattern", "have a letter for each layer");
  m.SetLayers(static_cast<Index>(pattern.size()));
  for (const char kind : {'M', '*', '-', 'E'}) {
    std::vector<Index> layers;
    for (size_t n = 0; n < pattern.size(); ++n) {
      if (pattern[n] == kind) layers.push_back(static_cast<Index>(n));
    }
    if (!layers.empty()) AddNemotronUnit(a, m, kind, InLayers(layers, "backbone.layers.{layer}."));
  }
  const std::string draft = ReadPattern(a, "mtp_pattern", kMaxDrafts);
  for (size_t n = 0; n < draft.size(); ++n) {
    const Site site = InDraft(static_cast<Index>(n), absl::StrCat("mtp.layers.", n, "."));
    UnitBuilder ends(site, "ends", m.format());
    if (n == 0) {
      ends.Whole(site.prefix + "enorm.weight", {hidden});
      ends.Whole(site.prefix + "hnorm.weight", {hidden});
      ends.Cut(site.prefix + "eh_proj.weight", {hidden, 2 * hidden}, 0, {{hidden, 1}});
    }
    if (n + 1 == draft.size()) ends.Whole(site.prefix + "final_layernorm.weight", {hidden});
    if (!ends.unit().tensors.empty()) m.Add(std::move(ends));
    AddNemotronUnit(a, m, draft[n], site);
  }
}

void Bamba(Arch& a, ModelBuilder& m) {
  const Index hidden = a.Number("hidden");
  const std::string layer = "model.layers.{layer}.";
  m.Add(AddEnds(a, m, {.norm = "model.final_layernorm.weight"}));
  const std::vector<Index> layers = ReadLayers(a, m);
  const std::vector<Index> attention = a.Ascending("attn_layers", 0, static_cast<Index>(layers.size()));
  UnitBuilder mamba(InLayers(Without(layers, attention), layer), "mamba", m.format());
  mamba.Whole(layer + "input_layernorm.weight", {hidden});
  AddMamba2(mamba, layer + "mamba.", ReadMamba2(a));
  m.Add(std::move(mamba));
  UnitBuilder softmax(InLayers(attention, layer), "attention", m.format());
  softmax.Whole(layer + "input_layernorm.weight", {hidden});
  AddAttention(softmax, layer + "self_attn.", ReadAttention(a));
  m.Add(std::move(softmax));
  UnitBuilder mlp(InLayers(layers, layer), "mlp", m.format());
  mlp.Whole(layer + "pre_ff_layernorm.weight", {hidden});
  AddGatedMlp(mlp, layer + "feed_forward.", hidden, a.Number("inter"));
  m.Add(std::move(mlp));
}

void Zamba2(Arch& a, ModelBuilder& m) {
  const Index hidden = a.Number("hidden");
  const std::string layer = "model.layers.{layer}.";
  m.Add(AddEnds(a, m, {.norm = "model.final_layernorm.weight"}));
  const std::vector<Index> layers = ReadLayers(a, m);
  const std::vector<Index> hybrid = a.Ascending("hybrid", 0, static_cast<Index>(layers.size()));
  const Mamba2 mixer = ReadMamba2(a);
  UnitBuilder mamba(InLayers(Without(layers, hybrid), layer), "mamba", m.format());
  mamba.Whole(layer + "input_layernorm.weight", {hidden});
  AddMamba2(mamba, layer + "mamba.", mixer);
  m.Add(std::move(mamba));
  UnitBuilder both(InLayers(hybrid, layer), "hybrid", m.format());
  both.WholeLinear(layer + "linear.weight", hidden, hidden);
  both.Whole(layer + "mamba_decoder.input_layernorm.weight", {hidden});
  AddMamba2(both, layer + "mamba_decoder.mamba.", mixer);
  m.Add(std::move(both));
  AddSharedBlock(a, m, hybrid);
}

}  // namespace headrace
