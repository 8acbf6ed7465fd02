#include "planner/cluster/cluster_reference.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "planner/layout/oracle.h"
#include "planner/layout/placement.h"

namespace headrace {
namespace {

using oracle::Array;

struct Place {
  Index pp = 0, tp = 0, ep = 0, etp = 0;
};

Place PlaceOfRank(const ParallelLayout& l, Index rank) {
  Place place;
  place.tp = rank % l.tp;
  Index in_stage = 0;
  if (l.data_outermost) {
    place.pp = rank / l.tp % l.pp;
    in_stage = rank / (l.tp * l.pp) * l.tp + place.tp;
  } else {
    const Index stage_ranks = l.tp * l.cp * l.dp;
    place.pp = rank / stage_ranks;
    in_stage = rank % stage_ranks;
  }
  place.etp = in_stage % l.etp;
  place.ep = in_stage / l.etp % l.ep;
  return place;
}

std::set<Index> MegatronLayers(const MegatronLayout& l, Index layers, Index stage) {
  const Index pp = l.parallel.pp;
  std::vector<Index> sizes(pp);
  Index left = layers, shared = pp;
  if (l.layers_first) sizes[0] = *l.layers_first, left -= sizes[0], --shared;
  if (l.layers_last) sizes[pp - 1] = *l.layers_last, left -= sizes[pp - 1], --shared;
  for (Index s = l.layers_first ? 1 : 0, dealt = 0; dealt < shared; ++s, ++dealt) {
    sizes[s] = left / shared + (dealt < left % shared ? 1 : 0);
  }
  std::set<Index> mine;
  Index layer = 0;
  for (Index v = 0; v < l.vpp; ++v) {
    for (Index s = 0; s < pp; ++s) {
      for (Index i = 0; i < sizes[s] / l.vpp; ++i, ++layer) {
        if (s == stage) mine.insert(layer);
      }
    }
  }
  return mine;
}

// vllm/distributed/utils.py, get_pp_indices.
std::set<Index> VllmLayers(Index layers, Index pp, Index stage) {
  std::vector<Index> partitions(pp, layers / pp);
  for (Index i = 2; i < layers % pp + 2; ++i) ++partitions[pp - i];
  std::set<Index> mine;
  Index layer = 0;
  for (Index s = 0; s < pp; ++s) {
    for (Index i = 0; i < partitions[s]; ++i, ++layer) {
      if (s == stage) mine.insert(layer);
    }
  }
  return mine;
}

bool RankHasUnit(const ModelUnit& unit, Index pp, Index stages) {
  const bool first = pp == 0, last = pp == stages - 1;
  return unit.place == UnitPlace::kFirst ? first : unit.place == UnitPlace::kLast ? last : first || last;
}

class Reference {
 public:
  Reference(const Model& model, const JobLayout& layout, bool source, Index rank,
            const std::vector<TensorSpec>& tensors)
      : model_(model), layout_(layout), source_(source), rank_(rank), tensors_(tensors) {}

  std::map<std::string, std::vector<Index>> Run() {
    const auto* fsdp = source_ ? std::get_if<FsdpLayout>(&layout_.trainer) : nullptr;
    for (const ModelUnit& unit : model_.units) {
      if (unit.draft) continue;
      if (fsdp != nullptr) {
        AddFsdp(unit, *fsdp);
      } else {
        AddParallel(unit);
      }
    }
    return std::move(out_);
  }

 private:
  Array Tensor(const ModelUnit& unit, const UnitTensor& tensor, Index layer, Index expert) const {
    const std::string name =
        absl::StrReplaceAll(tensor.name, {{"{layer}", absl::StrCat(layer)}, {"{expert}", absl::StrCat(expert)}});
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (tensors_[t].name != name) continue;
      Array whole = oracle::Whole(tensors_[t].shape, static_cast<Index>(t));
      if (!unit.stacked) return whole;
      whole = oracle::Slice(whole, 0, expert, 1);
      return oracle::Reshape(whole, tensor.shape);
    }
    std::abort();  // the test's checkpoint lacks it
  }

  void Store(std::string name, Index layer, Index expert, const Array& array) {
    if (array.values.empty()) return;
    name = absl::StrReplaceAll(name, {{"{layer}", absl::StrCat(layer)}, {"{expert}", absl::StrCat(expert)}});
    std::vector<Index>& values = out_[name];
    values.insert(values.end(), array.values.begin(), array.values.end());  // experts one after the other
  }

  static std::string Stacked(const std::string& name) { return absl::StrReplaceAll(name, {{".{expert}", ""}}); }
  static std::string OfExpert(const std::string& name) {
    return absl::StrContains(name, "{expert}") ? name : name + ".{expert}";
  }

