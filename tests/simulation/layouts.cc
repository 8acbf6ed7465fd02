#include "tests/simulation/layouts.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/testing/two_engines.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace::simulation {
namespace {

// Rows [begin, end) of a tensor, as a buffer of its own.
Buffer Rows(int64_t rank, const TensorSpec& t, Index begin, Index end, const std::string& name) {
  Extents offset(t.shape.size(), 0), shape = t.shape;
  offset[0] = begin;
  shape[0] = end - begin;
  return BufferOf(rank, name, t.dtype, shape, {PieceOf(t.name, offset, shape, Extents(t.shape.size(), 0))});
}

// A worker's share, as an engine might lay it: plain, pitched, padded with zeros, or across.
Buffer Share(Random& random, int64_t rank, const TensorSpec& t, Index begin, Index end) {
  Buffer b = Rows(rank, t, begin, end, t.name);
  const Index rows = end - begin;
  switch (t.shape.size() == 2 ? Uniform(random, 0, 3) : 0) {
    case 1:
      b.strides[0] += Uniform(random, 1, 3);
      break;
    case 2:
      b.shape[0] += 2;
      b.pieces.push_back(FillOf(PieceKind::kZero, {1, t.shape[1]}, {rows, 0}));
      b.pieces.push_back(FillOf(PieceKind::kKeep, {1, t.shape[1]}, {rows + 1, 0}));
      break;
    case 3:
      b.shape = {t.shape[1], rows};
      b.strides = RowMajorStrides(b.shape);
      b.pieces[0].axes = {1, 0};
      break;
    default:
      break;
  }
  return b;
}

Manifest Split(Random& random, const SimulationOptions& o) {
  Manifest m;
  const Dtype dtypes[] = {Dtype::kBF16, Dtype::kF32, Dtype::kF16};
  for (int i = 0; i < o.tensors; ++i) {
    const bool broadcast = o.hybrid && i % 2 == 0;
    TensorSpec t{absl::StrCat(broadcast ? "layers." : "t", i, broadcast ? ".self_attn.q_proj.weight" : ""),
                 {Uniform(random, 3, 24)},
                 dtypes[Uniform(random, 0, 2)]};
    if (Uniform(random, 0, 3) > 0) t.shape.push_back(Uniform(random, 1, 9));
    m.tensors.push_back(t);
  }
  const int replicas = std::min(o.replicas, o.publishers);
  for (const TensorSpec& t : m.tensors) {
    const Index parts = std::min<Index>(t.shape[0], std::max(1, o.publishers / replicas));
    const Index first = Uniform(random, 0, o.publishers - 1);
    for (Index part = 0; part < parts; ++part) {
      const Index begin = t.shape[0] * part / parts, end = t.shape[0] * (part + 1) / parts;
      for (int replica = 0; replica < replicas; ++replica) {
        const int64_t rank = (first + part * replicas + replica) % o.publishers;
        Buffer b = Rows(rank, t, begin, end, absl::StrCat(t.name, ".", part));
        if (t.dtype == Dtype::kBF16 && Uniform(random, 0, 3) == 0) {
          b.dtype = Dtype::kF32;
          b.convert_rne = true;
        }
        m.source.push_back(std::move(b));
      }
    }
  }
  // Everyone has something.
  for (int64_t rank = 0; rank < o.publishers; ++rank) {
    if (std::none_of(m.source.begin(), m.source.end(), [&](const Buffer& b) { return b.rank == rank; }))
      m.source.push_back(WholeBuffer(rank, m.tensors[0]));
  }
  int64_t rank = 0;
  for (size_t engine = 0; engine < o.workers.size(); ++engine) {
    for (int worker = 0; worker < o.workers[engine]; ++worker, ++rank) {
      for (const TensorSpec& t : m.tensors) {
        const bool whole = t.shape[0] < o.workers[engine] || t.shape.size() == 1;
        const Index n = o.workers[engine];
        m.destination.push_back(Share(random, rank, t, whole ? 0 : t.shape[0] * worker / n,
                                      whole ? t.shape[0] : t.shape[0] * (worker + 1) / n));
      }
      m.topology.destination.push_back({rank, "", "", absl::StrCat("e", engine)});
    }
  }
  for (int64_t r = 0; r < o.publishers; ++r) m.topology.source.push_back({r, "", "", ""});
  return m;
}

}  // namespace

JobLayout MakeLayout(const SimulationOptions& options) {
  Random random(options.seed + 77);
  JobLayout layout;
  Manifest& m = layout.manifest;
  if (options.layout == Layout::kSplit) {
    m = Split(random, options);
  } else if (options.layout == Layout::kTwoEngines) {
    m = headrace::testing::TwoEngines();
  } else {
    do m = RandomManifest(random, {.max_tensors = 3, .max_elements = 100, .max_ranks = 3});
    while (SourcesContradict(m));
    for (Placement& p : m.topology.destination) p.engine = "e";
  }
  std::set<int64_t> sources;
  for (const Buffer& b : m.source) sources.insert(b.rank);
  layout.publishers.assign(sources.begin(), sources.end());
  const auto place = [&](std::vector<Placement>* placements, int64_t rank) -> Placement& {
    for (Placement& p : *placements)
      if (p.rank == rank) return p;
    return placements->emplace_back(Placement{rank, "", "", ""});
  };
  std::map<std::string, std::set<int64_t>> engines;
  for (const Buffer& b : m.destination) engines[place(&m.topology.destination, b.rank).engine].insert(b.rank);
  for (const auto& [_, ranks] : engines) layout.engines.emplace_back(ranks.begin(), ranks.end());
  const auto host = [&] { return options.hosts < 2 ? "" : absl::StrCat("h", Uniform(random, 1, options.hosts)); };
  for (int64_t rank : layout.publishers) place(&m.topology.source, rank).host = host();
  for (const auto& ranks : layout.engines)
    for (int64_t rank : ranks) place(&m.topology.destination, rank).host = host();
  return layout;
}

Manifest PublisherPart(const Manifest& manifest, int64_t rank) {
  Manifest part;
  part.tensors = manifest.tensors;
  part.ignore = manifest.ignore;
  part.coupled = manifest.coupled;
  for (const Buffer& b : manifest.source)
    if (b.rank == rank) part.source.push_back(b);
  for (const Placement& p : manifest.topology.source)
    if (p.rank == rank) part.topology.source = {p};
  return part;
}

Manifest ReceiverPart(const Manifest& manifest, int64_t rank) {
  Manifest part;
  for (const Buffer& b : manifest.destination)
    if (b.rank == rank) part.destination.push_back(b);
  for (const Placement& p : manifest.topology.destination)
    if (p.rank == rank) part.topology.destination = {p};
  return part;
}

}  // namespace headrace::simulation
