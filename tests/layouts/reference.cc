#include "tests/layouts/reference.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace {
namespace {

using oracle::Array;
using Rows = std::vector<Index>;

// A weight and its scales.
struct Pair {
  Array weight;
  std::optional<Array> scale;
};

struct Place {
  Index tp, cp, dp, pp, ep, etp, edp;
};

Place PlaceOfRank(const ParallelLayout& l, Index rank) {
  Place p;
  p.tp = rank % l.tp;
  rank /= l.tp;
  p.cp = rank % l.cp;
  rank /= l.cp;
  p.pp = l.data_outermost ? rank % l.pp : rank / l.dp;
  p.dp = l.data_outermost ? rank / l.pp : rank % l.dp;
  const Index s = (p.dp * l.cp + p.cp) * l.tp + p.tp;
  p.etp = s % l.etp;
  p.ep = s / l.etp % l.ep;
  p.edp = s / l.etp / l.ep;
  return p;
}

// first, first + 1, ...
Rows Run(Index first, Index count) {
  Rows rows;
  for (Index i = 0; i < count; ++i) rows.push_back(first + i);
  return rows;
}

// The rows of the units (heads, groups) of a rank, of a part that begins at row `base`.
Rows UnitRows(Index units, Index rows, Index tp, Index rank, Index base = 0) {
  Rows out;
  for (Index u = 0; u < units; ++u) {
    const bool mine = units >= tp ? u * tp / units == rank : u == rank * units / tp;
    for (Index r = 0; r < rows && mine; ++r) out.push_back(base + u * rows + r);
  }
  return out;
}

Rows operator+(Rows a, const Rows& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Reference {
 public:
  Reference(const TinyModel& model, const std::vector<TensorSpec>& tensors, const ParallelLayout& layout, Index rank)
      : m(model), l(layout), at(PlaceOfRank(layout, rank)), tensors_(tensors) {}

  const TinyModel& m;
  const ParallelLayout& l;
  const Place at;
  std::vector<ReferenceArray> out;

  bool Has(const std::string& name) const {
    return std::any_of(tensors_.begin(), tensors_.end(), [&](const TensorSpec& t) { return t.name == name; });
  }
  Array Weight(const std::string& name) const {
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].name == name) return oracle::Whole(tensors_[t].shape, static_cast<Index>(t));
    }
    return {};
  }
  Dtype DtypeOf(const std::string& name) const {
    for (const TensorSpec& t : tensors_) {
      if (t.name == name) return t.dtype;
    }
    return Dtype::kBool;
  }
  Pair Get(const std::string& name) const {
    Pair pair = {Weight(name), std::nullopt};
    if (Has(name + "_scale_inv")) pair.scale = Weight(name + "_scale_inv");
    return pair;
  }
  Pair Cut(const Pair& p, int axis, const Rows& rows) const {
    Pair cut = {oracle::Take(p.weight, axis, rows), std::nullopt};
    if (!p.scale) return cut;
    Rows blocks;  // a block's rows lie together
    for (Index r : rows) {
      if (blocks.empty() || blocks.back() != r / m.block) blocks.push_back(r / m.block);
    }
    cut.scale = oracle::Take(*p.scale, axis, blocks);
    return cut;
  }
  static Pair Join(const std::vector<Pair>& pairs, int axis) {
    std::vector<Array> weights, scales;
    for (const Pair& p : pairs) {
      weights.push_back(p.weight);
      if (p.scale) scales.push_back(*p.scale);
    }
    Pair joined = {oracle::Concatenate(weights, axis), std::nullopt};
    if (!scales.empty()) joined.scale = oracle::Concatenate(scales, axis);
    return joined;
  }
  // Expert e: [out, in].
  Pair Expert(Index n, Index e, const std::string& what) const {
    if (!m.stacked) return Get(InLayer(n, absl::StrCat("experts.", e, ".", what)));
    const Array all = Weight(InLayer(n, what == "down" ? "experts.down" : "experts.gate_up"));
    const Array one = oracle::Slice(all, 0, e, 1);
    const Array matrix = oracle::Reshape(one, {all.shape[1], all.shape[2]});
    if (what == "down") return {matrix, std::nullopt};
    return {oracle::Slice(matrix, 0, what == "up" ? m.moe_inter : 0, m.moe_inter), std::nullopt};
  }

  void Add(const std::string& name, Dtype dtype, const Array& array, bool expert = false) {
    out.push_back({name, dtype, array, expert});
  }
  void Add(const std::string& name, const Pair& pair, bool expert = false) {
    Add(name, m.block > 0 ? Dtype::kF8E4M3 : Dtype::kBF16, pair.weight, expert);
    if (pair.scale) Add(name + ".scale", Dtype::kF32, *pair.scale, expert);
  }
  void AddWhole(const std::string& tensor) { Add(tensor, DtypeOf(tensor), Weight(tensor)); }
  void AddRows(const std::string& tensor, const Rows& rows) {
    Add(tensor, DtypeOf(tensor), oracle::Take(Weight(tensor), 0, rows));
  }
  void AddVocabulary(const std::string& name, const std::string& tensor, Index multiple, Index padding) {
    Array a = Weight(tensor);
    while (a.shape[0] % multiple != 0) {
      a = oracle::Concatenate({a, oracle::Filled({1, m.hidden}, padding)});
    }
    const Index each = a.shape[0] / l.tp;
    Add(name, Dtype::kBF16, oracle::Slice(a, 0, at.tp * each, each));
  }

  // Rows of what the rank's heads are made of.
  Rows Units(Index units, Index rows, Index base = 0) const { return UnitRows(units, rows, l.tp, at.tp, base); }
  Rows Even(Index length, Index parts, Index part) const {
    return oracle::PositionsOf(length, parts, part, 1, ChunkRule::kEven);
  }
  Rows MambaRows(bool with_z_and_dt) const {
    const Index inner = m.m_heads * m.m_head_dim, group = m.groups * m.state;
    Rows rows;
    Index base = 0;
    if (with_z_and_dt) {
      rows = Units(m.m_heads, m.m_head_dim);
      base = inner;
    }
    rows = rows + Units(m.m_heads, m.m_head_dim, base) + Units(m.groups, m.state, base + inner) +
           Units(m.groups, m.state, base + inner + group);
    return with_z_and_dt ? rows + Units(m.m_heads, 1, base + inner + 2 * group) : rows;
  }
  void AddMambaVectors(Index n) {
    AddRows(InLayer(n, "conv1d"), MambaRows(false));
    AddRows(InLayer(n, "conv1d_bias"), MambaRows(false));
    for (const char* name : {"A_log", "D", "dt_bias"}) AddRows(InLayer(n, name), Units(m.m_heads, 1));
    AddRows(InLayer(n, "ssm_norm"), Units(m.m_heads, m.m_head_dim));
  }
  void AddDeltaVectors(Index n) {
    const Index k = m.k_heads * m.k_dim;
    AddRows(InLayer(n, "conv1d"),
            Units(m.k_heads, m.k_dim) + Units(m.k_heads, m.k_dim, k) + Units(m.v_heads, m.d_v_dim, 2 * k));
    for (const char* name : {"A_log", "dt_bias"}) AddRows(InLayer(n, name), Units(m.v_heads, 1));
    AddWhole(InLayer(n, "ssm_norm"));
  }

 private:
  const std::vector<TensorSpec>& tensors_;
};