  void AddFsdp(const ModelUnit& unit, const FsdpLayout& l) {
    const Index t = rank_ % l.tp, s = rank_ / l.tp % l.shards;
    const std::vector<Index> owners = oracle::Owners(unit.experts, l.shards, ChunkRule::kCeil);
    const bool outside = unit.place != UnitPlace::kLayers;
    for (const Index layer : outside ? std::vector<Index>{-1} : unit.layers) {
      for (Index e = 0; e < std::max<Index>(unit.experts, 1); ++e) {
        if (unit.stacked && owners[e] != s) continue;
        for (const UnitTensor& tensor : unit.tensors) {
          Array array = Tensor(unit, tensor, layer, e);
          const bool plain =
              tensor.cut_axis >= 0 && tensor.view.empty() && tensor.parts.size() < 2 && tensor.groups == 0;
          // DTensor: TP first, then FSDP along axis 0 (of all experts, where they are stacked).
          if (plain) {
            array = oracle::Take(array, tensor.cut_axis,
                                 oracle::PositionsOf(array.shape[tensor.cut_axis], l.tp, t, 1, ChunkRule::kCeil));
          }
          if (!unit.stacked) {
            array = oracle::Take(array, 0, oracle::PositionsOf(array.shape[0], l.shards, s, 1, ChunkRule::kCeil));
          }
          Store(unit.experts > 0 && !unit.stacked ? OfExpert(tensor.name) : tensor.name, layer, e, array);
        }
      }
    }
  }

  void AddParallel(const ModelUnit& unit) {
    const auto* megatron = std::get_if<MegatronLayout>(&layout_.trainer);
    // Engines are numbered one after the other.
    Index rank = rank_;
    size_t engine = 0;
    const auto ranks_of = [](const ParallelLayout& p) { return p.tp * p.dp * p.pp; };
    while (!source_ && rank >= ranks_of(layout_.engines[engine].parallel)) {
      rank -= ranks_of(layout_.engines[engine++].parallel);
    }
    const ParallelLayout& l = source_ ? megatron->parallel : layout_.engines[engine].parallel;
    const Place place = PlaceOfRank(l, rank);
    std::vector<Index> layers;
    if (unit.place == UnitPlace::kLayers) {
      const std::set<Index> mine =
          source_ ? MegatronLayers(*megatron, model_.layers, place.pp) : VllmLayers(model_.layers, l.pp, place.pp);
      for (const Index layer : unit.layers) {
        if (mine.contains(layer)) layers.push_back(layer);
      }
    } else if (RankHasUnit(unit, place.pp, l.pp)) {
      layers = {-1};
    }
    const std::vector<Index> owners = oracle::Owners(unit.experts, l.ep, ChunkRule::kEven);
    const Index tp = unit.experts > 0 ? l.etp : l.tp, r = unit.experts > 0 ? place.etp : place.tp;
    for (const Index layer : layers) {
      for (Index e = 0; e < std::max<Index>(unit.experts, 1); ++e) {
        if (unit.experts == 0 || owners[e] == place.ep) AddInstance(unit, layer, e, tp, r);
      }
    }
  }

  void AddInstance(const ModelUnit& unit, Index layer, Index expert, Index tp, Index r) {
    std::set<int> fused;
    for (const FusedBuffer& buffer : source_ ? unit.trainer : unit.engine) {
      std::vector<Array> arrays, scales;
      std::string suffix;
      for (const int t : buffer.tensors) {
        fused.insert(t);
        const int s = ScaleOf(unit, t);
        if (buffer.groups > 0) {  // np.concatenate([x.reshape(groups, -1, ...)]), part by part
          const Array ordered = PartByPart(unit.tensors[t], Tensor(unit, unit.tensors[t], layer, expert));
          Index first = 0;
          for (const RowPart& part : unit.tensors[t].parts) {
            Array rows = oracle::Slice(ordered, 0, first, part.units * part.rows);
            first += part.units * part.rows;
            Extents shape = rows.shape;
            shape[0] /= buffer.groups;
            shape.insert(shape.begin(), buffer.groups);
            arrays.push_back(oracle::Reshape(rows, shape));
          }
          continue;
        }
        arrays.push_back(Local(unit, t, layer, expert, tp, r));
        if (s >= 0 && !source_) {
          scales.push_back(LocalScale(unit, t, s, layer, expert, tp, r));
          suffix = absl::EndsWith(unit.tensors[s].name, "_scale_inv") ? "_scale_inv" : "_scale";
        }
      }
      Array joined = oracle::Concatenate(arrays, buffer.groups > 0 ? 1 : buffer.axis);
      if (buffer.groups > 0) {
        Extents shape(joined.shape.begin() + 1, joined.shape.end());
        shape[0] *= buffer.groups;
        joined = oracle::Reshape(joined, shape);
        joined = oracle::Slice(joined, 0, r * (shape[0] / tp), shape[0] / tp);
      }
      Store(BufferName(unit, buffer.name), layer, expert, joined);
      if (!scales.empty()) Store(BufferName(unit, buffer.name + suffix), layer, expert, oracle::Concatenate(scales, 0));
    }
    for (size_t t = 0; t < unit.tensors.size(); ++t) {
      const UnitTensor& tensor = unit.tensors[t];
      if (fused.contains(static_cast<int>(t))) continue;
      if (tensor.scale_of < 0 || source_) {
        Store(BufferName(unit, tensor.name), layer, expert, Local(unit, static_cast<int>(t), layer, expert, tp, r));
      } else if (!fused.contains(tensor.scale_of)) {
        Store(BufferName(unit, tensor.name), layer, expert,
              LocalScale(unit, tensor.scale_of, static_cast<int>(t), layer, expert, tp, r));
      }
    }
  }

