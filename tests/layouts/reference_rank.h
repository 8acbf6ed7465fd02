#ifndef HEADRACE_TESTS_LAYOUTS_REFERENCE_RANK_H_
#define HEADRACE_TESTS_LAYOUTS_REFERENCE_RANK_H_

// Test only. What both references share: a rank's place, naive slices, and the vectors that both sides cut alike.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/layouts/reference.h"

namespace headrace::reference {

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

inline Place PlaceOfRank(const ParallelLayout& l, Index rank) {
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
inline Rows Run(Index first, Index count) {
  Rows rows;
  for (Index i = 0; i < count; ++i) rows.push_back(first + i);
  return rows;
}

// The rows of the units (heads, groups) of a rank, of a part that begins at row `base`.
inline Rows UnitRows(Index units, Index rows, Index tp, Index rank, Index base = 0) {
  Rows out;
  for (Index u = 0; u < units; ++u) {
    const bool mine = units >= tp ? u * tp / units == rank : u == rank * units / tp;
    for (Index r = 0; r < rows && mine; ++r) out.push_back(base + u * rows + r);
  }
  return out;
}

inline Rows operator+(Rows a, const Rows& b) {
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
inline std::vector<Array> DeltaParts(const Reference& r, Index n) {
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

}  // namespace headrace::reference

#endif  // HEADRACE_TESTS_LAYOUTS_REFERENCE_RANK_H_
