#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/layout/flat.h"
#include "planner/layout/row_parts.h"
#include "planner/status.h"
#include "tests/layouts/rank_arrays.h"
#include "tests/layouts/sides.h"

namespace headrace {
namespace {

// One rank of a Megatron-like trainer. Its weights are cut anywhere; scales, if any, are whole on every rank.
class TrainerRank {
 public:
  TrainerRank(const TinyModel& model, const Checkpoint& checkpoint, const TrainerOptions& options,
              const RankPlace& place)
      : m_(model),
        c_(checkpoint),
        o_(options),
        place_(place),
        linear_(model.block > 0 ? Dtype::kF8E4M3 : Dtype::kBF16) {}

  void AddVocabulary(const std::string& name, const std::string& tensor) {
    out_.Add(name, Dtype::kBF16,
             Rows(PadToMultiple(c_.Get(tensor).weight, 0, o_.vocab_multiple * o_.layout.tp, PieceKind::kKeep)));
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
    const PieceArray both = Concatenate({Weight(n, "gate"), Weight(n, "up")}, 0);
    AddLinear(n, "fc1", Take(both, 0, Cut({{m_.inter, 1}, {m_.inter, 1}})));
    AddLinear(n, "fc2", Columns(Weight(n, "down")));
  }

  const RankArrays& arrays() const { return out_; }

 private:
  PieceArray Weight(Index n, const std::string& name) {
    const ScaledArray tensor = c_.Get(InLayer(n, name));
    if (tensor.scale) out_.Add(InLayer(n, name + ".scale"), Dtype::kF32, *tensor.scale);
    return tensor.weight;
  }
  void AddLinear(Index n, const std::string& name, PieceArray array) {
    out_.Add(InLayer(n, "linear_" + name), linear_, std::move(array));
  }
  PieceArray Rows(const PieceArray& a) const {
    return LocalPart(a, {{o_.layout.tp}, {"tp"}}, {Shard{0, ChunkRule::kEven}}, {place_.tp});
  }
  PieceArray Columns(const PieceArray& a) const {
    return LocalPart(a, {{o_.layout.tp}, {"tp"}}, {Shard{1, ChunkRule::kEven}}, {place_.tp});
  }
  absl::StatusOr<Segments> Cut(const std::vector<RowPart>& parts) const {
    return CutParts(parts, o_.layout.tp, place_.tp);
  }
  void AddCut(Index n, const std::string& name, const std::vector<RowPart>& parts) {
    const std::string tensor = InLayer(n, name);
    out_.Add(tensor, c_.DtypeOf(tensor), Take(c_.Get(tensor).weight, 0, Cut(parts)));
  }

  // linear_qkv: by KV heads, cut anywhere.
  void AddAttention(Index n) {
    const std::vector<RowPart> parts = {
        {m_.heads, m_.head_dim}, {m_.kv_heads, m_.head_dim}, {m_.kv_heads, m_.head_dim}};
    const PieceArray qkv = Concatenate({Weight(n, "q"), Weight(n, "k"), Weight(n, "v")}, 0);
    AddLinear(n, "qkv", Rows(Take(qkv, 0, ByGroups(parts, m_.kv_heads))));
    AddLinear(n, "proj", Columns(Weight(n, "o")));
  }

  void AddMla(Index n) {
    AddLinear(n, "q_down", Weight(n, "q_a"));
    AddLinear(n, "kv_down", Weight(n, "kv_a_with_mqa"));
    AddWhole(InLayer(n, "q_a_norm"));
    AddWhole(InLayer(n, "kv_a_norm"));
    AddLinear(n, "q_up", Take(Weight(n, "q_b"), 0, Cut({{m_.heads, m_.nope + m_.rope}})));
    AddLinear(n, "kv_up", Take(Weight(n, "kv_b"), 0, Cut({{m_.heads, m_.nope + m_.v_dim}})));
    AddLinear(n, "proj", Columns(Weight(n, "o")));
  }

