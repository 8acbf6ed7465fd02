#include "loader/hold_path.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace headrace {

HoldShape ShapeOf(const Copy& copy) {
  std::vector<std::pair<int64_t, int64_t>> loops;  // (distance in the source, extent), innermost first
  HoldShape shape;
  shape.bytes = copy.bytes();
  int64_t steps = 1;
  for (const CopyLoop& l : copy.loops) {
    loops.emplace_back(std::abs(l.source_stride), l.extent);
    steps *= l.extent;
  }
  std::sort(loops.begin(), loops.end());
  // Loops that continue the run are part of it.
  int64_t run = copy.run_bytes;
  size_t i = 0;
  for (; i < loops.size() && loops[i].first == run; ++i) {
    run *= loops[i].second;
    steps /= loops[i].second;
  }
  shape.runs = steps;
  // Whole loops as long as they fit into the buffer, then as many steps of the next one as do.
  int64_t span = run, spans = steps;
  for (; i < loops.size(); ++i) {
    const auto [stride, extent] = loops[i];
    if (span + (extent - 1) * stride > kBounceBytes) break;
    span += (extent - 1) * stride;
    spans /= extent;
  }
  if (i == loops.size() || span > kBounceBytes) {
    shape.span_bytes = span * spans;
    shape.span_reads = spans * ((span + kBounceBytes - 1) / kBounceBytes);
    return shape;
  }
  const auto [stride, extent] = loops[i];
  const int64_t fitting = 1 + (kBounceBytes - span) / stride;
  const int64_t parts = (extent + fitting - 1) / fitting;
  shape.span_bytes = spans / extent * (parts * span + (extent - parts) * stride);
  shape.span_reads = spans / extent * parts;
  return shape;
}

double ReadNanoseconds(const HoldShape& shape, ReadForm form, const HoldCosts& costs) {
  const bool spans = form == ReadForm::kSpans;
  const int64_t bytes = spans ? shape.span_bytes : shape.bytes;
  const int64_t reads = spans ? shape.span_reads : (shape.bytes + kBounceBytes - 1) / kBounceBytes;
  const int64_t ranges = spans ? shape.span_reads : std::max(shape.runs, reads);
  return static_cast<double>(bytes) * costs.read_byte_ns + static_cast<double>(reads) * costs.read_call_ns +
         static_cast<double>(ranges) * costs.read_range_ns;
}

double PackNanoseconds(const HoldShape& shape, const HoldCosts& costs) {
  return static_cast<double>(shape.bytes) * costs.pack_byte_ns + static_cast<double>(shape.runs) * costs.pack_run_ns;
}

ReadForm BestReadForm(const HoldShape& shape, const HoldCosts& costs) {
  return ReadNanoseconds(shape, ReadForm::kRuns, costs) < ReadNanoseconds(shape, ReadForm::kSpans, costs)
             ? ReadForm::kRuns
             : ReadForm::kSpans;
}

HoldSplit SplitForHold(const Plan& plan, const Edge& edge, const HoldMeans& means, const HoldCosts& costs) {
  HoldSplit split;
  for (size_t i = edge.first; i < edge.first + edge.count; ++i) {
    const HoldShape shape = ShapeOf(plan.copies[i]);
    const ReadForm form = BestReadForm(shape, costs);
    if (means.read && (!means.pack || ReadNanoseconds(shape, form, costs) <= PackNanoseconds(shape, costs))) {
      split.reads.push_back({i, form});
    } else {
      split.packed.copies.push_back(plan.copies[i]);
      split.packed_copies.push_back(i);
    }
  }
  split.packed.edges.push_back({edge.source_rank, edge.destination_rank, 0, split.packed.copies.size()});
  return split;
}

}  // namespace headrace
