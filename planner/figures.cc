#include <algorithm>
#include <cstdint>
#include <map>

#include "planner/intersect.h"
#include "planner/plan.h"
#include "planner/route.h"

namespace headrace {
namespace {

void Add(Index* sum, Index bytes) { *sum = SaturatedSum(*sum, bytes); }

template <typename Loops>
Index BytesOf(Index run_bytes, const Loops& loops) {
  Index total = run_bytes;
  for (const auto& l : loops) total *= l.extent;
  return total;
}

// What destination hosts want and none of their own sources offers, each byte once for each host.
Index DistinctHostBytes(const Manifest& m, const Hosts& hosts) {
  Index sum = 0;
  absl::StatusOr<std::vector<TensorCells>> tensors = Intersect(m);  // of a manifest that was planned: ok
  for (size_t t = 0; t < tensors->size(); ++t) {
    TensorCells& cut = (*tensors)[t];
    for (const Shipment& s : RouteTensor(m, hosts, Policy::kAuto, m.tensors[t], &cut).shipments) {
      const int64_t source = m.source[cut.source[s.sources[0]].buffer].rank;
      const int64_t destination = m.destination[cut.destination[s.destinations[0]].buffer].rank;
      if (hosts.OfSource(source) == hosts.OfDestination(destination)) continue;
      Add(&sum, DtypeBytes(Volume(s.box), m.tensors[t].dtype));
    }
  }
  return sum;
}

}  // namespace

Index Copy::bytes() const { return BytesOf(run_bytes, loops); }

Index Part::bytes() const { return BytesOf(run_bytes, loops); }

Index Stream::bytes() const {
  Index total = 0;
  for (const Part& p : parts) Add(&total, p.bytes());
  return total;
}

PlanFigures Measure(const Manifest& manifest, const Plan& plan) {
  PlanFigures f;
  f.tensors = static_cast<Index>(manifest.tensors.size());
  f.copies = static_cast<Index>(plan.copies.size());
  f.streams = static_cast<Index>(plan.streams.size());
  for (const Buffer& b : manifest.destination) {
    for (const Piece& p : b.pieces) {
      if (p.kind == PieceKind::kTensor) Add(&f.needed_bytes, DtypeBytes(Volume(WholeBox(p.shape)), b.dtype));
    }
  }
  std::map<int64_t, Index> sent;
  for (const Buffer& b : manifest.source) {
    if (!b.pieces.empty()) sent.emplace(b.rank, 0);
  }
  const Hosts hosts(manifest);
  auto enters = [&](int tensor, Index bytes) {
    Add(&f.wire_bytes, bytes);
    Add(plan.decisions[tensor].transfer == TransferKind::kReshard ? &f.reshard_bytes : &f.broadcast_bytes, bytes);
  };
  for (const Edge& e : plan.edges) {
    for (size_t i = e.first; i < e.first + e.count; ++i) {
      const Copy& c = plan.copies[i];
      const Index bytes = c.bytes();
      Add(plan.decisions[c.tensor].install == InstallKind::kDirect ? &f.direct_bytes : &f.loader_bytes, bytes);
      if (e.stream >= 0) continue;
      enters(c.tensor, bytes);
      Add(&sent[e.source_rank], bytes);
      if (hosts.OfSource(e.source_rank) != hosts.OfDestination(e.destination_rank)) Add(&f.host_wire_bytes, bytes);
    }
  }
  for (const Stream& s : plan.streams) {
    const Index bytes = s.bytes();
    Add(&sent[s.source_rank], bytes);
    absl::string_view host = hosts.OfSource(s.source_rank);
    for (int64_t rank : s.chain) {
      for (const Part& p : s.parts) enters(p.tensor, p.bytes());
      if (hosts.OfDestination(rank) != host) Add(&f.host_wire_bytes, bytes);
      host = hosts.OfDestination(rank);
    }
  }
  if (!hosts.AllOne()) f.distinct_host_bytes = DistinctHostBytes(manifest, hosts);
  for (const ZeroFill& z : plan.zero_fills) Add(&f.zero_bytes, BytesOf(z.run_bytes, z.loops));
  Index total = 0;
  for (const auto& [rank, bytes] : sent) {
    Add(&total, bytes);
    f.busiest_sender_bytes = std::max(f.busiest_sender_bytes, bytes);
  }
  if (total > 0) {
    f.sender_max_over_mean =
        static_cast<double>(f.busiest_sender_bytes) * static_cast<double>(sent.size()) / static_cast<double>(total);
  }
  return f;
}

}  // namespace headrace
