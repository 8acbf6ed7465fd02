#include "planner/cluster/testing/random_cluster.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

bool Chance(Random& random, int percent) { return Uniform(random, 1, 100) <= percent; }

int Shards(const std::vector<Buffer>& buffers) {
  int64_t most = 0;
  for (const Buffer& b : buffers) most = std::max(most, b.rank);
  return static_cast<int>(most) + 1;
}

// As a stacked buffer's experts are: row-major, in a memory of their own.
void MakePlain(std::vector<Buffer>* buffers) {
  std::erase_if(*buffers, [](const Buffer& b) { return b.alias_of.has_value(); });
  for (Buffer& b : *buffers) {
    b.strides = RowMajorStrides(b.shape);
    b.storage.reset();
  }
}

// Shard pieces of a matrix by one axis; `shards` == 1: whole.
std::vector<Buffer> CutMatrix(const TensorSpec& tensor, int shards, size_t axis) {
  std::vector<Buffer> out;
  const Index extent = tensor.shape[axis];
  for (int s = 0; s < shards; ++s) {
    const Index begin = extent * s / shards, end = extent * (s + 1) / shards;
    Extents shape = tensor.shape, offset = {0, 0};
    shape[axis] = end - begin;
    offset[axis] = begin;
    out.push_back(BufferOf(s, tensor.name, tensor.dtype, shape, {PieceOf(tensor.name, offset, shape, {0, 0})}));
  }
  return out;
}

// Up to as many groups as there are ranks for; each shard gets one rank, the rest go anywhere or nowhere.
std::vector<RankGroup> RandomGroups(Random& random, Index ranks, int shards) {
  std::vector<int32_t> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const Index groups = Uniform(random, 1, ranks / shards);
  std::vector<RankGroup> out(groups, {std::vector<std::vector<int32_t>>(shards)});
  const bool all = Chance(random, 70);
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t place = i % static_cast<size_t>(groups * shards);
    if (i >= static_cast<size_t>(groups * shards) && !all && Chance(random, 50)) continue;
    out[place / shards].shards[place % shards].push_back(order[i]);
  }
  for (RankGroup& group : out) {
    for (std::vector<int32_t>& shard : group.shards) std::sort(shard.begin(), shard.end());
  }
  return out;
}

// In stacked buffers, behind up to two experts that nobody has.
void PlaceBehindOthers(Random& random, std::vector<RankGroup>* groups) {
  for (RankGroup& group : *groups) {
    if (Chance(random, 50)) continue;
    for (size_t s = 0; s < group.shards.size(); ++s) {
      group.experts_before.push_back(static_cast<int32_t>(Uniform(random, 0, 2)));
    }
  }
}

ClusterUnit RandomUnit(Random& random, const RandomClusterOptions& options, int number) {
  ClusterUnit unit;
  if (options.large && Chance(random, 60)) {
    const std::string name = Chance(random, 30) ? absl::StrCat("q_proj.", number) : absl::StrCat("w.", number);
    unit = MatrixUnit(name, Uniform(random, 1, 700), Uniform(random, 1, 350), static_cast<int>(Uniform(random, 1, 3)),
                      static_cast<int>(Uniform(random, 1, 4)));
  } else {
    RandomManifestOptions manifest;
    manifest.broadcast_percent = 30;
    unit.manifest = RandomManifest(random, manifest);
    unit.manifest.topology = {};
  }
  unit.unit.name = absl::StrCat("unit", number);
  unit.source_stacked = Chance(random, 25);
  unit.destination_stacked = Chance(random, 25);
  if (unit.source_stacked) MakePlain(&unit.manifest.source);
  if (unit.destination_stacked) MakePlain(&unit.manifest.destination);
  return unit;
}

}  // namespace

ClusterUnit MatrixUnit(const std::string& name, Index rows, Index columns, int source_shards, int destination_shards) {
  ClusterUnit unit;
  unit.unit.name = name;
  const TensorSpec tensor{name, {rows, columns}, Dtype::kBF16};
  unit.manifest.tensors = {tensor};
  unit.manifest.source = CutMatrix(tensor, source_shards, 0);
  unit.manifest.destination = CutMatrix(tensor, destination_shards, 1);
  return unit;
}

std::vector<RankGroup> EvenGroups(int groups, int shards, int replicas) {
  std::vector<RankGroup> out(groups, {std::vector<std::vector<int32_t>>(shards)});
  int32_t next = 0;
  for (RankGroup& group : out) {
    for (std::vector<int32_t>& shard : group.shards) {
      for (int r = 0; r < replicas; ++r) shard.push_back(next++);
    }
  }
  return out;
}

Cluster RandomCluster(Random& random, const RandomClusterOptions& options) {
  Cluster cluster;
  cluster.model = "random";
  cluster.layout = "random";
  const Index units = Uniform(random, 1, options.max_units);
  for (int u = 0; u < units; ++u) cluster.units.push_back(RandomUnit(random, options, u));
  Index sources = 1, destinations = 1;
  for (const ClusterUnit& unit : cluster.units) {
    sources = std::max<Index>(sources, Shards(unit.manifest.source));
    destinations = std::max<Index>(destinations, Shards(unit.manifest.destination));
  }
  cluster.source.ranks = static_cast<int32_t>(Uniform(random, sources, options.max_ranks));
  cluster.destination.ranks = static_cast<int32_t>(Uniform(random, destinations, options.max_ranks));
  for (SideShape* side : {&cluster.source, &cluster.destination}) {
    side->ranks_per_host = static_cast<int32_t>(Uniform(random, 1, 4));
    side->ranks_per_domain = static_cast<int32_t>(Uniform(random, 1, 8));
  }
  for (ClusterUnit& unit : cluster.units) {
    unit.source_groups = RandomGroups(random, cluster.source.ranks, Shards(unit.manifest.source));
    unit.destination_groups = RandomGroups(random, cluster.destination.ranks, Shards(unit.manifest.destination));
    const Index layers = Uniform(random, 1, options.max_layers);
    const Index experts = Chance(random, 50) ? Uniform(random, 1, 4) : 0;
    if (unit.source_stacked) PlaceBehindOthers(random, &unit.source_groups);
    if (unit.destination_stacked) PlaceBehindOthers(random, &unit.destination_groups);
    std::map<std::pair<int32_t, int32_t>, int32_t> source_places, destination_places;
    for (int32_t layer = 0; layer < layers; ++layer) {
      for (int32_t expert = experts == 0 ? -1 : 0; expert < experts; ++expert) {
        UnitInstance instance;
        instance.layer = layer;
        instance.expert = expert;
        auto any = [&](size_t size) { return static_cast<int32_t>(Uniform(random, 0, static_cast<Index>(size) - 1)); };
        instance.source_group = any(unit.source_groups.size());
        instance.destination_group = any(unit.destination_groups.size());
        instance.source_expert = source_places[{layer, instance.source_group}]++;
        instance.destination_expert = destination_places[{layer, instance.destination_group}]++;
        unit.instances.push_back(instance);
        if (experts == 0) break;
      }
    }
  }
  for (int32_t r = 0; r < cluster.source.ranks; ++r) cluster.source_stage.push_back(r % 2);
  return cluster;
}

}  // namespace headrace