  std::string BufferName(const ModelUnit& unit, const std::string& name) const {
    if (unit.experts == 0) return name;
    return source_ ? OfExpert(name) : Stacked(name);
  }

  static int ScaleOf(const ModelUnit& unit, int t) {
    for (size_t s = 0; s < unit.tensors.size(); ++s) {
      if (unit.tensors[s].scale_of == t) return static_cast<int>(s);
    }
    return -1;
  }

  // A trainer's order of what the checkpoint has group by group.
  Array PartByPart(const UnitTensor& tensor, const Array& array) const {
    if (tensor.groups == 0 || !source_) return array;
    const Index in_group = array.shape[tensor.cut_axis] / tensor.groups;
    std::vector<Index> positions;
    Index before = 0;  // rows of a group that earlier parts have
    for (const RowPart& part : tensor.parts) {
      const Index rows = part.units * part.rows / tensor.groups;
      for (Index g = 0; g < tensor.groups; ++g) {
        for (Index i = 0; i < rows; ++i) positions.push_back(g * in_group + before + i);
      }
      before += rows;
    }
    return oracle::Take(array, tensor.cut_axis, positions);
  }

  // Row by row: whose is it?
  std::vector<Index> Positions(const UnitTensor& tensor, Index extent, Index tp, Index r) const {
    std::vector<RowPart> parts = tensor.parts;
    if (parts.empty()) parts = {{extent, 1}};
    if (tensor.groups > 0 && !source_) parts = {{tensor.groups, extent / tensor.groups}};
    std::vector<Index> positions;
    Index row = 0;
    for (const RowPart& part : parts) {
      for (Index unit = 0; unit < part.units; ++unit) {
        const bool mine = part.units >= tp ? unit / (part.units / tp) == r : r / (tp / part.units) == unit;
        for (Index i = 0; i < part.rows; ++i, ++row) {
          if (mine) positions.push_back(row);
        }
      }
    }
    return positions;
  }

  static Extents ViewOf(const UnitTensor& tensor) { return tensor.view.empty() ? tensor.shape : tensor.view; }

  Array Local(const ModelUnit& unit, int t, Index layer, Index expert, Index tp, Index r) const {
    const UnitTensor& tensor = unit.tensors[t];
    Array array = oracle::Reshape(Tensor(unit, tensor, layer, expert), ViewOf(tensor));
    if (tensor.vocabulary) {
      const Index multiple = source_ ? 128 * tp : 64;
      Extents missing = array.shape;
      missing[0] = (array.shape[0] + multiple - 1) / multiple * multiple - array.shape[0];
      array = oracle::Concatenate({array, oracle::Filled(missing, source_ ? oracle::kKeepFill : oracle::kZeroFill)});
      return oracle::Slice(array, 0, r * (array.shape[0] / tp), array.shape[0] / tp);
    }
    if (tensor.cut_axis < 0) return array;
    const Index extent = array.shape[tensor.cut_axis];
    return oracle::Take(PartByPart(tensor, array), tensor.cut_axis, Positions(tensor, extent, tp, r));
  }

  Array LocalScale(const ModelUnit& unit, int weight, int scale, Index layer, Index expert, Index tp, Index r) const {
    const UnitTensor &w = unit.tensors[weight], &s = unit.tensors[scale];
    const Array array = oracle::Reshape(Tensor(unit, s, layer, expert), ViewOf(s));
    if (w.cut_axis < 0) return array;
    std::vector<Index> blocks;
    for (const Index p : Positions(w, ViewOf(w)[w.cut_axis], tp, r)) {
      const Index block = p / s.block[w.cut_axis];
      if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
    }
    return oracle::Take(array, w.cut_axis, blocks);
  }

  const Model& model_;
  const JobLayout& layout_;
  const bool source_;
  const Index rank_;
  const std::vector<TensorSpec>& tensors_;
  std::map<std::string, std::vector<Index>> out_;
};

}  // namespace

std::map<std::string, std::vector<Index>> ReferenceRank(const Model& model, const JobLayout& layout, ClusterSide side,
                                                        Index rank, const std::vector<TensorSpec>& tensors) {
  return Reference(model, layout, side == ClusterSide::kSource, rank, tensors).Run();
}

}  // namespace headrace
