#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/layout/row_parts.h"
#include "planner/status.h"
#include "tests/layouts/rank_arrays.h"
#include "tests/layouts/sides.h"

namespace headrace {
namespace {

// One worker of a vLLM-like engine: everything is cut by heads, and scales go with their weights.
class EngineRank {
 public:
  EngineRank(const TinyModel& model, const Checkpoint& checkpoint, const EngineOptions& options, const RankPlace& place)
      : m_(model),
        c_(checkpoint),
        o_(options),
        place_(place),
        linear_(model.block > 0 ? Dtype::kF8E4M3 : Dtype::kBF16) {}

  void AddVocabulary(const std::string& name, const std::string& tensor) {
    const PieceArray padded =
        PadToMultiple(c_.Get(tensor).weight, 0, o_.vocab_multiple * o_.layout.tp, PieceKind::kZero);
    out_.Add(name, Dtype::kBF16,
             LocalPart(padded, {{o_.layout.tp}, {"tp"}}, {Shard{0, ChunkRule::kEven}}, {place_.tp}));
  }

  void AddWhole(const std::string& tensor) { out_.Add(tensor, c_.DtypeOf(tensor), c_.Get(tensor)); }

  void AddLayer(Index n) {
    AddWhole(InLayer(n, "input_norm"));
    switch (m_.mixers[n]) {
      case 'a':
        AddAttention(n);
        break;
      case 'l':
        AddMla(n);
        break;
      case 'm':
        AddMamba(n);
        break;
      default:
        AddGatedDelta(n);
    }
    if (m_.mlps[n] == '-') return;
    AddWhole(InLayer(n, "post_norm"));
    if (m_.mlps[n] == 'e') return AddExperts(n);
    // Blocks are dealt out whole, so that widths that TP does not divide are cut too.
    const Segment cut = BlockCut(m_.inter, o_.layout.tp, place_.tp);
    AddLinear(n, "gate_up_proj", Concatenate({Take(Tensor(n, "gate"), 0, cut), Take(Tensor(n, "up"), 0, cut)}, 0));
    AddLinear(n, "down_proj", Take(Tensor(n, "down"), 1, cut));
  }

  const RankArrays& arrays() const { return out_; }

 private:
  ScaledArray Tensor(Index n, const std::string& name) const { return c_.Get(InLayer(n, name)); }
  void AddLinear(Index n, const std::string& name, const ScaledArray& array) {
    out_.Add(InLayer(n, name), linear_, array);
  }
  absl::StatusOr<Segments> Cut(const std::vector<RowPart>& parts) const {
    return CutParts(parts, o_.layout.tp, place_.tp);
  }
  Segment BlockCut(Index length, Index parts, Index part) const {
    return BlockChunkOf(length, m_.block > 0 ? m_.block : 1, parts, part, ChunkRule::kEven).value();
  }
  void AddCut(Index n, const std::string& name, const std::vector<RowPart>& parts) {
    const std::string tensor = InLayer(n, name);
    out_.Add(tensor, c_.DtypeOf(tensor), Take(c_.Get(tensor), 0, Cut(parts)));
  }

  void AddAttention(Index n) {
    const ScaledArray qkv = Concatenate({Tensor(n, "q"), Tensor(n, "k"), Tensor(n, "v")}, 0);
    const RowPart kv = {m_.kv_heads, m_.head_dim}, q = {m_.heads, m_.head_dim};
    AddLinear(n, "qkv_proj", Take(qkv, 0, Cut({q, kv, kv})));
    AddLinear(n, "o_proj", Take(Tensor(n, "o"), 1, Cut({q})));
  }

  void AddMla(Index n) {
    AddLinear(n, "fused_qkv_a_proj", Concatenate({Tensor(n, "q_a"), Tensor(n, "kv_a_with_mqa")}, 0));
    AddWhole(InLayer(n, "q_a_norm"));
    AddWhole(InLayer(n, "kv_a_norm"));
    AddLinear(n, "q_b_proj", Take(Tensor(n, "q_b"), 0, Cut({{m_.heads, m_.nope + m_.rope}})));
    if (o_.mla_halves && m_.block == 0) {
      const TensorSpec kv_b = {InLayer(n, "kv_b"), {m_.heads * (m_.nope + m_.v_dim), m_.kv_lora}, linear_};
      const PieceArray heads = Take(Whole(kv_b, {m_.heads, m_.nope + m_.v_dim, m_.kv_lora}), 0, Cut({{m_.heads, 1}}));
      out_.Add(InLayer(n, "W_UK"), linear_, Take(heads, 1, {0, m_.nope}));
      out_.Add(InLayer(n, "W_UV"), linear_, Transpose(Take(heads, 1, {m_.nope, m_.v_dim}), {0, 2, 1}));
    } else {
      AddLinear(n, "kv_b_proj", Take(Tensor(n, "kv_b"), 0, Cut({{m_.heads, m_.nope + m_.v_dim}})));
    }
    AddLinear(n, "o_proj", Take(Tensor(n, "o"), 1, Cut({{m_.heads, m_.v_dim}})));
  }

