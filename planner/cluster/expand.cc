#include "planner/cluster/expand.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr int kNone = -1;

// A unit's tensors by name, and the buffers of each of a side's shards.
class UnitIndex {
 public:
  UnitIndex(const ClusterUnit& unit, ClusterSide side) : unit_(unit) {
    for (const TensorSpec& tensor : unit.manifest.tensors) shapes_[tensor.name] = &tensor.shape;
    for (const Buffer& buffer : side == ClusterSide::kSource ? unit.manifest.source : unit.manifest.destination) {
      by_shard_[buffer.rank].push_back(&buffer);
    }
  }

  const std::vector<const Buffer*>& BuffersOf(int shard) const {
    static const auto* const kNothing = new std::vector<const Buffer*>;
    const auto it = by_shard_.find(shard);
    return it == by_shard_.end() ? *kNothing : it->second;
  }

  // A piece of an instance. `stacked`: of a buffer that is stacked over experts, at place `local`.
  Piece Instance(Piece piece, const UnitInstance& instance, bool stacked, Index local) const {
    if (piece.kind == PieceKind::kTensor) {
      const bool whole = unit_.unit.stacked;  // the tensor has all experts of the layer
      Extents view = piece.view ? *piece.view : *shapes_.at(piece.tensor);
      if (stacked) {
        view.insert(view.begin(), whole ? unit_.unit.experts : 1);
        piece.tensor_offset.insert(piece.tensor_offset.begin(), whole ? instance.expert : 0);
        piece.shape.insert(piece.shape.begin(), 1);
        if (!piece.axes.empty()) {
          for (int& axis : piece.axes) ++axis;
          piece.axes.insert(piece.axes.begin(), 0);
        }
        if (whole && !piece.view) view.clear();  // the tensor's own axes
      } else if (whole) {
        piece.tensor_offset[0] += instance.expert * view[0];
        view[0] *= unit_.unit.experts;
      } else if (!piece.view) {
        view.clear();
      }
      piece.view = view.empty() ? std::nullopt : std::optional(view);
      piece.tensor = InstanceName(piece.tensor, instance.layer, instance.expert);
    } else if (stacked) {
      piece.shape.insert(piece.shape.begin(), 1);
    }
    if (stacked) piece.buffer_offset.insert(piece.buffer_offset.begin(), local);
    return piece;
  }

  // A shard's buffers of one instance.
  void Add(std::vector<Buffer>& out, int64_t rank, int shard, const UnitInstance& instance) const {
    for (const Buffer* of_unit : BuffersOf(shard)) {
      Buffer& buffer = out.emplace_back(*of_unit);
      buffer.rank = rank;
      buffer.name = InstanceName(buffer.name, instance.layer, instance.expert);
      for (Piece& piece : buffer.pieces) piece = Instance(std::move(piece), instance, false, 0);
    }
  }

  // A shard's buffers of a layer's experts; experts[i] is at place i.
  void AddStacked(std::vector<Buffer>& out, int64_t rank, int shard,
                  const std::vector<const UnitInstance*>& experts) const {
    for (const Buffer* of_unit : BuffersOf(shard)) {
      Buffer& buffer = out.emplace_back(*of_unit);
      buffer.rank = rank;
      buffer.name = InstanceName(buffer.name, experts[0]->layer, kNone);
      buffer.shape.insert(buffer.shape.begin(), static_cast<Index>(experts.size()));
      buffer.strides = RowMajorStrides(buffer.shape);
      buffer.pieces.clear();
      for (size_t i = 0; i < experts.size(); ++i) {
        for (const Piece& piece : of_unit->pieces) {
          buffer.pieces.push_back(Instance(piece, *experts[i], true, static_cast<Index>(i)));
        }
      }
    }
  }

 private:
  const ClusterUnit& unit_;
  std::map<std::string, const Extents*> shapes_;
  std::map<int64_t, std::vector<const Buffer*>> by_shard_;
};

// The rank's shard of each group; kNone of groups that it is not in.
std::vector<int> ShardsOf(const std::vector<RankGroup>& groups, int32_t rank) {
  std::vector<int> shards(groups.size(), kNone);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t s = 0; s < groups[g].shards.size(); ++s) {
      const std::vector<int32_t>& ranks = groups[g].shards[s];
      if (std::binary_search(ranks.begin(), ranks.end(), rank)) shards[g] = static_cast<int>(s);
    }
  }
  return shards;
}