  void AddMamba(Index n) {
    const RowPart inner = {m_.m_heads, m_.m_head_dim}, group = {m_.groups, m_.state}, each = {m_.m_heads, 1};
    AddLinear(n, "in_proj", Take(Weight(n, "in_proj"), 0, Cut({inner, inner, group, group, each})));
    AddCut(n, "conv1d", {inner, group, group});
    AddCut(n, "conv1d_bias", {inner, group, group});
    for (const char* name : {"A_log", "D", "dt_bias"}) AddCut(n, name, {each});
    AddCut(n, "ssm_norm", {inner});
    AddLinear(n, "out_proj", Columns(Weight(n, "out_proj")));
  }

  // One in_proj of q k v z b a, each cut by heads, whichever way the checkpoint has them.
  void AddGatedDelta(Index n) {
    const RowPart k = {m_.k_heads, m_.k_dim}, v = {m_.v_heads, m_.d_v_dim}, each = {m_.v_heads, 1};
    const Segment all = {0, m_.k_heads};
    std::vector<PieceArray> parts;
    if (m_.by_groups) {
      parts = {Take(Weight(n, "in_proj_qkvz"), 0, ByParts({k, k, v, v}, m_.k_heads, all)),
               Take(Weight(n, "in_proj_ba"), 0, ByParts({each, each}, m_.k_heads, all))};
    } else {
      parts = {Weight(n, "in_proj_qkv"), Weight(n, "in_proj_z"), Weight(n, "in_proj_b"), Weight(n, "in_proj_a")};
    }
    AddLinear(n, "in_proj", Take(Concatenate(parts, 0), 0, Cut({k, k, v, v, each, each})));
    AddCut(n, "conv1d", {k, k, v});
    for (const char* name : {"A_log", "dt_bias"}) AddCut(n, name, {each});
    AddWhole(InLayer(n, "ssm_norm"));
    AddLinear(n, "out_proj", Columns(Weight(n, "out_proj")));
  }

  void AddExperts(Index n) {
    AddWhole(InLayer(n, "router"));
    const auto mine = ExpertsOf(m_.experts, o_.layout.ep, place_.ep);
    auto part = [&](const char* what, int axis) {
      const ScaledArray experts = Take(c_.Experts(n, what), 0, mine);
      if (experts.scale) {
        out_.Add(InLayer(n, absl::StrCat("experts.", what, ".scale")), Dtype::kF32, *experts.scale, true);
      }
      return LocalPart(experts.weight, {{o_.layout.etp}, {"etp"}}, {Shard{axis, ChunkRule::kEven}}, {place_.etp});
    };
    const PieceArray gate = part("gate", 1), up = part("up", 1), down = part("down", 2);
    AddExpertBuffers(n, "experts.fc1", FuseGateUp(gate, up, 1, GateUpOrder::kGateFirst, GateUpRows::kStacked));
    AddExpertBuffers(n, "experts.fc2", down);
  }

  void AddExpertBuffers(Index n, const std::string& name, PieceArray experts) {
    if (o_.experts_turned) experts = Transpose(experts, {0, 2, 1});
    if (o_.experts_stacked || !experts.status.ok()) return out_.Add(InLayer(n, name), linear_, experts, true);
    for (Index e = 0; e < experts.shape[0]; ++e) {
      out_.Add(InLayer(n, absl::StrCat(name, ".weight", e)), linear_, OneExpert(experts, e), true);
    }
  }