  void AddMamba(Index n) {
    const RowPart inner = {m_.m_heads, m_.m_head_dim}, group = {m_.groups, m_.state}, each = {m_.m_heads, 1};
    AddLinear(n, "in_proj", Take(Tensor(n, "in_proj"), 0, Cut({inner, inner, group, group, each})));
    AddCut(n, "conv1d", {inner, group, group});
    AddCut(n, "conv1d_bias", {inner, group, group});
    for (const char* name : {"A_log", "D", "dt_bias"}) AddCut(n, name, {each});
    AddCut(n, "ssm_norm", {inner});
    AddLinear(n, "out_proj", Take(Tensor(n, "out_proj"), 1, Cut({inner})));
  }

  void AddGatedDelta(Index n) {
    const RowPart k = {m_.k_heads, m_.k_dim}, v = {m_.v_heads, m_.d_v_dim}, each = {m_.v_heads, 1};
    if (m_.by_groups) {
      // As the checkpoint has them, cut by groups.
      const Index per_group = m_.v_heads / m_.k_heads;
      AddLinear(n, "in_proj_qkvz",
                Take(Tensor(n, "in_proj_qkvz"), 0, Cut({{m_.k_heads, 2 * (m_.k_dim + per_group * m_.d_v_dim)}})));
      AddLinear(n, "in_proj_ba", Take(Tensor(n, "in_proj_ba"), 0, Cut({{m_.k_heads, 2 * per_group}})));
    } else {
      AddLinear(n, "in_proj_qkvz",
                Take(Concatenate({Tensor(n, "in_proj_qkv"), Tensor(n, "in_proj_z")}, 0), 0, Cut({k, k, v, v})));
      AddLinear(n, "in_proj_ba",
                Take(Concatenate({Tensor(n, "in_proj_b"), Tensor(n, "in_proj_a")}, 0), 0, Cut({each, each})));
    }
    AddCut(n, "conv1d", {k, k, v});
    for (const char* name : {"A_log", "dt_bias"}) AddCut(n, name, {each});
    AddWhole(InLayer(n, "ssm_norm"));
    AddLinear(n, "out_proj", Take(Tensor(n, "out_proj"), 1, Cut({v})));
  }

  void AddExperts(Index n) {
    AddWhole(InLayer(n, "router"));
    const auto mine = ExpertsOf(m_.experts, o_.layout.ep, place_.ep, o_.expert_order);
    const Segment cut = BlockCut(m_.moe_inter, o_.layout.etp, place_.etp);
    auto part = [&](const char* what, int axis) {
      ScaledArray array = Take(Take(c_.Experts(n, what), 0, mine), axis, cut);
      if (!array.scale) array.weight = PadToMultiple(array.weight, axis, o_.pad_multiple, PieceKind::kZero);
      return array;
    };
    const ScaledArray gate = part("gate", 1), up = part("up", 1);
    AddExpertBuffers(n, "w13", FuseGateUp(gate, up, 1, o_.gate_up_order, o_.gate_up_rows));
    AddExpertBuffers(n, "w2", part("down", 2));
  }

  void AddExpertBuffers(Index n, const std::string& name, ScaledArray experts) {
    if (o_.experts_turned) {
      experts = Transpose(experts,
                          experts.weight.shape.size() == 3 ? std::vector<int>{0, 2, 1} : std::vector<int>{0, 3, 1, 2});
    }
    if (o_.experts_stacked || !experts.weight.status.ok()) return out_.Add(InLayer(n, name), linear_, experts, true);
    for (Index e = 0; e < experts.weight.shape[0]; ++e) {
      out_.Add(InLayer(n, absl::StrCat("experts.", e, ".", name)), linear_, OneExpert(experts, e), true);
    }
  }

  const TinyModel& m_;
  const Checkpoint& c_;
  const EngineOptions& o_;
  const RankPlace place_;
  const Dtype linear_;
  RankArrays out_;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<Buffer>>> EngineSide(const TinyModel& m, const Checkpoint& checkpoint,
                                                            const EngineOptions& o) {
  HR_ASSIGN_OR_RETURN(const Index ranks, RanksOf(o.layout));
  HR_ASSIGN_OR_RETURN(const std::vector<Index> stages, LateStages(static_cast<Index>(m.mixers.size()), o.layout.pp));
  std::vector<std::vector<Buffer>> side;
  for (Index rank = 0; rank < ranks; ++rank) {
    HR_ASSIGN_OR_RETURN(const RankPlace place, PlaceOf(o.layout, rank));
    HR_ASSIGN_OR_RETURN(const Segments mine, LayersOf(stages, o.layout.pp, place.pp));
    EngineRank out(m, checkpoint, o, place);
    if (place.pp == 0) out.AddVocabulary("embed_tokens", "embed");
    for (const Segment& run : mine) {
      for (Index i = 0; i < run.count; ++i) out.AddLayer(run.first + i);
    }
    const bool last = place.pp == o.layout.pp - 1;
    if (last) {
      out.AddWhole("norm");
      if (!m.tied || o.layout.pp > 1) out.AddVocabulary("lm_head", m.tied ? "embed" : "lm_head");
    }
    HR_ASSIGN_OR_RETURN(std::vector<Buffer> buffers, out.arrays().ToBuffers(rank));
    if (m.tied && o.layout.pp == 1) {  // the head is the embedding
      buffers.front().storage = Storage{"embedding", 0};
      Buffer head = buffers.front();
      head.name = "lm_head";
      head.pieces.clear();
      head.alias_of = buffers.front().name;
      buffers.push_back(std::move(head));
    }
    side.push_back(std::move(buffers));
  }
  return side;
}

}  // namespace headrace