void AddUnit(std::vector<Buffer>& out, const ClusterUnit& unit, const UnitIndex& index, ClusterSide side,
             int32_t rank) {
  const bool source = side == ClusterSide::kSource;
  const std::vector<int> shards = ShardsOf(source ? unit.source_groups : unit.destination_groups, rank);
  const auto group_of = [&](const UnitInstance& i) { return source ? i.source_group : i.destination_group; };
  if (!(source ? unit.source_stacked : unit.destination_stacked)) {
    for (const UnitInstance& instance : unit.instances) {
      const int shard = shards[group_of(instance)];
      if (shard != kNone) index.Add(out, rank, shard, instance);
    }
    return;
  }
  struct Layer {
    int shard = kNone;
    std::vector<const UnitInstance*> experts;
  };
  std::map<std::pair<int32_t, int>, Layer> layers;  // by layer and shard
  for (const UnitInstance& instance : unit.instances) {
    const int shard = shards[group_of(instance)];
    if (shard == kNone) continue;
    Layer& layer = layers[{instance.layer, shard}];
    layer.shard = shard;
    const size_t place = source ? SourcePlace(unit, instance, shard) : DestinationPlace(unit, instance, shard);
    if (layer.experts.size() <= place) layer.experts.resize(place + 1);
    layer.experts[place] = &instance;
  }
  for (const auto& [key, layer] : layers) index.AddStacked(out, rank, layer.shard, layer.experts);
}

void PlaceRanks(std::vector<Placement>& placements, const std::string& side, const SideShape& shape) {
  for (int32_t rank = 0; rank < shape.ranks; ++rank) {
    placements.push_back({rank, absl::StrCat(side, rank / shape.ranks_per_host),
                          absl::StrCat(side, "_domain", rank / shape.ranks_per_domain), ""});
  }
}

// Calls visit for each tensor of each instance, once for all experts of a layer where the checkpoint has them in one.
template <typename F>
void ForEachInstance(const ClusterUnit& unit, F&& visit) {
  for (const UnitInstance& instance : unit.instances) {
    if (!unit.unit.stacked || instance.expert <= 0) visit(instance);
  }
}

}  // namespace

absl::StatusOr<std::vector<Buffer>> RankBuffers(const Cluster& cluster, ClusterSide side, int32_t rank) {
  const bool source = side == ClusterSide::kSource;
  const int32_t ranks = source ? cluster.source.ranks : cluster.destination.ranks;
  if (rank < 0 || rank >= ranks) {
    return Error(ErrorCode::kOutOfBounds,
                 absl::StrCat(source ? "source" : "destination", " rank ", rank, " of ", ranks));
  }
  std::vector<Buffer> buffers;
  for (const ClusterUnit& unit : cluster.units) AddUnit(buffers, unit, UnitIndex(unit, side), side, rank);
  return buffers;
}

std::vector<TensorSpec> ClusterTensors(const Cluster& cluster) {
  std::vector<TensorSpec> tensors;
  for (const ClusterUnit& unit : cluster.units) {
    ForEachInstance(unit, [&](const UnitInstance& instance) {
      for (const TensorSpec& of_unit : unit.manifest.tensors) {
        TensorSpec& tensor = tensors.emplace_back(of_unit);
        tensor.name = InstanceName(tensor.name, instance.layer, instance.expert);
        if (unit.unit.stacked) tensor.shape.insert(tensor.shape.begin(), unit.unit.experts);
      }
    });
  }
  return tensors;
}

Manifest ExpandManifest(const Cluster& cluster) {
  Manifest manifest;
  manifest.tensors = ClusterTensors(cluster);
  for (const ClusterUnit& unit : cluster.units) {
    ForEachInstance(unit, [&](const UnitInstance& instance) {
      for (const Coupling& of_unit : unit.manifest.coupled) {
        Coupling& coupling = manifest.coupled.emplace_back(of_unit);
        coupling.weight = InstanceName(coupling.weight, instance.layer, instance.expert);
        coupling.scale = InstanceName(coupling.scale, instance.layer, instance.expert);
        if (unit.unit.stacked) coupling.block.insert(coupling.block.begin(), 1);
      }
    });
  }
  for (const ClusterSide side : {ClusterSide::kSource, ClusterSide::kDestination}) {
    const bool source = side == ClusterSide::kSource;
    std::vector<UnitIndex> indices;
    for (const ClusterUnit& unit : cluster.units) indices.emplace_back(unit, side);
    std::vector<Buffer>& out = source ? manifest.source : manifest.destination;
    for (int32_t rank = 0; rank < (source ? cluster.source.ranks : cluster.destination.ranks); ++rank) {
      for (size_t u = 0; u < cluster.units.size(); ++u) AddUnit(out, cluster.units[u], indices[u], side, rank);
    }
  }
  PlaceRanks(manifest.topology.source, "source", cluster.source);
  PlaceRanks(manifest.topology.destination, "destination", cluster.destination);
  if (cluster.engine_borders.empty()) return manifest;
  for (Placement& placed : manifest.topology.destination) {
    const auto next = std::upper_bound(cluster.engine_borders.begin(), cluster.engine_borders.end(), placed.rank);
    placed.engine = absl::StrCat("engine", next - cluster.engine_borders.begin());
  }
  return manifest;
}

}  // namespace headrace