  const TinyModel& m_;
  const Checkpoint& c_;
  const TrainerOptions& o_;
  const RankPlace place_;
  const Dtype linear_;
  RankArrays out_;
};

// The shard of an optimizer that keeps the rank's arrays flat: a bucket per dtype for what all data and context
// replicas share, another one for what expert replicas share.
RankArrays FlatArrays(const RankArrays& weights, const TrainerOptions& o, const RankPlace& place) {
  std::map<std::pair<bool, Dtype>, std::vector<PieceArray>> buckets;
  for (const HeldArray& held : weights.arrays()) buckets[{held.expert, held.dtype}].push_back(held.array);
  const Index dense = o.layout.dp * o.layout.cp;
  RankArrays out;
  for (const auto& [key, arrays] : buckets) {
    const auto& [expert, dtype] = key;
    const Index parts = expert ? dense * o.layout.tp / (o.layout.ep * o.layout.etp) : dense;
    const Index part = expert ? place.edp : place.dp * o.layout.cp + place.cp;
    out.Add(absl::StrCat(expert ? "expert" : "dense", "_bucket_", DtypeName(dtype)), dtype,
            FlatShard(FlatBucket(arrays, o.flat_start, parts * o.flat_start), parts, part), expert);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<Buffer>>> TrainerSide(const TinyModel& m, const Checkpoint& checkpoint,
                                                             const TrainerOptions& o) {
  HR_ASSIGN_OR_RETURN(const Index ranks, RanksOf(o.layout));
  const Index layers = static_cast<Index>(m.mixers.size());
  HR_ASSIGN_OR_RETURN(const std::vector<Index> chunks, EvenStages(layers, o.layout.pp * o.vpp));
  std::vector<std::vector<Buffer>> side;
  for (Index rank = 0; rank < ranks; ++rank) {
    HR_ASSIGN_OR_RETURN(const RankPlace place, PlaceOf(o.layout, rank));
    HR_ASSIGN_OR_RETURN(const Segments mine, LayersOf(chunks, o.layout.pp, place.pp));
    TrainerRank out(m, checkpoint, o, place);
    if (place.pp == 0) out.AddVocabulary("word_embeddings", "embed");
    for (const Segment& run : mine) {
      for (Index i = 0; i < run.count; ++i) out.AddLayer(run.first + i);
    }
    if (place.pp == o.layout.pp - 1) {
      out.AddWhole("norm");
      // Tied embeddings are on both end stages.
      if (!m.tied || o.layout.pp > 1) out.AddVocabulary("output_layer", m.tied ? "embed" : "lm_head");
    }
    HR_ASSIGN_OR_RETURN(std::vector<Buffer> buffers,
                        (o.flat ? FlatArrays(out.arrays(), o, place) : out.arrays()).ToBuffers(rank));
    side.push_back(std::move(buffers));
  }
  return side;
}

absl::StatusOr<std::vector<std::vector<Buffer>>> PlacementSide(const Checkpoint& checkpoint, const Mesh& mesh,
                                                               Dtype master, std::mt19937_64& random) {
  HR_ASSIGN_OR_RETURN(const Index ranks, MeshSize(mesh));
  auto below = [&](Index n) { return static_cast<Index>(random() % static_cast<uint64_t>(n)); };
  std::vector<RankArrays> out(ranks);
  for (const TensorSpec& tensor : checkpoint.tensors()) {
    std::vector<MeshPlacement> placements;
    for (size_t d = 0; d < mesh.extents.size(); ++d) {
      const int axis = static_cast<int>(below(static_cast<Index>(tensor.shape.size())));
      const ChunkRule rule = below(4) == 0 ? ChunkRule::kEven : ChunkRule::kCeil;
      switch (below(4)) {
        case 0:
          placements.push_back(Replicate{});
          break;
        case 1:
          placements.push_back(StridedShard{axis, 1 + below(4), rule});
          break;
        default:
          placements.push_back(Shard{axis, rule});
      }
    }
    for (Index rank = 0; rank < ranks; ++rank) {
      HR_ASSIGN_OR_RETURN(const Extents coordinate, MeshCoordinate(mesh, rank));
      out[rank].Add(tensor.name, tensor.dtype == Dtype::kBF16 ? master : tensor.dtype,
                    LocalPart(Whole(tensor), mesh, placements, coordinate));
    }
  }
  std::vector<std::vector<Buffer>> side;
  for (Index rank = 0; rank < ranks; ++rank) {
    HR_ASSIGN_OR_RETURN(std::vector<Buffer> buffers, out[rank].ToBuffers(rank));
    for (Buffer& b : buffers) b.convert_rne = b.dtype != checkpoint.DtypeOf(b.name);
    side.push_back(std::move(buffers));
  }
  return side;
}

}  // namespace headrace
