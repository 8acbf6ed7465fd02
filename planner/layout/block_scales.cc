#include "planner/layout/block_scales.h"

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

Index BlockCount(Index length, Index block) { return length / block + (length % block == 0 ? 0 : 1); }

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

}  // namespace headrace
