#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/models/attention.h"
#include "planner/models/experts.h"
#include "planner/models/families.h"

namespace headrace {
namespace {

constexpr char kLayer[] = "model.layers.{layer}.";
constexpr char kSecondNorm[] = "post_attention_layernorm.weight";

void AddAttentionUnit(Arch& a, ModelBuilder& m, const Site& site, const Attention& attention) {
  UnitBuilder u(site, "attention", m.format());
  u.Whole(u.prefix() + "input_layernorm.weight", {a.Number("hidden")});
  AddAttention(u, u.prefix() + "self_attn.", attention);
  m.Add(std::move(u));
}

// Attention with routed experts, one by one, in every layer.
void AddMoeModel(Arch& a, ModelBuilder& m, const std::string& moe, Index inter, const ExpertNames& names) {
  const Index hidden = a.Number("hidden"), experts = a.Number("experts");
  m.Add(AddEnds(a, m));
  const Site site = InLayers(ReadLayers(a, m), kLayer);
  AddAttentionUnit(a, m, site, ReadAttention(a));
  UnitBuilder router(site, "moe", m.format());
  router.Whole(site.prefix + kSecondNorm, {hidden});
  AddRouter(router, site.prefix + moe, experts, hidden, false);
  m.Add(std::move(router));
  m.Add(ExpertUnit(site, m.expert_format(), site.prefix + moe, experts, hidden, inter, names));
}

void AddGptOss(Arch& a, ModelBuilder& m, bool mxfp4) {
  const Index hidden = a.Number("hidden"), experts = a.Number("experts"), inter = a.Number("moe_inter");
  if (mxfp4) a.Require(inter % kMxValues == 0, "moe_inter", "be a multiple of 32, the values that share a scale");
  m.Add(AddEnds(a, m));
  const Site site = InLayers(ReadLayers(a, m), kLayer);
  Attention attention = ReadAttention(a);
  attention.bias = attention.sinks = true;
  AddAttentionUnit(a, m, site, attention);
  UnitBuilder router(site, "moe", m.format());
  router.Whole(site.prefix + kSecondNorm, {hidden});
  router.Whole(site.prefix + "mlp.router.weight", {experts, hidden});
  router.Whole(site.prefix + "mlp.router.bias", {experts});
  m.Add(std::move(router));
  m.Add(GptOssExpertUnit(site, site.prefix + "mlp.", experts, hidden, inter, mxfp4));
}

void AddMlaUnit(Arch& a, ModelBuilder& m, const Site& site) {
  UnitBuilder u(site, "mla", m.format());
  u.Whole(u.prefix() + "input_layernorm.weight", {a.Number("hidden")});
  AddLatentAttention(u, u.prefix() + "self_attn.", ReadLatentAttention(a));
  m.Add(std::move(u));
}

void AddDeepSeekMoe(Arch& a, ModelBuilder& m, const Site& site) {
  const Index hidden = a.Number("hidden"), experts = a.Number("experts"), inter = a.Number("moe_inter");
  const std::string mlp = site.prefix + "mlp.";
  UnitBuilder u(site, "moe", m.format());
  u.Whole(u.prefix() + kSecondNorm, {hidden});
  AddRouter(u, mlp, experts, hidden, a.FlagOr("score_bias", true));
  AddGatedMlp(u, mlp + "shared_experts.", hidden, inter * a.Number("shared"));
  m.Add(std::move(u));
  m.Add(ExpertUnit(site, m.expert_format(), mlp, experts, hidden, inter, {}));
}

}  // namespace

std::vector<Index> ReadLayers(Arch& a, ModelBuilder& m) {
  std::vector<Index> layers(a.Number("layers", Arch::kMaxLayers));
  std::iota(layers.begin(), layers.end(), Index{0});
  m.SetLayers(static_cast<Index>(layers.size()));
  return layers;
}

std::vector<Index> Without(const std::vector<Index>& all, const std::vector<Index>& some) {
  std::vector<Index> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(rest));
  return rest;
}

