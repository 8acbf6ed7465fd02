#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/layouts/reference.h"
#include "tests/layouts/reference_rank.h"

namespace headrace {
namespace reference {
static void EngineLayer(Reference& r, const EngineOptions& o, Index n) {
  const TinyModel& m = r.m;
  auto tensor = [&](const std::string& name) { return r.Get(InLayer(n, name)); };
  r.AddWhole(InLayer(n, "input_norm"));
  if (m.mixers[n] == 'a') {
    const Rows kv = r.Units(m.kv_heads, m.head_dim), q = r.Units(m.heads, m.head_dim);
    r.Add(InLayer(n, "qkv_proj"),
          Reference::Join({r.Cut(tensor("q"), 0, q), r.Cut(tensor("k"), 0, kv), r.Cut(tensor("v"), 0, kv)}, 0));
    r.Add(InLayer(n, "o_proj"), r.Cut(tensor("o"), 1, q));
  } else if (m.mixers[n] == 'l') {
    r.Add(InLayer(n, "fused_qkv_a_proj"), Reference::Join({tensor("q_a"), tensor("kv_a_with_mqa")}, 0));
    r.AddWhole(InLayer(n, "q_a_norm"));
    r.AddWhole(InLayer(n, "kv_a_norm"));
    r.Add(InLayer(n, "q_b_proj"), r.Cut(tensor("q_b"), 0, r.Units(m.heads, m.nope + m.rope)));
    if (o.mla_halves && m.block == 0) {
      const Rows heads = r.Units(m.heads, 1);
      const Array kv_b = tensor("kv_b").weight;
      const Index local = static_cast<Index>(heads.size()), each = m.nope + m.v_dim;
      r.Add(InLayer(n, "W_UK"), Dtype::kBF16, oracle::Build({local, m.nope, m.kv_lora}, [&](const Extents& p) {
              return oracle::At(kv_b, {heads[p[0]] * each + p[1], p[2]});
            }));
      r.Add(InLayer(n, "W_UV"), Dtype::kBF16, oracle::Build({local, m.kv_lora, m.v_dim}, [&](const Extents& p) {
              return oracle::At(kv_b, {heads[p[0]] * each + m.nope + p[2], p[1]});
            }));
    } else {
      r.Add(InLayer(n, "kv_b_proj"), r.Cut(tensor("kv_b"), 0, r.Units(m.heads, m.nope + m.v_dim)));
    }
    r.Add(InLayer(n, "o_proj"), r.Cut(tensor("o"), 1, r.Units(m.heads, m.v_dim)));
  } else if (m.mixers[n] == 'm') {
    r.Add(InLayer(n, "in_proj"), r.Cut(tensor("in_proj"), 0, r.MambaRows(true)));
    r.AddMambaVectors(n);
    r.Add(InLayer(n, "out_proj"), r.Cut(tensor("out_proj"), 1, r.Units(m.m_heads, m.m_head_dim)));
  } else {
    if (m.by_groups) {
      const Index ratio = m.v_heads / m.k_heads;
      r.Add(InLayer(n, "in_proj_qkvz"),
            r.Cut(tensor("in_proj_qkvz"), 0, r.Units(m.k_heads, 2 * (m.k_dim + ratio * m.d_v_dim))));
      r.Add(InLayer(n, "in_proj_ba"), r.Cut(tensor("in_proj_ba"), 0, r.Units(m.k_heads, 2 * ratio)));
    } else {
      std::vector<Array> parts = DeltaParts(r, n);
      const Rows k = r.Units(m.k_heads, m.k_dim), v = r.Units(m.v_heads, m.d_v_dim), each = r.Units(m.v_heads, 1);
      auto take = [&](int p, const Rows& rows) { return oracle::Take(parts[p], 0, rows); };
      r.Add(InLayer(n, "in_proj_qkvz"),
            Pair{oracle::Concatenate({take(0, k), take(1, k), take(2, v), take(3, v)}), {}});
      r.Add(InLayer(n, "in_proj_ba"), Pair{oracle::Concatenate({take(4, each), take(5, each)}), {}});
    }
    r.AddDeltaVectors(n);
    r.Add(InLayer(n, "out_proj"), r.Cut(tensor("out_proj"), 1, r.Units(m.v_heads, m.d_v_dim)));
  }
  if (m.mlps[n] == '-') return;
  r.AddWhole(InLayer(n, "post_norm"));
  // Whole scale blocks are dealt out; without scales a block is one row.
  auto blocks = [&](Index length, Index parts, Index part) {
    const Index block = std::max<Index>(m.block, 1);
    Rows rows;
    for (Index b : r.Even((length + block - 1) / block, parts, part)) {
      for (Index i = b * block; i < std::min(length, (b + 1) * block); ++i) rows.push_back(i);
    }
    return rows;
  };
  if (m.mlps[n] == 'd') {
    const Rows cut = blocks(m.inter, r.l.tp, r.at.tp);
    r.Add(InLayer(n, "gate_up_proj"), Reference::Join({r.Cut(tensor("gate"), 0, cut), r.Cut(tensor("up"), 0, cut)}, 0));
    r.Add(InLayer(n, "down_proj"), r.Cut(tensor("down"), 1, cut));
    return;
  }
  r.AddWhole(InLayer(n, "router"));
  Rows mine = r.Even(m.experts, r.l.ep, r.at.ep);
  if (o.expert_order == ExpertOrder::kRoundRobin) {
    mine.clear();
    for (Index e = 0; e < m.experts; ++e) {
      if (e % r.l.ep == r.at.ep) mine.push_back(e);
    }
  }
  const Rows cut = blocks(m.moe_inter, r.l.etp, r.at.etp);
  const bool gate_first = o.gate_up_order == GateUpOrder::kGateFirst;
  const bool in_turns = o.gate_up_rows == GateUpRows::kInterleaved;
  // One expert's matrix: w13 (first and second) or w2; `rows` are those of weight or scale.
  auto one_w13 = [&](const Array& first, const Array& second) {
    const Index width = first.shape[0];
    return oracle::Build({2 * width, first.shape[1]}, [&](const Extents& p) {
      const bool is_second = in_turns ? p[0] % 2 == 1 : p[0] >= width;
      return oracle::At(is_second ? second : first, {in_turns ? p[0] / 2 : p[0] % width, p[1]});
    });
  };
  auto pad = [&](Pair p, int axis) {
    while (!p.scale && p.weight.shape[axis] % o.pad_multiple != 0) {
      Extents more = p.weight.shape;
      more[axis] = 1;
      p.weight = oracle::Concatenate({p.weight, oracle::Filled(more, oracle::kZeroFill)}, axis);
    }
    return p;
  };
  std::map<std::string, std::vector<std::pair<Index, Pair>>> matrices;  // by buffer, the local experts'
  for (size_t i = 0; i < mine.size(); ++i) {
    const Pair gate = pad(r.Cut(r.Expert(n, mine[i], "gate"), 0, cut), 0);
    const Pair up = pad(r.Cut(r.Expert(n, mine[i], "up"), 0, cut), 0);
    const Pair &first = gate_first ? gate : up, &second = gate_first ? up : gate;
    Pair w13 = {one_w13(first.weight, second.weight), std::nullopt};
    if (first.scale) w13.scale = one_w13(*first.scale, *second.scale);
    Pair w2 = pad(r.Cut(r.Expert(n, mine[i], "down"), 1, cut), 1);
    for (auto& [name, pair] : {std::pair<std::string, Pair&>{"w13", w13}, std::pair<std::string, Pair&>{"w2", w2}}) {
      if (o.experts_turned) {
        pair.weight = oracle::Transpose(pair.weight, {1, 0});
        if (pair.scale) pair.scale = oracle::Transpose(*pair.scale, {1, 0});
      }
      matrices[name].push_back({static_cast<Index>(i), pair});
    }
  }
  for (const char* name : {"w13", "w2"}) {
    std::vector<Index> weight, scale;
    for (const auto& [e, pair] : matrices[name]) {
      if (!o.experts_stacked) {
        r.Add(InLayer(n, absl::StrCat("experts.", e, ".", name)), pair, true);
        continue;
      }
      weight.insert(weight.end(), pair.weight.values.begin(), pair.weight.values.end());
      if (pair.scale) scale.insert(scale.end(), pair.scale->values.begin(), pair.scale->values.end());
    }
    if (!o.experts_stacked) continue;
    Pair all = {{{static_cast<Index>(weight.size())}, weight}, std::nullopt};
    if (m.block > 0) all.scale = Array{{static_cast<Index>(scale.size())}, scale};
    r.Add(InLayer(n, name), all, true);
  }
}

}  // namespace reference

std::vector<ReferenceArray> EngineReference(const TinyModel& m, const std::vector<TensorSpec>& tensors,
                                            const EngineOptions& o, Index rank) {
  reference::Reference r(m, tensors, o.layout, rank);
  const Index multiple = o.vocab_multiple * o.layout.tp;
  if (r.at.pp == 0) r.AddVocabulary("embed_tokens", "embed", multiple, oracle::kZeroFill);
  const Index layers = static_cast<Index>(m.mixers.size());
  // vLLM's get_pp_indices.
  std::vector<Index> partitions(o.layout.pp, layers / o.layout.pp);
  for (Index i = 2; i < layers % o.layout.pp + 2; ++i) ++partitions[o.layout.pp - i];
  Index first = 0;
  for (Index s = 0; s < r.at.pp; ++s) first += partitions[s];
  for (Index n : reference::Run(first, partitions[r.at.pp])) reference::EngineLayer(r, o, n);
  if (r.at.pp == o.layout.pp - 1) {
    r.AddWhole("norm");
    if (!m.tied || o.layout.pp > 1) {
      r.AddVocabulary("lm_head", m.tied ? "embed" : "lm_head", multiple, oracle::kZeroFill);
    }
  }
  return r.out;
}

}  // namespace headrace