// q, k, v, z, b, a of a gated delta net, each with all its heads in order, from either form of the checkpoint.
std::vector<Array> DeltaParts(const Reference& r, Index n) {
  const TinyModel& m = r.m;
  const Index k = m.k_heads * m.k_dim, v = m.v_heads * m.d_v_dim;
  if (!m.by_groups) {
    const Array qkv = r.Weight(InLayer(n, "in_proj_qkv"));
    return {oracle::Slice(qkv, 0, 0, k),       oracle::Slice(qkv, 0, k, k),       oracle::Slice(qkv, 0, 2 * k, v),
            r.Weight(InLayer(n, "in_proj_z")), r.Weight(InLayer(n, "in_proj_b")), r.Weight(InLayer(n, "in_proj_a"))};
  }
  const Index ratio = m.v_heads / m.k_heads;
  std::vector<Rows> rows(6);
  for (Index g = 0; g < m.k_heads; ++g) {
    Index next = g * 2 * (m.k_dim + ratio * m.d_v_dim);
    for (int part = 0; part < 4; ++part) {
      for (Index i = 0; i < (part < 2 ? m.k_dim : ratio * m.d_v_dim); ++i) rows[part].push_back(next++);
    }
    next = g * 2 * ratio;
    for (int part = 4; part < 6; ++part) {
      for (Index i = 0; i < ratio; ++i) rows[part].push_back(next++);
    }
  }
  std::vector<Array> parts;
  for (int part = 0; part < 6; ++part) {
    parts.push_back(oracle::Take(r.Weight(InLayer(n, part < 4 ? "in_proj_qkvz" : "in_proj_ba")), 0, rows[part]));
  }
  return parts;
}

void TrainerLayer(Reference& r, const TrainerOptions& o, Index n) {
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

void EngineLayer(Reference& r, const EngineOptions& o, Index n) {
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

}  // namespace

std::vector<ReferenceArray> TrainerReference(const TinyModel& m, const std::vector<TensorSpec>& tensors,
                                             const TrainerOptions& o, Index rank) {
  Reference r(m, tensors, o.layout, rank);
  if (r.at.pp == 0) r.AddVocabulary("word_embeddings", "embed", o.vocab_multiple * o.layout.tp, oracle::kKeepFill);
  const Index layers = static_cast<Index>(m.mixers.size());
  const std::vector<Index> chunks = oracle::Owners(layers, o.layout.pp * o.vpp, ChunkRule::kEven);
  for (Index n = 0; n < layers; ++n) {
    if (chunks[n] % o.layout.pp == r.at.pp) TrainerLayer(r, o, n);
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

std::vector<ReferenceArray> EngineReference(const TinyModel& m, const std::vector<TensorSpec>& tensors,
                                            const EngineOptions& o, Index rank) {
  Reference r(m, tensors, o.layout, rank);
  const Index multiple = o.vocab_multiple * o.layout.tp;
  if (r.at.pp == 0) r.AddVocabulary("embed_tokens", "embed", multiple, oracle::kZeroFill);
  const Index layers = static_cast<Index>(m.mixers.size());
  // vLLM's get_pp_indices.
  std::vector<Index> partitions(o.layout.pp, layers / o.layout.pp);
  for (Index i = 2; i < layers % o.layout.pp + 2; ++i) ++partitions[o.layout.pp - i];
  Index first = 0;
  for (Index s = 0; s < r.at.pp; ++s) first += partitions[s];
  for (Index n : Run(first, partitions[r.at.pp])) EngineLayer(r, o, n);
  if (r.at.pp == o.layout.pp - 1) {
    r.AddWhole("norm");
    if (!m.tied || o.layout.pp > 1) {
      r.AddVocabulary("lm_head", m.tied ? "embed" : "lm_head", multiple, oracle::kZeroFill);
    }
  }
  return r.out;
}

}  // namespace headrace
