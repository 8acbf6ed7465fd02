#include "planner/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/balance.h"
#include "planner/coverage.h"
#include "planner/intersect.h"
#include "planner/status.h"
#include "planner/validate.h"

namespace headrace {
namespace {

struct Loop {
  Index extent, source, destination, position;  // strides in elements
};

// Sorts loops outermost first by destination stride, peels the contiguous run off the inner end, and joins loops that
// continue each other on all sides. Returns the elements of the run.
Index Normalize(std::vector<Loop>* loops) {
  std::erase_if(*loops, [](const Loop& l) { return l.extent == 1; });
  std::sort(loops->begin(), loops->end(), [](const Loop& a, const Loop& b) {
    return std::tie(a.destination, a.position, a.source) > std::tie(b.destination, b.position, b.source);
  });
  Index run = 1;
  while (!loops->empty()) {
    const Loop& inner = loops->back();
    if (inner.source != run || inner.destination != run || inner.position != run) break;
    run *= inner.extent;
    loops->pop_back();
  }
  for (size_t i = loops->size(); i-- > 1;) {
    Loop& outer = (*loops)[i - 1];
    const Loop& inner = (*loops)[i];
    if (outer.source == inner.source * inner.extent && outer.destination == inner.destination * inner.extent &&
        outer.position == inner.position * inner.extent) {
      outer = {outer.extent * inner.extent, inner.source, inner.destination, inner.position};
      loops->erase(loops->begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return run;
}

// Appends `copy` with the loops, cutting it along its outermost ones while there are too many.
void AppendCopies(Copy copy, absl::Span<const CopyLoop> loops, std::vector<Copy>* out) {
  if (loops.size() <= kMaxCopyLoops) {
    copy.loops.assign(loops.begin(), loops.end());
    return out->push_back(std::move(copy));
  }
  for (Index i = 0; i < loops[0].extent; ++i) {
    AppendCopies(copy, loops.subspan(1), out);
    copy.source_offset += loops[0].source_stride;
    copy.destination_offset += loops[0].destination_stride;
    copy.position += loops[0].position_stride;
  }
}

Index Displace(const PlacedBox& placed, const Box& cell) {
  Index offset = placed.offset;
  for (size_t i = 0; i < cell.start.size(); ++i) offset += (cell.start[i] - placed.box.start[i]) * placed.strides[i];
  return offset;
}

void LowerCell(const TensorSpec& tensor, int tensor_index, const TensorCells& cut, const Box& box,
               const PlacedBox& source, const PlacedBox& destination, std::vector<Copy>* out) {
  auto bytes = [&](Index elements) { return DtypeBytes(elements, tensor.dtype); };
  std::vector<Loop> loops;
  Index position = 0;
  for (size_t i = 0; i < cut.axes.size(); ++i) {
    position += box.start[i] * cut.axis_strides[i];
    loops.push_back({box.extent[i], source.strides[i], destination.strides[i], cut.axis_strides[i]});
  }
  Copy copy;
  copy.tensor = tensor_index;
  copy.source = source.buffer;
  copy.destination = destination.buffer;
  copy.source_offset = bytes(Displace(source, box));
  copy.destination_offset = bytes(Displace(destination, box));
  copy.position = bytes(position);
  copy.run_bytes = bytes(Normalize(&loops));
  std::vector<CopyLoop> byte_loops;
  for (const Loop& l : loops) {
    byte_loops.push_back({l.extent, bytes(l.source), bytes(l.destination), bytes(l.position)});
  }
  AppendCopies(std::move(copy), byte_loops, out);
}

// The axis along which a box is cut into stripes: the outermost one of which a slice is no more than the smallest
// stripe, so that runs stay long. `unit` elements of the axis are cut off at least.
struct Slicing {
  size_t axis = 0;
  Index unit = 1;
  Index bytes = 0;  // of `unit` slices
};

Slicing SlicingOf(const TensorSpec& tensor, const Box& box) {
  if (box.extent.empty()) return {0, 1, DtypeBytes(1, tensor.dtype)};
  const Index volume = Volume(box);
  Slicing s;
  for (s.axis = 0;; ++s.axis) {
    // Of a sub-byte dtype the innermost axis holds whole bytes.
    const bool innermost = s.axis + 1 == box.extent.size();
    s.unit = innermost ? DtypeUnitElements(tensor.dtype) : 1;
    s.bytes = DtypeBytes(volume / box.extent[s.axis] * s.unit, tensor.dtype);
    if (innermost || s.bytes <= kMinStripeBytes) return s;
  }
}

// visit(candidate, box) for each stripe, in the order of the axis.
template <typename F>
void CutIntoStripes(const TensorSpec& tensor, const Box& box, const std::vector<Stripe>& stripes, F&& visit) {
  if (stripes.size() == 1) return visit(stripes[0].candidate, box);
  const Slicing slicing = SlicingOf(tensor, box);
  Box next = box;
  for (const Stripe& stripe : stripes) {
    next.extent[slicing.axis] = stripe.bytes / slicing.bytes * slicing.unit;
    visit(stripe.candidate, next);
    next.start[slicing.axis] += next.extent[slicing.axis];
  }
}

Demand DemandOf(const Manifest& m, const TensorCells& cut, const Cell& cell) {
  const TensorSpec& tensor = m.tensors[cell.tensor];
  Demand demand{DtypeBytes(Volume(cell.box), tensor.dtype), SlicingOf(tensor, cell.box).bytes, {}};
  for (int s : cell.sources) demand.ranks.push_back(m.source[cut.source[s].buffer].rank);
  return demand;
}

// Joins `next` to `box` when together they are a box.
bool Join(Box* box, const Box& next) {
  int axis = -1;
  for (size_t i = 0; i < box->start.size(); ++i) {
    if (box->start[i] == next.start[i] && box->extent[i] == next.extent[i]) continue;
    if (axis >= 0 || box->start[i] + box->extent[i] != next.start[i]) return false;
    axis = static_cast<int>(i);
  }
  if (axis < 0) return false;
  box->extent[axis] += next.extent[axis];
  return true;
}

// The cells of one tensor that come from one source box to one destination box, joined where they are adjacent.
using CellGroups = std::map<std::pair<int, int>, std::vector<Box>>;

void AddCell(CellGroups* groups, int destination_box, int source_box, Box box) {
  std::vector<Box>& boxes = (*groups)[{destination_box, source_box}];
  boxes.push_back(std::move(box));
  while (boxes.size() > 1 && Join(&boxes[boxes.size() - 2], boxes.back())) boxes.pop_back();
}

// Joins copies without loops that continue each other in source, destination and tensor.
void JoinRuns(std::vector<Copy>* copies) {
  size_t kept = 0;
  for (size_t i = 0; i < copies->size(); ++i) {
    Copy& next = (*copies)[i];
    if (kept > 0) {
      Copy& last = (*copies)[kept - 1];
      if (last.loops.empty() && next.loops.empty() && last.tensor == next.tensor && last.source == next.source &&
          last.destination == next.destination && last.source_offset + last.run_bytes == next.source_offset &&
          last.destination_offset + last.run_bytes == next.destination_offset &&
          last.position + last.run_bytes == next.position) {
        last.run_bytes += next.run_bytes;
        continue;
      }
    }
    if (kept != i) (*copies)[kept] = std::move(next);
    ++kept;
  }
  copies->resize(kept);
}

void AppendZeroFills(const Manifest& m, int index, std::vector<ZeroFill>* out) {
  const Buffer& b = m.destination[index];
  auto bytes = [&](Index elements) { return DtypeBytes(elements, b.dtype); };
  for (const Piece& p : b.pieces) {
    if (p.kind != PieceKind::kZero) continue;
    if (std::find(p.shape.begin(), p.shape.end(), 0) != p.shape.end()) continue;
    std::vector<Loop> loops;
    Index offset = 0;
    for (size_t i = 0; i < p.shape.size(); ++i) {
      offset += p.buffer_offset[i] * b.strides[i];
      loops.push_back({p.shape[i], b.strides[i], b.strides[i], b.strides[i]});
    }
    Copy fill;
    fill.destination = index;
    fill.destination_offset = bytes(offset);
    fill.run_bytes = bytes(Normalize(&loops));
    std::vector<CopyLoop> byte_loops;
    for (const Loop& l : loops) byte_loops.push_back({l.extent, 0, bytes(l.destination), 0});
    std::vector<Copy> fills;
    AppendCopies(std::move(fill), byte_loops, &fills);
    for (Copy& f : fills) out->push_back({f.destination, f.destination_offset, f.run_bytes, std::move(f.loops)});
  }
}

}  // namespace

Index Copy::bytes() const {
  Index total = run_bytes;
  for (const CopyLoop& l : loops) total *= l.extent;
  return total;
}

Index Part::bytes() const {
  Index total = run_bytes;
  for (const PartLoop& l : loops) total *= l.extent;
  return total;
}

Index Stream::bytes() const {
  Index total = 0;
  for (const Part& p : parts) total = SaturatedSum(total, p.bytes());
  return total;
}

absl::string_view TransferName(TransferKind kind) { return kind == TransferKind::kReshard ? "reshard" : "broadcast"; }

absl::string_view InstallName(InstallKind kind) { return kind == InstallKind::kDirect ? "direct" : "loader"; }

absl::string_view PolicyName(Policy policy) { return policy == Policy::kAuto ? "auto" : "hybrid"; }

absl::StatusOr<Policy> ParsePolicy(absl::string_view name) {
  for (Policy policy : {Policy::kAuto, Policy::kHybrid}) {
    if (PolicyName(policy) == name) return policy;
  }
  return Error(ErrorCode::kInvalidOption, absl::StrCat("the policy \"", name, "\" is neither auto nor hybrid"));
}

absl::StatusOr<Plan> BuildPlan(const Manifest& manifest, const PlanOptions& options) {
  HR_RETURN_IF_ERROR(Validate(manifest));
  HR_ASSIGN_OR_RETURN(const std::vector<TensorCells> tensors, Intersect(manifest));

  std::vector<Demand> demands;
  for (const TensorCells& cut : tensors) {
    for (const Cell& cell : cut.cells) demands.push_back(DemandOf(manifest, cut, cell));
  }
  const std::vector<std::vector<Stripe>> stripes = ShareOut(demands);

  Plan plan;
  size_t next = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const TensorCells& cut = tensors[t];
    CellGroups groups;
    for (const Cell& cell : cut.cells) {
      CutIntoStripes(manifest.tensors[t], cell.box, stripes[next], [&](int candidate, Box box) {
        AddCell(&groups, cell.destination_box, cell.sources[candidate], std::move(box));
      });
      ++next;
    }
    for (const auto& [key, boxes] : groups) {
      for (const Box& box : boxes) {
        LowerCell(manifest.tensors[t], static_cast<int>(t), cut, box, cut.source[key.second],
                  cut.destination[key.first], &plan.copies);
      }
    }
    plan.decisions.push_back(
        {TransferKind::kReshard, InstallKind::kDirect, "every destination element is a plain copy"});
  }
  std::sort(plan.copies.begin(), plan.copies.end(), [&](const Copy& a, const Copy& b) {
    auto key = [&](const Copy& c) {
      return std::make_tuple(manifest.destination[c.destination].rank, manifest.source[c.source].rank, c.destination,
                             c.destination_offset);
    };
    return key(a) < key(b);
  });
  JoinRuns(&plan.copies);
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    const int64_t source = manifest.source[plan.copies[i].source].rank;
    const int64_t destination = manifest.destination[plan.copies[i].destination].rank;
    if (plan.edges.empty() || plan.edges.back().source_rank != source ||
        plan.edges.back().destination_rank != destination) {
      plan.edges.push_back({source, destination, i, 0});
    }
    ++plan.edges.back().count;
  }
  for (size_t b = 0; b < manifest.destination.size(); ++b) {
    AppendZeroFills(manifest, static_cast<int>(b), &plan.zero_fills);
  }
  HR_RETURN_IF_ERROR(ProveCoverage(manifest, plan));
  return plan;
}

PlanFigures Measure(const Manifest& manifest, const Plan& plan) {
  auto add = [](Index* sum, Index bytes) { *sum = SaturatedSum(*sum, bytes); };
  PlanFigures f;
  f.tensors = static_cast<Index>(manifest.tensors.size());
  f.copies = static_cast<Index>(plan.copies.size());
  for (const Buffer& b : manifest.destination) {
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      add(&f.needed_bytes, DtypeBytes(Volume(WholeBox(p.shape)), b.dtype));
    }
  }
  std::map<int64_t, Index> sent;
  for (const Buffer& b : manifest.source) {
    if (!b.pieces.empty()) sent.emplace(b.rank, 0);
  }
  for (const Copy& c : plan.copies) {
    const Index bytes = c.bytes();
    const Decision& d = plan.decisions[c.tensor];
    add(&f.wire_bytes, bytes);
    add(d.transfer == TransferKind::kReshard ? &f.reshard_bytes : &f.broadcast_bytes, bytes);
    add(d.install == InstallKind::kDirect ? &f.direct_bytes : &f.loader_bytes, bytes);
    add(&sent[manifest.source[c.source].rank], bytes);
  }
  for (const ZeroFill& z : plan.zero_fills) {
    Index bytes = z.run_bytes;
    for (const CopyLoop& l : z.loops) bytes *= l.extent;
    add(&f.zero_bytes, bytes);
  }
  for (const auto& [rank, bytes] : sent) f.busiest_sender_bytes = std::max(f.busiest_sender_bytes, bytes);
  if (f.wire_bytes > 0) {
    f.sender_max_over_mean = static_cast<double>(f.busiest_sender_bytes) * static_cast<double>(sent.size()) /
                             static_cast<double>(f.wire_bytes);
  }
  return f;
}

}  // namespace headrace