UnitBuilder AddEnds(Arch& a, ModelBuilder& m, const EndNames& names) {
  const Index vocab = a.Number("vocab"), hidden = a.Number("hidden");
  const bool tied = a.Flag("tied");
  UnitBuilder embedding(Outside(tied ? UnitPlace::kEnds : UnitPlace::kFirst), "embedding", m.format());
  embedding.Vocabulary(names.embedding, vocab, hidden);
  m.Add(std::move(embedding));
  UnitBuilder head(Outside(UnitPlace::kLast), "head", m.format());
  head.Whole(names.norm, {hidden});
  if (!tied) head.Vocabulary(names.head, vocab, hidden);
  return head;
}

void Llama(Arch& a, ModelBuilder& m) {
  const Index hidden = a.Number("hidden");
  m.Add(AddEnds(a, m));
  const Site site = InLayers(ReadLayers(a, m), kLayer);
  AddAttentionUnit(a, m, site, ReadAttention(a));
  UnitBuilder mlp(site, "mlp", m.format());
  mlp.Whole(site.prefix + kSecondNorm, {hidden});
  AddGatedMlp(mlp, site.prefix + "mlp.", hidden, a.Number("inter"));
  m.Add(std::move(mlp));
}

void Mixtral(Arch& a, ModelBuilder& m) {
  AddMoeModel(a, m, "block_sparse_moe.", a.Number("inter"), {"w1", "w3", "w2"});
}

void Qwen3Moe(Arch& a, ModelBuilder& m) { AddMoeModel(a, m, "mlp.", a.Number("moe_inter"), {}); }

void GptOss(Arch& a, ModelBuilder& m) { AddGptOss(a, m, false); }

void GptOssMxfp4(Arch& a, ModelBuilder& m) { AddGptOss(a, m, true); }

void DeepSeek(Arch& a, ModelBuilder& m) {
  const Index hidden = a.Number("hidden"), vocab = a.Number("vocab"), inter = a.Number("inter");
  m.Add(AddEnds(a, m));
  const std::vector<Index> layers = ReadLayers(a, m);
  const Index count = static_cast<Index>(layers.size());
  a.Require(a.NumberOr("dense_layers", 0) <= count, "dense_layers", "be at most layers");
  const Index dense = std::min(a.NumberOr("dense_layers", 0), count);
  AddMlaUnit(a, m, InLayers(layers, kLayer));
  const Site dense_site = InLayers({layers.begin(), layers.begin() + dense}, kLayer);
  UnitBuilder mlp(dense_site, "mlp", m.format());
  mlp.Whole(mlp.prefix() + kSecondNorm, {hidden});
  AddGatedMlp(mlp, mlp.prefix() + "mlp.", hidden, inter);
  m.Add(std::move(mlp));
  AddDeepSeekMoe(a, m, InLayers({layers.begin() + dense, layers.end()}, kLayer));
  const Index drafts = a.NumberOr("mtp", 0, kMaxDrafts);
  for (Index n = 0; n < drafts; ++n) {
    const Site site = InDraft(n, absl::StrCat("model.layers.", count + n, "."));
    UnitBuilder ends(site, "ends", m.format());
    ends.Vocabulary(site.prefix + "embed_tokens.weight", vocab, hidden);
    ends.Whole(site.prefix + "enorm.weight", {hidden});
    ends.Whole(site.prefix + "hnorm.weight", {hidden});
    ends.Whole(site.prefix + "eh_proj.weight", {hidden, 2 * hidden});
    ends.Whole(site.prefix + "shared_head.norm.weight", {hidden});
    ends.Vocabulary(site.prefix + "shared_head.head.weight", vocab, hidden);
    m.Add(std::move(ends));
    AddMlaUnit(a, m, site);
    AddDeepSeekMoe(a, m, site);
  }
}

}  // namespace headrace
