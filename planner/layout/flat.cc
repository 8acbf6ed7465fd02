#include "planner/layout/flat.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr Index kMaxRuns = Index{1} << 22;

PieceArray Failed(ErrorCode code, absl::string_view message) { return {Error(code, message), {}, {}}; }

// One loop over a part's box, outermost first, with the steps that it takes in the array and in the tensor.
struct Loop {
  Index extent = 0;
  Index array_step = 0;
  Index tensor_step = 0;
};

// Contiguous elements in the array and, unless it is padding, in the tensor.
struct Run {
  const ArrayPart* part = nullptr;
  Index at = 0;
  Index first = 0;
  Index count = 0;
};

bool Continues(const Run& run, const Run& next) {
  const Piece& a = run.part->piece;
  const Piece& b = next.part->piece;
  return next.at == run.at + run.count && a.kind == b.kind && a.tensor == b.tensor &&
         (a.kind != PieceKind::kTensor || next.first == run.first + run.count);
}

// The part's loops, one-element axes left out and what is contiguous in both joined: the last loop has steps of 1, or
// is of one element.
std::vector<Loop> LoopsOf(const Extents& array_strides, const ArrayPart& part) {
  const Piece& p = part.piece;
  const Extents tensor_strides = p.kind == PieceKind::kTensor ? RowMajorStrides(*p.view) : Extents();
  std::vector<Loop> loops;
  for (size_t axis = 0; axis < array_strides.size(); ++axis) {
    const size_t i = std::find(p.axes.begin(), p.axes.end(), static_cast<int>(axis)) - p.axes.begin();
    if (p.shape[i] == 1) continue;
    // Padding has no tensor to be apart in.
    const Loop loop = {p.shape[i], array_strides[axis],
                       tensor_strides.empty() ? array_strides[axis] : tensor_strides[i]};
    if (!loops.empty() && loops.back().array_step == loop.extent * loop.array_step &&
        loops.back().tensor_step == loop.extent * loop.tensor_step) {
      loops.back() = {loops.back().extent * loop.extent, loop.array_step, loop.tensor_step};
    } else {
      loops.push_back(loop);
    }
  }
  if (loops.empty() || loops.back().array_step != 1 || loops.back().tensor_step != 1) loops.push_back({1, 1, 1});
  return loops;
}

}  // namespace

PieceArray Flatten(const PieceArray& array) {
  if (!array.status.ok()) return array;
  PieceArray flat{absl::OkStatus(), {1}, {}};
  if (std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end()) flat.shape = {0};
  for (Index n : array.shape) {
    if (__builtin_mul_overflow(flat.shape[0], n, &flat.shape[0])) {
      return Failed(ErrorCode::kOutOfBounds, "an array of 2^63 elements or more cannot be flat");
    }
  }
  const Extents strides = RowMajorStrides(array.shape);
  std::vector<Run> runs;
  for (const ArrayPart& part : array.parts) {
    const Piece& p = part.piece;
    const std::vector<Loop> loops = LoopsOf(strides, part);
    Run run = {&part, 0, 0, loops.back().extent};
    for (size_t a = 0; a < strides.size(); ++a) run.at += p.buffer_offset[a] * strides[a];
    if (p.kind == PieceKind::kTensor) {
      const Extents tensor_strides = RowMajorStrides(*p.view);
      for (size_t i = 0; i < tensor_strides.size(); ++i) run.first += p.tensor_offset[i] * tensor_strides[i];
    }
    std::vector<Index> at(loops.size() - 1);
    while (true) {  // an odometer over all loops but the last one
      if (static_cast<Index>(runs.size()) == kMaxRuns) {
        return Failed(ErrorCode::kOutOfMemory, absl::StrCat("tensor ", p.tensor, ": a flat array of more than ",
                                                            kMaxRuns, " runs; flatten it in the tensor's own order"));
      }
      runs.push_back(run);
      size_t l = at.size();
      for (; l-- > 0;) {
        run.at += loops[l].array_step;
        run.first += loops[l].tensor_step;
        if (++at[l] < loops[l].extent) break;
        run.at -= at[l] * loops[l].array_step;
        run.first -= at[l] * loops[l].tensor_step;
        at[l] = 0;
      }
      if (l == static_cast<size_t>(-1)) break;
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.at < b.at; });
  std::vector<Run> joined;
  for (const Run& run : runs) {
    if (!joined.empty() && Continues(joined.back(), run)) {
      joined.back().count += run.count;
    } else {
      joined.push_back(run);
    }
  }
  for (const Run& run : joined) {
    ArrayPart& part = flat.parts.emplace_back();
    part.tensor_shape = run.part->tensor_shape;
    Piece& p = part.piece;
    p.kind = run.part->piece.kind;
    p.tensor = run.part->piece.tensor;
    p.shape = {run.count};
    p.buffer_offset = {run.at};
    p.axes = {0};
    if (p.kind != PieceKind::kTensor) continue;
    p.tensor_offset = {run.first};
    p.view = Extents{1};
    for (Index n : part.tensor_shape) p.view->front() *= n;
  }
  return flat;
}

PieceArray FlatBucket(const std::vector<PieceArray>& arrays, Index start_multiple, Index end_multiple,
                      PieceKind padding) {
  PieceArray bucket = Padding(padding, {0});
  for (const PieceArray& array : arrays) {
    bucket = Concatenate({PadToMultiple(bucket, 0, start_multiple, padding), Flatten(array)}, 0);
  }
  return PadToMultiple(bucket, 0, end_multiple, padding);
}

PieceArray FlatShard(const PieceArray& bucket, Index parts, Index part) {
  if (!bucket.status.ok()) return bucket;
  if (bucket.shape.size() != 1) {
    return Failed(ErrorCode::kShapeMismatch,
                  absl::StrCat("a bucket of ", bucket.shape.size(), " axes is not flat: use Flatten"));
  }
  if (parts < 1 || part < 0 || part >= parts) {
    return Failed(ErrorCode::kInvalidOption, absl::StrCat("flat shard ", part, " of ", parts, ": count from 0"));
  }
  return Take(bucket, 0, ChunkOf(bucket.shape[0], parts, part, ChunkRule::kCeil));
}

}  // namespace headrace
