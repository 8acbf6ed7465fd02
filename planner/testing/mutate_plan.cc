#include "planner/testing/mutate_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace headrace {
namespace {

// A copy with the stream by which it comes.
struct Sent : Copy {
  int stream = -1;
};
using Copies = std::vector<Sent>;

Copies SentCopies(const Plan& plan) {
  Copies out;
  for (const Edge& e : plan.edges) {
    for (size_t i = e.first; i < e.first + e.count; ++i) {
      out.push_back({});
      static_cast<Copy&>(out.back()) = plan.copies[i];
      out.back().stream = e.stream;
    }
  }
  return out;
}

// Puts copies into the plan with edges that fit them: copies are put in order first. Each rank of a chain keeps an
// edge.
void SetCopies(const Manifest& m, Copies copies, Plan* plan) {
  auto edge_of = [&](const Sent& c) {
    return std::make_tuple(m.destination[c.destination].rank, m.source[c.source].rank, c.stream);
  };
  std::stable_sort(copies.begin(), copies.end(), [&](const Sent& a, const Sent& b) {
    return std::tuple_cat(edge_of(a), std::make_tuple(a.part)) < std::tuple_cat(edge_of(b), std::make_tuple(b.part));
  });
  std::map<std::tuple<int64_t, int64_t, int>, size_t> counts;
  for (size_t s = 0; s < plan->streams.size(); ++s) {
    for (int64_t rank : plan->streams[s].chain) counts[{rank, plan->streams[s].source_rank, static_cast<int>(s)}];
  }
  for (const Sent& c : copies) ++counts[edge_of(c)];
  plan->copies.assign(copies.begin(), copies.end());
  plan->edges.clear();
  size_t first = 0;
  for (const auto& [edge, count] : counts) {
    const auto& [destination, source, stream] = edge;
    plan->edges.push_back({source, destination, first, count, stream});
    first += count;
  }
}

// Bytes of an element at least; shifts by whole elements are the likelier mistakes.
Index Width(const Manifest& m, const Copy& c) { return std::max<Index>(1, DtypeBits(m.tensors[c.tensor].dtype) / 8); }

}  // namespace

