#include "planner/testing/mutate_plan.h"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

// Edges that fit changed copies: copies are put in order of ranks first.
void MakeEdges(const Manifest& m, Plan* plan) {
  auto ranks = [&](const Copy& c) {
    return std::make_pair(m.destination[c.destination].rank, m.source[c.source].rank);
  };
  std::stable_sort(plan->copies.begin(), plan->copies.end(),
                   [&](const Copy& a, const Copy& b) { return ranks(a) < ranks(b); });
  plan->edges.clear();
  for (size_t i = 0; i < plan->copies.size(); ++i) {
    const auto [destination, source] = ranks(plan->copies[i]);
    if (plan->edges.empty() || plan->edges.back().source_rank != source ||
        plan->edges.back().destination_rank != destination) {
      plan->edges.push_back({source, destination, i, 0});
    }
    ++plan->edges.back().count;
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
    if (plan.copies.empty()) return;
    Plan mutated = plan;
    if (!change(mutated.copies, mutated.copies[pick(mutated.copies.size())])) return;
    MakeEdges(m, &mutated);
    visit(kind, mutated);
  };
  using Copies = std::vector<Copy>;
  with_copies("drop a copy", [&](Copies& all, Copy& c) {
    all.erase(all.begin() + (&c - all.data()));
    return true;
  });
  with_copies("double a copy", [&](Copies& all, Copy& c) {
    all.push_back(Copy(c));
    return true;
  });
  with_copies("double a part of a copy", [&](Copies& all, Copy& c) {
    Copy part = c;
    part.loops.clear();
    all.push_back(part);
    return true;
  });
  with_copies("shift the source", [&](Copies&, Copy& c) {
    c.source_offset += sign() * Width(m, c);
    return true;
  });
  with_copies("shift the source by a byte", [&](Copies&, Copy& c) {
    c.source_offset += sign();
    return true;
  });
  with_copies("shift the destination", [&](Copies&, Copy& c) {
    c.destination_offset += sign() * Width(m, c);
    return true;
  });
  with_copies("shift the destination by a byte", [&](Copies&, Copy& c) {
    c.destination_offset += sign();
    return true;
  });
  with_copies("shift the position", [&](Copies&, Copy& c) {
    c.position += sign() * Width(m, c);
    return true;
  });
  with_copies("shift all three", [&](Copies&, Copy& c) {
    const Index by = sign() * Width(m, c);
    c.source_offset += by;
    c.destination_offset += by;
    c.position += by;
    return true;
  });
  with_copies("shift source and position", [&](Copies&, Copy& c) {
    const Index by = sign() * Width(m, c);
    c.source_offset += by;
    c.position += by;
    return true;
  });
  with_copies("shorten the run", [&](Copies&, Copy& c) {
    c.run_bytes -= Uniform(random, 1, c.run_bytes);
    return c.run_bytes > 0;
  });
  with_copies("lengthen the run", [&](Copies&, Copy& c) {
    c.run_bytes += Uniform(random, 1, 2) * Width(m, c);
    return true;
  });
  with_copies("change an extent", [&](Copies&, Copy& c) {
    if (c.loops.empty()) return false;
    CopyLoop& l = c.loops[pick(c.loops.size())];
    l.extent += sign();
    return true;
  });
  with_copies("change a source stride", [&](Copies&, Copy& c) {
    if (c.loops.empty()) return false;
    c.loops[pick(c.loops.size())].source_stride += sign() * Width(m, c);
    return true;
  });
  with_copies("change a destination stride", [&](Copies&, Copy& c) {
    if (c.loops.empty()) return false;
    c.loops[pick(c.loops.size())].destination_stride += sign() * Width(m, c);
    return true;
  });
  with_copies("change a position stride", [&](Copies&, Copy& c) {
    if (c.loops.empty()) return false;
    c.loops[pick(c.loops.size())].position_stride += sign() * Width(m, c);
    return true;
  });
  with_copies("swap two loops' strides", [&](Copies&, Copy& c) {
    if (c.loops.size() < 2) return false;
    std::swap(c.loops[0].source_stride, c.loops[1].source_stride);
    return true;
  });
  with_copies("run a loop backwards", [&](Copies&, Copy& c) {
    if (c.loops.empty()) return false;
    CopyLoop& l = c.loops[pick(c.loops.size())];
    c.source_offset += (l.extent - 1) * l.source_stride;
    l.source_stride = -l.source_stride;
    return true;
  });
  with_copies("swap the sources of two copies", [&](Copies& all, Copy& c) {
    Copy& d = all[pick(all.size())];
    std::swap(c.source, d.source);
    std::swap(c.source_offset, d.source_offset);
    return &c != &d;
  });
  with_copies("swap the destinations of two copies", [&](Copies& all, Copy& c) {
    Copy& d = all[pick(all.size())];
    std::swap(c.destination, d.destination);
    std::swap(c.destination_offset, d.destination_offset);
    return &c != &d;
  });
  with_copies("another source buffer", [&](Copies&, Copy& c) {
    c.source = static_cast<int>(pick(m.source.size()));
    return true;
  });
  with_copies("another destination buffer", [&](Copies&, Copy& c) {
    c.destination = static_cast<int>(pick(m.destination.size()));
    return true;
  });
  with_copies("another tensor", [&](Copies&, Copy& c) {
    c.tensor = static_cast<int>(pick(m.tensors.size()));
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
  with_edges("resize an edge", [&](Edges&, Edge& e) { e.count += static_cast<size_t>(sign()); });
}

}  // namespace headrace
