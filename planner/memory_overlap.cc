#include "planner/memory_overlap.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/box.h"
#include "planner/status.h"

namespace headrace {
namespace {

// Strides that do not nest are checked element by element, up to this many elements.
constexpr Index kMaxElementsChecked = Index{1} << 22;

// Buffers whose ranges interleave are compared run by run, up to this many runs of one group.
constexpr Index kMaxRuns = Index{1} << 26;

std::string Where(const Buffer& b) { return absl::StrCat("destination rank ", b.rank, ", buffer \"", b.name, "\""); }

Box LaidBox(const Piece& p) {
  Box box{Coords(p.buffer_offset.begin(), p.buffer_offset.end()), Coords(p.shape.begin(), p.shape.end())};
  for (size_t k = 0; k < p.axes.size(); ++k) box.extent[p.axes[k]] = p.shape[k];
  return box;
}

std::string Name(const Piece& p, size_t index) {
  return p.kind == PieceKind::kTensor ? absl::StrCat("piece ", index, " (tensor \"", p.tensor, "\")")
                                      : absl::StrCat("piece ", index, " (fill)");
}

absl::Status CheckPieces(const Buffer& b) {
  std::vector<std::pair<Box, size_t>> boxes;
  for (size_t i = 0; i < b.pieces.size(); ++i) {
    Box box = LaidBox(b.pieces[i]);
    if (Volume(box) > 0) boxes.emplace_back(std::move(box), i);
  }
  if (boxes.size() < 2) return absl::OkStatus();
  // Sweep along the axis on which the boxes differ most.
  size_t axis = 0, most = 0;
  for (size_t i = 0; i < b.shape.size(); ++i) {
    std::set<Index> starts;
    for (const auto& [box, piece] : boxes) starts.insert(box.start[i]);
    if (starts.size() > most) most = starts.size(), axis = i;
  }
  if (b.shape.empty()) {
    return Error(ErrorCode::kOverlap, absl::StrCat(Where(b), ": more than one piece for its single element"));
  }
  std::sort(boxes.begin(), boxes.end(), [&](const auto& x, const auto& y) {
    return std::tie(x.first.start[axis], x.second) < std::tie(y.first.start[axis], y.second);
  });
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Box& a = boxes[i].first;
    for (size_t j = i + 1; j < boxes.size() && boxes[j].first.start[axis] < a.start[axis] + a.extent[axis]; ++j) {
      if (std::optional<Box> common = Intersection(a, boxes[j].first)) {
        const size_t p = boxes[i].second, q = boxes[j].second;
        return Error(ErrorCode::kOverlap, absl::StrCat(Where(b), ": ", Name(b.pieces[p], p), " and ",
                                                       Name(b.pieces[q], q), " both fill ", ToString(*common)));
      }
    }
  }
  return absl::OkStatus();
}

// The buffer's axes of more than one element, as (stride, extent), ascending.
std::vector<std::pair<Index, Index>> Loops(const Buffer& b) {
  std::vector<std::pair<Index, Index>> loops;
  for (size_t i = 0; i < b.shape.size(); ++i) {
    if (b.shape[i] > 1) loops.emplace_back(b.strides[i], b.shape[i]);
  }
  std::sort(loops.begin(), loops.end());
  return loops;
}

// Calls f(offset) for every combination of loops[from..].
template <typename F>
void ForEachOffset(const std::vector<std::pair<Index, Index>>& loops, size_t from, Index offset, F&& f) {
  if (from == loops.size()) return f(offset);
  for (Index i = 0; i < loops[from].second; ++i) ForEachOffset(loops, from + 1, offset + i * loops[from].first, f);
}

absl::Status CheckStrides(const Buffer& b) {
  auto error = [&] {
    return Error(ErrorCode::kOverlap,
                 absl::StrCat(Where(b), ": shape [", absl::StrJoin(b.shape, ", "), "] with strides [",
                              absl::StrJoin(b.strides, ", "), "] puts two elements at one place"));
  };
  const auto loops = Loops(b);
  bool nested = true;
  Index reach = 0, elements = 1;  // reach: the largest offset of the inner loops
  for (auto [stride, extent] : loops) {
    if (stride == 0) return error();
    nested = nested && stride > reach;
    reach += (extent - 1) * stride;
    elements *= extent;
  }
  if (nested) return absl::OkStatus();
  if (elements > reach + 1 || elements > kMaxElementsChecked) return error();
  std::vector<Index> offsets;
  ForEachOffset(loops, 0, 0, [&](Index offset) { offsets.push_back(offset); });
  std::sort(offsets.begin(), offsets.end());
  return std::adjacent_find(offsets.begin(), offsets.end()) == offsets.end() ? absl::OkStatus() : error();
}

struct Run {
  Index begin_bits, end_bits;
  const Buffer* buffer;
};

// The contiguous runs of a buffer in its storage.
absl::Status AppendRuns(const Buffer& b, std::vector<Run>* runs) {
  const auto loops = Loops(b);
  size_t inner = 0;
  Index run = 1;
  while (inner < loops.size() && loops[inner].first == run) run *= loops[inner++].second;
  Index count = 1;
  for (size_t i = inner; i < loops.size(); ++i) count *= loops[i].second;
  if (count > kMaxRuns - static_cast<Index>(runs->size())) {
    return Error(ErrorCode::kOutOfMemory,
                 absl::StrCat(Where(b), " interleaves with other buffers of storage \"", b.storage->id, "\" in ", count,
                              " runs; comparing them needs over ", kMaxRuns * static_cast<Index>(sizeof(Run)),
                              " bytes; use longer runs or separate storages"));
  }
  const Index bits = DtypeBits(b.dtype), base = b.storage->offset_bytes * 8;
  ForEachOffset(loops, inner, 0, [&](Index offset) {
    // Whole bytes: what shares a byte overlaps.
    runs->push_back({(base + offset * bits) / 8 * 8, (base + (offset + run) * bits + 7) / 8 * 8, &b});
  });
  return absl::OkStatus();
}

absl::Status CheckStorage(std::vector<const Buffer*> buffers) {
  std::sort(buffers.begin(), buffers.end(), [](const Buffer* a, const Buffer* b) {
    return std::tie(a->storage->offset_bytes, a->name) < std::tie(b->storage->offset_bytes, b->name);
  });
  // Groups of buffers whose ranges touch each other.
  for (size_t i = 0; i < buffers.size();) {
    Index end = 0;
    size_t j = i;
    do {
      end = std::max(end, buffers[j]->storage->offset_bytes + SpanBytes(*buffers[j], buffers[j]->dtype));
    } while (++j < buffers.size() && buffers[j]->storage->offset_bytes < end);
    if (j - i > 1) {
      std::vector<Run> runs;
      for (size_t k = i; k < j; ++k) HR_RETURN_IF_ERROR(AppendRuns(*buffers[k], &runs));
      std::sort(runs.begin(), runs.end(), [](const Run& x, const Run& y) { return x.begin_bits < y.begin_bits; });
      for (size_t k = 1; k < runs.size(); ++k) {
        if (runs[k].begin_bits >= runs[k - 1].end_bits || runs[k].buffer == runs[k - 1].buffer) continue;
        return Error(ErrorCode::kOverlap,
                     absl::StrCat(Where(*runs[k - 1].buffer), " and \"", runs[k].buffer->name, "\" share byte ",
                                  runs[k].begin_bits / 8, " of storage \"", buffers[i]->storage->id,
                                  "\"; declare one as alias_of the other if they are the same weight"));
      }
    }
    i = j;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMemoryOverlap(const std::vector<Buffer>& destination) {
  std::map<std::pair<int64_t, std::string>, std::vector<const Buffer*>> storages;
  for (const Buffer& b : destination) {
    if (b.alias_of) continue;
    HR_RETURN_IF_ERROR(CheckPieces(b));
    HR_RETURN_IF_ERROR(CheckStrides(b));
    if (b.storage && SpanElements(b) > 0) storages[{b.rank, b.storage->id}].push_back(&b);
  }
  for (auto& [key, buffers] : storages) HR_RETURN_IF_ERROR(CheckStorage(std::move(buffers)));
  return absl::OkStatus();
}

}  // namespace headrace