void ForEachMutation(Random& random, const Manifest& m, const Plan& plan,
                     const std::function<void(const std::string& kind, const Plan& mutated)>& visit) {
  auto pick = [&](size_t size) { return static_cast<size_t>(Uniform(random, 0, static_cast<Index>(size) - 1)); };
  auto sign = [&] { return Uniform(random, 0, 1) * 2 - 1; };
  auto with_copies = [&](const std::string& kind, auto&& change) {
    Copies copies = SentCopies(plan);
    if (copies.empty() || !change(copies, copies[pick(copies.size())])) return;
    Plan mutated = plan;
    SetCopies(m, std::move(copies), &mutated);
    visit(kind, mutated);
  };
  with_copies("drop a copy", [&](Copies& all, Sent& c) {
    all.erase(all.begin() + (&c - all.data()));
    return true;
  });
  with_copies("double a copy", [&](Copies& all, Sent& c) {
    all.push_back(Sent(c));
    return true;
  });
  with_copies("double a part of a copy", [&](Copies& all, Sent& c) {
    Sent part = c;
    part.loops.clear();
    all.push_back(part);
    return true;
  });
  with_copies("shift the source", [&](Copies&, Sent& c) {
    c.source_offset += sign() * Width(m, c);
    return true;
  });
  with_copies("shift the source by a byte", [&](Copies&, Sent& c) {
    c.source_offset += sign();
    return true;
  });
  with_copies("shift the destination", [&](Copies&, Sent& c) {
    c.destination_offset += sign() * Width(m, c);
    return true;
  });
  with_copies("shift the destination by a byte", [&](Copies&, Sent& c) {
    c.destination_offset += sign();
    return true;
  });
  with_copies("shift the position", [&](Copies&, Sent& c) {
    c.position += sign() * Width(m, c);
    return true;
  });
  with_copies("shift all three", [&](Copies&, Sent& c) {
    const Index by = sign() * Width(m, c);
    c.source_offset += by;
    c.destination_offset += by;
    c.position += by;
    return true;
  });
  with_copies("shift source and position", [&](Copies&, Sent& c) {
    const Index by = sign() * Width(m, c);
    c.source_offset += by;
    c.position += by;
    return true;
  });
  with_copies("shorten the run", [&](Copies&, Sent& c) {
    c.run_bytes -= Uniform(random, 1, c.run_bytes);
    return c.run_bytes > 0;
  });
  with_copies("lengthen the run", [&](Copies&, Sent& c) {
    c.run_bytes += Uniform(random, 1, 2) * Width(m, c);
    return true;
  });
  with_copies("change an extent", [&](Copies&, Sent& c) {
    if (c.loops.empty()) return false;
    CopyLoop& l = c.loops[pick(c.loops.size())];
    l.extent += sign();
    return true;
  });
  with_copies("change a source stride", [&](Copies&, Sent& c) {
    if (c.loops.empty()) return false;
    c.loops[pick(c.loops.size())].source_stride += sign() * Width(m, c);
    return true;
  });
  with_copies("change a destination stride", [&](Copies&, Sent& c) {
    if (c.loops.empty()) return false;
    c.loops[pick(c.loops.size())].destination_stride += sign() * Width(m, c);
    return true;
  });
  with_copies("change a position stride", [&](Copies&, Sent& c) {
    if (c.loops.empty()) return false;
    c.loops[pick(c.loops.size())].position_stride += sign() * Width(m, c);
    return true;
  });
  with_copies("swap two loops' strides", [&](Copies&, Sent& c) {
    if (c.loops.size() < 2) return false;
    std::swap(c.loops[0].source_stride, c.loops[1].source_stride);
    return true;
  });
  with_copies("run a loop backwards", [&](Copies&, Sent& c) {
    if (c.loops.empty()) return false;
    CopyLoop& l = c.loops[pick(c.loops.size())];
    c.source_offset += (l.extent - 1) * l.source_stride;
    l.source_stride = -l.source_stride;
    return true;
  });
  with_copies("swap the sources of two copies", [&](Copies& all, Sent& c) {
    Sent& d = all[pick(all.size())];
    std::swap(c.source, d.source);
    std::swap(c.source_offset, d.source_offset);
    return &c != &d;
  });
  with_copies("swap the destinations of two copies", [&](Copies& all, Sent& c) {
    Sent& d = all[pick(all.size())];
    std::swap(c.destination, d.destination);
    std::swap(c.destination_offset, d.destination_offset);
    return &c != &d;
  });
  with_copies("another source buffer", [&](Copies&, Sent& c) {
    c.source = static_cast<int>(pick(m.source.size()));
    return true;
  });
  with_copies("another destination buffer", [&](Copies&, Sent& c) {
    c.destination = static_cast<int>(pick(m.destination.size()));
    return true;
  });
  with_copies("another tensor", [&](Copies&, Sent& c) {
    c.tensor = static_cast<int>(pick(m.tensors.size()));
    return true;
  });

  with_copies("another part", [&](Copies&, Sent& c) {
    if (c.stream < 0) return false;
    c.part += sign();
    return true;
  });
  with_copies("take a streamed copy directly", [&](Copies&, Sent& c) {
    if (c.stream < 0) return false;
    c.stream = -1;
    return true;
  });
  with_copies("take a direct copy from a stream", [&](Copies&, Sent& c) {
    if (c.stream >= 0 || plan.streams.empty()) return false;
    c.stream = static_cast<int>(pick(plan.streams.size()));
    c.part = 0;
    return true;
  });
  with_copies("another stream", [&](Copies&, Sent& c) {
    if (c.stream < 0) return false;
    c.stream = static_cast<int>(pick(plan.streams.size()));
    return true;
  });

  auto with_streams = [&](const std::string& kind, auto&& change) {
    if (plan.streams.empty()) return;
    Plan mutated = plan;
    if (change(mutated, mutated.streams[pick(mutated.streams.size())])) visit(kind, mutated);
  };
  // With edges that fit the chains.
  auto with_chains = [&](const std::string& kind, auto&& change) {
    with_streams(kind, [&](Plan& mutated, Stream& s) {
      if (!change(s)) return false;
      SetCopies(m, SentCopies(plan), &mutated);
      return true;
    });
  };
  auto with_parts = [&](const std::string& kind, auto&& change) {
    with_streams(kind, [&](Plan&, Stream& s) { return change(s.parts, s.parts[pick(s.parts.size())]); });
  };
  using Parts = std::vector<Part>;
  with_streams("drop the edge of a rank of a chain", [&](Plan& mutated, Stream&) {
    Edge* edge = nullptr;
    for (Edge& e : mutated.edges) edge = e.stream >= 0 && e.count == 0 ? &e : edge;
    if (edge == nullptr) return false;
    mutated.edges.erase(mutated.edges.begin() + (edge - mutated.edges.data()));
    return true;
  });
  with_streams("drop a stream", [&](Plan& mutated, Stream& s) {
    mutated.streams.erase(mutated.streams.begin() + (&s - mutated.streams.data()));
    return true;
  });
  with_streams("another source rank of a stream", [&](Plan&, Stream& s) {
    s.source_rank += sign();
    return true;
  });
  with_chains("drop a rank from a chain", [&](Stream& s) {
    s.chain.erase(s.chain.begin() + static_cast<ptrdiff_t>(pick(s.chain.size())));
    return true;
  });
  with_chains("double a rank in a chain", [&](Stream& s) {
    s.chain.push_back(s.chain[pick(s.chain.size())]);
    return true;
  });
  with_chains("another rank in a chain", [&](Stream& s) {
    s.chain[pick(s.chain.size())] += sign();
    return true;
  });
  with_parts("drop a part", [&](Parts& all, Part& p) {
    all.erase(all.begin() + (&p - all.data()));
    return true;
  });
  with_parts("double a part", [&](Parts& all, Part& p) {
    all.insert(all.begin() + (&p - all.data()), Part(p));
    return true;
  });
  with_parts("swap two parts", [&](Parts& all, Part& p) {
    std::swap(p, all[pick(all.size())]);
    return true;
  });
  with_parts("shift a part", [&](Parts&, Part& p) {
    p.source_offset += sign();
    return true;
  });
  with_parts("resize a part", [&](Parts&, Part& p) {
    p.run_bytes += sign();
    return p.run_bytes > 0;
  });
  with_parts("another source buffer of a part", [&](Parts&, Part& p) {
    p.source = static_cast<int>(pick(m.source.size()));
    return true;
  });
  with_parts("another tensor of a part", [&](Parts&, Part& p) {
    p.tensor = static_cast<int>(pick(m.tensors.size()));
    return true;
  });
  with_parts("change a part's loop", [&](Parts&, Part& p) {
    if (p.loops.empty()) return false;
    PartLoop& l = p.loops[pick(p.loops.size())];
    (Uniform(random, 0, 1) ? l.extent : l.source_stride) += sign();
    return true;
  });
  with_parts("turn a part's loops", [&](Parts&, Part& p) {
    if (p.loops.size() < 2) return false;
    std::swap(p.loops[0], p.loops[1]);
    return true;
  });

  auto with_fills = [&](const std::string& kind, auto&& change) {
    if (plan.zero_fills.empty()) return;
    Plan mutated = plan;
    if (!change(mutated.zero_fills, mutated.zero_fills[pick(mutated.zero_fills.size())])) return;
    visit(kind, mutated);
  };
  using Fills = std::vector<ZeroFill>;
  with_fills("drop a zero fill", [&](Fills& all, ZeroFill& z) {
    all.erase(all.begin() + (&z - all.data()));
    return true;
  });
  with_fills("double a zero fill", [&](Fills& all, ZeroFill& z) {
    all.push_back(ZeroFill(z));
    return true;
  });
  with_fills("shift a zero fill", [&](Fills&, ZeroFill& z) {
    z.destination_offset += sign();
    return true;
  });
  with_fills("resize a zero fill", [&](Fills&, ZeroFill& z) {
    z.run_bytes += sign();
    return z.run_bytes > 0;
  });
  with_fills("a zero fill elsewhere", [&](Fills&, ZeroFill& z) {
    z.destination = static_cast<int>(pick(m.destination.size()));
    return true;
  });
  with_fills("change a zero fill's loop", [&](Fills&, ZeroFill& z) {
    if (z.loops.empty()) return false;
    CopyLoop& l = z.loops[pick(z.loops.size())];
    (Uniform(random, 0, 1) ? l.extent : l.destination_stride) += sign();
    return true;
  });
  if (!m.destination.empty()) {
    // Into keep, gaps, padding or tensors, wherever the place falls.
    Plan mutated = plan;
    const size_t b = pick(m.destination.size());
    ZeroFill z;
    z.destination = static_cast<int>(b);
    z.destination_offset = Uniform(random, -1, SpanBytes(m.destination[b], m.destination[b].dtype));
    z.run_bytes = 1;
    mutated.zero_fills.push_back(z);
    visit("a zero fill more", mutated);
  }

  auto with_edges = [&](const std::string& kind, auto&& change) {
    if (plan.edges.empty()) return;
    Plan mutated = plan;
    change(mutated.edges, mutated.edges[pick(mutated.edges.size())]);
    visit(kind, mutated);
  };
  using Edges = std::vector<Edge>;
  with_edges("drop an edge", [&](Edges& all, Edge& e) { all.erase(all.begin() + (&e - all.data())); });
  with_edges("double an edge", [&](Edges& all, Edge& e) { all.push_back(Edge(e)); });
  with_edges("another source rank", [&](Edges&, Edge& e) { e.source_rank += sign(); });
  with_edges("another destination rank", [&](Edges&, Edge& e) { e.destination_rank += sign(); });
  with_edges("move an edge", [&](Edges&, Edge& e) { e.first += 1; });
  with_edges("another stream of an edge", [&](Edges&, Edge& e) { e.stream += sign(); });
  with_edges("resize an edge", [&](Edges&, Edge& e) { e.count += static_cast<size_t>(sign()); });
}

}  // namespace headrace
