#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/layouts/reference.h"
#include "tests/layouts/reference_rank.h"

namespace headrace {
namespace reference {
static void TrainerLayer(Reference& r, const TrainerOptions& o, Index n) {
  const TinyModel& m = r.m;
  // A linear weight; its scales, if any, are whole on the rank.
  auto weight = [&](const std::string& name) {
    const Pair pair = r.Get(InLayer(n, name));
    if (pair.scale) r.Add(InLayer(n, name + ".scale"), Dtype::kF32, *pair.scale);
    return pair.weight;
  };
  auto add = [&](const std::string& name, const Array& a) {
    r.Add(InLayer(n, "linear_" + name), m.block > 0 ? Dtype::kF8E4M3 : Dtype::kBF16, a);
  };
  auto columns = [&](const Array& a) { return oracle::Take(a, 1, r.Even(a.shape[1], r.l.tp, r.at.tp)); };
  r.AddWhole(InLayer(n, "input_norm"));
  if (m.mixers[n] == 'a') {
    const Array q = weight("q"), k = weight("k"), v = weight("v");
    const Index per_group = m.heads / m.kv_heads * m.head_dim;
    std::vector<Array> groups;
    for (Index g = 0; g < m.kv_heads; ++g) {
      groups.push_back(oracle::Slice(q, 0, g * per_group, per_group));
      groups.push_back(oracle::Slice(k, 0, g * m.head_dim, m.head_dim));
      groups.push_back(oracle::Slice(v, 0, g * m.head_dim, m.head_dim));
    }
    const Array qkv = oracle::Concatenate(groups);
    add("qkv", oracle::Take(qkv, 0, r.Even(qkv.shape[0], r.l.tp, r.at.tp)));
    add("proj", columns(weight("o")));
  } else if (m.mixers[n] == 'l') {
    add("q_down", weight("q_a"));
    add("kv_down", weight("kv_a_with_mqa"));
    r.AddWhole(InLayer(n, "q_a_norm"));
    r.AddWhole(InLayer(n, "kv_a_norm"));
    add("q_up", oracle::Take(weight("q_b"), 0, r.Units(m.heads, m.nope + m.rope)));
    add("kv_up", oracle::Take(weight("kv_b"), 0, r.Units(m.heads, m.nope + m.v_dim)));
    add("proj", columns(weight("o")));
  } else if (m.mixers[n] == 'm') {
    add("in_proj", oracle::Take(weight("in_proj"), 0, r.MambaRows(true)));
    r.AddMambaVectors(n);
    add("out_proj", columns(weight("out_proj")));
  } else {
    std::vector<Array> parts = DeltaParts(r, n);
    const Index rows[] = {m.k_dim, m.k_dim, m.d_v_dim, m.d_v_dim, 1, 1};
    for (int p = 0; p < 6; ++p) parts[p] = oracle::Take(parts[p], 0, r.Units(p < 2 ? m.k_heads : m.v_heads, rows[p]));
    add("in_proj", oracle::Concatenate(parts));
    r.AddDeltaVectors(n);
    add("out_proj", columns(weight("out_proj")));
  }
  if (m.mlps[n] == '-') return;
  r.AddWhole(InLayer(n, "post_norm"));
  if (m.mlps[n] == 'd') {
    const Array gate = weight("gate"), up = weight("up");
    const Rows mine = r.Units(m.inter, 1);
    add("fc1", oracle::Concatenate({oracle::Take(gate, 0, mine), oracle::Take(up, 0, mine)}));
    add("fc2", columns(weight("down")));
    return;
  }
  r.AddWhole(InLayer(n, "router"));
  const Rows mine = r.Even(m.experts, r.l.ep, r.at.ep), cut = r.Even(m.moe_inter, r.l.etp, r.at.etp);
  const Index width = static_cast<Index>(cut.size()), count = static_cast<Index>(mine.size());
  for (const char* what : {"gate", "up", "down"}) {
    if (m.block == 0) continue;
    std::vector<Array> scales = {oracle::Filled({0, 0, 0}, 0)};
    for (Index e : mine) {
      const Array scale = *r.Expert(n, e, what).scale;
      scales.push_back(oracle::Reshape(scale, {1, scale.shape[0], scale.shape[1]}));
    }
    if (scales.size() > 1) scales.erase(scales.begin());
    r.Add(InLayer(n, absl::StrCat("experts.", what, ".scale")), Dtype::kF32, oracle::Concatenate(scales), true);
  }
  const Array fc1 = oracle::Build({count, 2 * width, m.hidden}, [&](const Extents& p) {
    return oracle::At(r.Expert(n, mine[p[0]], p[1] < width ? "gate" : "up").weight, {cut[p[1] % width], p[2]});
  });
  const Array fc2 = oracle::Build({count, m.hidden, width}, [&](const Extents& p) {
    return oracle::At(r.Expert(n, mine[p[0]], "down").weight, {p[1], cut[p[2]]});
  });
  for (const auto& [name, plain] : {std::pair{"experts.fc1", fc1}, std::pair{"experts.fc2", fc2}}) {
    const Array a = o.experts_turned ? oracle::Transpose(plain, {0, 2, 1}) : plain;
    const Dtype dtype = m.block > 0 ? Dtype::kF8E4M3 : Dtype::kBF16;
    if (o.experts_stacked) {
      r.Add(InLayer(n, name), dtype, a, true);
      continue;
    }
    for (Index e = 0; e < count; ++e) {
      r.Add(InLayer(n, absl::StrCat(name, ".weight", e)), dtype, oracle::Slice(a, 0, e, 1), true);
    }
  }
}

}  // namespace reference

std::vector<ReferenceArray> TrainerReference(const TinyModel& m, const std::vector<TensorSpec>& tensors,
                                             const TrainerOptions& o, Index rank) {
  reference::Reference r(m, tensors, o.layout, rank);
  if (r.at.pp == 0) r.AddVocabulary("word_embeddings", "embed", o.vocab_multiple * o.layout.tp, oracle::kKeepFill);
  const Index layers = static_cast<Index>(m.mixers.size());
  const std::vector<Index> chunks = oracle::Owners(layers, o.layout.pp * o.vpp, ChunkRule::kEven);
  for (Index n = 0; n < layers; ++n) {
    if (chunks[n] % o.layout.pp == r.at.pp) reference::TrainerLayer(r, o, n);
  }
  if (r.at.pp == o.layout.pp - 1) {
    r.AddWhole("norm");
    if (!m.tied || o.layout.pp > 1) {
      r.AddVocabulary("output_layer", m.tied ? "embed" : "lm_head", o.vocab_multiple * o.layout.tp, oracle::kKeepFill);
    }
  }
  if (!o.flat) return r.out;
  std::map<std::pair<bool, Dtype>, std::vector<Index>> buckets;
  for (const ReferenceArray& a : r.out) {
    std::vector<Index>& bucket = buckets[{a.expert, a.dtype}];
    while (static_cast<Index>(bucket.size()) % o.flat_start != 0) bucket.push_back(oracle::kKeepFill);
    bucket.insert(bucket.end(), a.array.values.begin(), a.array.values.end());
  }
  std::vector<ReferenceArray> shards;
  for (auto& [key, bucket] : buckets) {
    const Index replicas = o.layout.dp * o.layout.cp;
    const Index parts = key.first ? replicas * o.layout.tp / o.layout.ep / o.layout.etp : replicas;
    const Index part = key.first ? r.at.edp : r.at.dp * o.layout.cp + r.at.cp;
    while (static_cast<Index>(bucket.size()) % (parts * o.flat_start) != 0) bucket.push_back(oracle::kKeepFill);
    const Index each = static_cast<Index>(bucket.size()) / parts;
    shards.push_back({absl::StrCat(key.first ? "expert" : "dense", "_bucket_", DtypeName(key.second)),
                      key.second,
                      {{each}, {bucket.begin() + part * each, bucket.begin() + (part + 1) * each}},
                      key.first});
  }
  return shards;
}

}  // namespace headrace
