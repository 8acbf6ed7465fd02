#include "planner/cost/testing/clusters.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace headrace {
namespace {

int Draw(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
}

struct Part {
  Index row = 0, column = 0, rows = 0, columns = 0;
};

Part PartOf(Index rows, Index columns, Cut cut, int shard) {
  Part part{0, 0, rows, columns};
  if (cut.axis == 0) {
    part.rows = rows / cut.shards;
    part.row = shard * part.rows;
  } else if (cut.axis == 1) {
    part.columns = columns / cut.shards;
    part.column = shard * part.columns;
  }
  return part;
}

std::vector<Buffer> BuffersOf(const std::string& name, Index rows, Index columns, Cut cut) {
  std::vector<Buffer> buffers;
  for (int shard = 0; shard < cut.shards; ++shard) {
    const Part part = PartOf(rows, columns, cut, shard);
    Buffer buffer;
    buffer.rank = shard;
    buffer.name = name;
    buffer.shape = {part.rows, part.columns};
    buffer.strides = {part.columns, 1};
    Piece piece;
    piece.tensor = name;
    piece.tensor_offset = {part.row, part.column};
    piece.shape = buffer.shape;
    piece.buffer_offset = {0, 0};
    buffer.pieces.push_back(piece);
    buffers.push_back(buffer);
  }
  return buffers;
}

RankGroup RandomGroup(std::mt19937_64& random, int shards, int ranks) {
  RankGroup group;
  for (int shard = 0; shard < shards; ++shard) {
    std::set<int32_t> members;
    const int size = Draw(random, 1, 3);
    for (int i = 0; i < size; ++i) members.insert(Draw(random, 0, ranks - 1));
    group.shards.emplace_back(members.begin(), members.end());
  }
  return group;
}

SideShape RandomSide(std::mt19937_64& random) {
  SideShape side;
  side.ranks = Draw(random, 1, 9);
  side.ranks_per_host = Draw(random, 1, 4);
  side.ranks_per_domain = side.ranks_per_host * Draw(random, 1, 2);
  return side;
}

}  // namespace

ClusterUnit UnitOf(const std::string& name, Index rows, Index columns, Cut source, Cut destination) {
  ClusterUnit unit;
  unit.unit.name = name;
  unit.manifest.tensors = {{name, {rows, columns}, Dtype::kBF16}};
  unit.manifest.source = BuffersOf(name, rows, columns, source);
  unit.manifest.destination = BuffersOf(name, rows, columns, destination);
  return unit;
}

Cluster RandomCluster(std::mt19937_64& random) {
  Cluster cluster;
  cluster.source = RandomSide(random);
  cluster.destination = RandomSide(random);
  const int stages = Draw(random, 1, std::min<int>(3, cluster.source.ranks));
  for (int32_t rank = 0; rank < cluster.source.ranks; ++rank) {
    cluster.source_stage.push_back(rank * stages / cluster.source.ranks);
  }
  const int units = Draw(random, 1, 3);
  for (int u = 0; u < units; ++u) {
    const Cut source{Draw(random, 1, 4), Draw(random, -1, 1)};
    const Cut destination{Draw(random, 1, 4), Draw(random, -1, 1)};
    // 12 divides by 1 to 4.
    const Index columns = 12 * Draw(random, 1, 6);
    cluster.units.push_back(UnitOf("t" + std::to_string(u), 12, columns, source, destination));
    ClusterUnit& unit = cluster.units.back();
    const int source_groups = Draw(random, 1, 3);
    const int destination_groups = Draw(random, 1, 2);
    for (int g = 0; g < source_groups; ++g) {
      unit.source_groups.push_back(RandomGroup(random, source.shards, cluster.source.ranks));
    }
    for (int g = 0; g < destination_groups; ++g) {
      unit.destination_groups.push_back(RandomGroup(random, destination.shards, cluster.destination.ranks));
    }
    const int instances = Draw(random, 1, 5);
    for (int i = 0; i < instances; ++i) {
      UnitInstance instance;
      instance.layer = i;
      instance.source_group = Draw(random, 0, source_groups - 1);
      instance.destination_group = Draw(random, 0, destination_groups - 1);
      unit.instances.push_back(instance);
    }
  }
  return cluster;
}

Traffic RandomTraffic(const Cluster& cluster, std::mt19937_64& random) {
  Traffic traffic;
  traffic.source_ranks = cluster.source.ranks;
  for (int32_t rank = 0; rank < cluster.source.ranks; ++rank) {
    traffic.host.push_back(rank / cluster.source.ranks_per_host);
    traffic.domain.push_back(rank / cluster.source.ranks_per_domain);
    traffic.rail.push_back(RailOf(cluster.source, rank));
  }
  for (int32_t rank = 0; rank < cluster.destination.ranks; ++rank) {
    traffic.host.push_back(1000 + rank / cluster.destination.ranks_per_host);
    traffic.domain.push_back(1000 + rank / cluster.destination.ranks_per_domain);
    traffic.rail.push_back(RailOf(cluster.destination, rank));
  }
  for (const ClusterUnit& unit : cluster.units) {
    for (const UnitInstance& instance : unit.instances) {
      // Elements by who holds and who wants them.
      std::map<std::pair<std::set<int32_t>, std::set<int32_t>>, Index> elements;
      const Extents& shape = unit.manifest.tensors[0].shape;
      for (Index row = 0; row < shape[0]; ++row) {
        for (Index column = 0; column < shape[1]; ++column) {
          const auto ranks_with = [&](const std::vector<Buffer>& buffers, const RankGroup& group) {
            std::set<int32_t> ranks;
            for (const Buffer& buffer : buffers) {
              const Piece& piece = buffer.pieces[0];
              if (row < piece.tensor_offset[0] || row >= piece.tensor_offset[0] + piece.shape[0]) continue;
              if (column < piece.tensor_offset[1] || column >= piece.tensor_offset[1] + piece.shape[1]) continue;
              const std::vector<int32_t>& members = group.shards[buffer.rank];
              ranks.insert(members.begin(), members.end());
            }
            return ranks;
          };
          ++elements[{ranks_with(unit.manifest.source, unit.source_groups[instance.source_group]),
                      ranks_with(unit.manifest.destination, unit.destination_groups[instance.destination_group])}];
        }
      }
      for (const auto& [ranks, count] : elements) {
        const std::vector<int32_t> holders(ranks.first.begin(), ranks.first.end());
        std::vector<int32_t> wanting(ranks.second.begin(), ranks.second.end());
        std::shuffle(wanting.begin(), wanting.end(), random);
        Flow flow{count * 2, Draw(random, 0, 5), {}};
        const int32_t from = holders[random() % holders.size()];
        for (size_t i = 0; i < wanting.size(); ++i) {
          const int parent = Draw(random, -1, static_cast<int>(i) - 1);
          flow.hops.push_back({parent < 0 ? from : flow.hops[parent].to, cluster.source.ranks + wanting[i], parent});
        }
        traffic.flows.push_back(std::move(flow));
      }
    }
  }
  std::shuffle(traffic.flows.begin(), traffic.flows.end(), random);
  return traffic;
}

}  // namespace headrace
