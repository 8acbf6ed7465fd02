#include "planner/layout/block_scales.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

Index BlockCount(Index length, Index block) { return length / block + (length % block == 0 ? 0 : 1); }

ScaledArray Failed(absl::Status status) { return {{std::move(status), {}, {}}, std::nullopt, {}}; }

// The result with the first error of both in the weight.
ScaledArray Checked(ScaledArray array) {
  if (array.weight.status.ok() && array.scale && !array.scale->status.ok()) return Failed(array.scale->status);
  return array;
}

}  // namespace

absl::StatusOr<Segment> BlockChunkOf(Index length, Index block, Index parts, Index part, ChunkRule rule) {
  if (length < 0 || block < 1 || parts < 1 || part < 0 || part >= parts) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("part ", part, " of ", parts, " of ", length, " elements in blocks of ", block,
                              ": count parts from 0, give at least 1 of each"));
  }
  const Segment blocks = ChunkOf(BlockCount(length, block), parts, part, rule);
  // By division: the last block's end can pass 2^63.
  const Index first = blocks.first > length / block ? length : blocks.first * block;
  const Index end = blocks.first + blocks.count > length / block ? length : (blocks.first + blocks.count) * block;
  return Segment{first, end - first};
}

absl::StatusOr<Segments> BlocksOf(const Segments& segments, Index length, Index block) {
  if (block < 1) return Error(ErrorCode::kInvalidOption, absl::StrCat("a scale block of ", block, ": give at least 1"));
  Segments blocks;
  for (const Segment& s : segments) {
    if (s.first < 0 || s.count < 0 || s.first > length || s.count > length - s.first) {
      return Error(ErrorCode::kOutOfBounds, absl::StrCat("elements ", s.first, " + ", s.count, " of ", length));
    }
    if (s.count == 0) continue;
    const Index end = s.first + s.count;
    if (s.first % block != 0 || (end != length && end % block != 0)) {
      return Error(ErrorCode::kMisalignedBlock,
                   absl::StrCat("elements ", s.first, " + ", s.count, " of ", length, " cut a scale block of ", block,
                                ": shard at multiples of the block"));
    }
    Append(blocks, {s.first / block, BlockCount(end, block) - s.first / block});
  }
  return blocks;
}

ScaledArray Scaled(const TensorSpec& weight, const TensorSpec* scale, const Extents& block) {
  if (scale == nullptr) return {Whole(weight), std::nullopt, Extents(weight.shape.size(), 1)};
  Extents want;
  for (size_t a = 0; a < weight.shape.size() && a < block.size(); ++a) {
    if (block[a] < 1) {
      return Failed(Error(ErrorCode::kInvalidOption, absl::StrCat("tensor ", weight.name, " has a scale block of ",
                                                                  block[a], " along axis ", a, ": give at least 1")));
    }
    want.push_back(BlockCount(weight.shape[a], block[a]));
  }
  if (block.size() != weight.shape.size() || scale->shape != want) {
    return Failed(Error(ErrorCode::kShapeMismatch,
                        absl::StrCat("tensor ", scale->name, " is not the scale of ", weight.name,
                                     ": its shape must be the weight's divided by the block, rounded up")));
  }
  return Checked({Whole(weight), Whole(*scale), block});
}

ScaledArray Take(const ScaledArray& array, int axis, const absl::StatusOr<Segments>& segments) {
  ScaledArray taken = {Take(array.weight, axis, segments), std::nullopt, array.block};
  if (!taken.weight.status.ok() || !array.scale) return taken;
  // Only the last segment may end in a partial block: the others' blocks would not begin at multiples any more.
  for (size_t s = 0; s + 1 < segments->size(); ++s) {
    if ((*segments)[s].count % array.block[axis] == 0) continue;
    return Failed(Error(ErrorCode::kMisalignedBlock,
                        absl::StrCat("a partial scale block of ", array.block[axis], " that is not the last one")));
  }
  taken.scale = Take(*array.scale, axis, BlocksOf(*segments, array.weight.shape[axis], array.block[axis]));
  return Checked(std::move(taken));
}

ScaledArray Take(const ScaledArray& array, int axis, Segment segment) {
  return Take(array, axis, absl::StatusOr<Segments>(Segments{segment}));
}

ScaledArray Concatenate(const std::vector<ScaledArray>& arrays, int axis) {
  std::vector<PieceArray> weights, scales;
  for (const ScaledArray& array : arrays) {
    weights.push_back(array.weight);
    if (array.scale) scales.push_back(*array.scale);
  }
  ScaledArray joined = {Concatenate(weights, axis), std::nullopt, {}};
  if (!joined.weight.status.ok()) return joined;
  joined.block = arrays[0].block;
  if (scales.empty()) return joined;
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (!arrays[i].scale || arrays[i].block != joined.block) {
      return Failed(Error(ErrorCode::kMisalignedBlock, "arrays of different scale blocks cannot be joined"));
    }
    if (i + 1 < arrays.size() && arrays[i].weight.shape[axis] % joined.block[axis] != 0) {
      return Failed(Error(ErrorCode::kMisalignedBlock,
                          absl::StrCat("an array of ", arrays[i].weight.shape[axis], " along axis ", axis,
                                       " ends in a partial scale block of ", joined.block[axis],
                                       " and cannot be followed by another one")));
    }
  }
  joined.scale = Concatenate(scales, axis);
  return Checked(std::move(joined));
}

ScaledArray Unsqueeze(const ScaledArray& array, int axis) {
  ScaledArray result = {Unsqueeze(array.weight, axis), std::nullopt, array.block};
  if (!result.weight.status.ok()) return result;
  result.block.insert(result.block.begin() + axis, 1);
  if (array.scale) result.scale = Unsqueeze(*array.scale, axis);
  return Checked(std::move(result));
}

ScaledArray Squeeze(const ScaledArray& array, int axis) {
  ScaledArray result = {Squeeze(array.weight, axis), std::nullopt, array.block};
  if (!result.weight.status.ok()) return result;
  if (array.scale && result.block[axis] != 1) {
    return Failed(Error(ErrorCode::kMisalignedBlock, absl::StrCat("axis ", axis, " has scale blocks of ",
                                                                  result.block[axis], ": it cannot be left out")));
  }
  result.block.erase(result.block.begin() + axis);
  if (array.scale) result.scale = Squeeze(*array.scale, axis);
  return Checked(std::move(result));
}

ScaledArray Stack(const std::vector<ScaledArray>& arrays, int axis) {
  std::vector<ScaledArray> deeper;
  deeper.reserve(arrays.size());
  for (const ScaledArray& array : arrays) deeper.push_back(Unsqueeze(array, axis));
  return Concatenate(deeper, axis);
}

ScaledArray Transpose(const ScaledArray& array, const std::vector<int>& axes) {
  ScaledArray result = {Transpose(array.weight, axes), std::nullopt, array.block};
  if (!result.weight.status.ok()) return result;
  for (size_t i = 0; i < axes.size(); ++i) result.block[i] = array.block[axes[i]];
  if (array.scale) result.scale = Transpose(*array.scale, axes);
  return Checked(std::move(result));
}

}  // namespace headrace
