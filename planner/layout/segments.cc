#include "planner/layout/segments.h"

#include <algorithm>

namespace headrace {

Segment ChunkOf(Index length, Index parts, Index part, ChunkRule rule) {
  const Index whole = length / parts;
  const Index rest = length % parts;
  if (rule == ChunkRule::kEven) return {part * whole + std::min(part, rest), whole + (part < rest ? 1 : 0)};
  const Index size = whole + (rest > 0 ? 1 : 0);
  // Compared by division: part * size can pass 2^63 when nearly all parts are empty.
  if (size == 0 || part > length / size) return {length, 0};
  return {part * size, std::min(size, length - part * size)};
}

Segments StridedChunkOf(Index length, Index parts, Index part, Index split_factor, ChunkRule rule) {
  Segments mine;
  for (Index i = 0; i < split_factor; ++i) {
    const Segment piece = ChunkOf(length, split_factor, i, rule);
    if (piece.count == 0) break;  // by either rule the empty pieces come last
    const Segment chunk = ChunkOf(piece.count, parts, part, rule);
    Append(mine, {piece.first + chunk.first, chunk.count});
  }
  return mine;
}

Index CountOf(const Segments& segments) {
  Index count = 0;
  for (const Segment& s : segments) count += s.count;
  return count;
}

void Append(Segments& segments, Segment segment) {
  if (segment.count == 0) return;
  if (!segments.empty() && segments.back().first + segments.back().count == segment.first) {
    segments.back().count += segment.count;
  } else {
    segments.push_back(segment);
  }
}

Segments Select(const Segments& held, const Segments& positions) {
  Segments result;
  size_t at = 0;
  Index before = 0;  // indices held before held[at]
  for (Segment want : positions) {
    while (want.count > 0) {
      while (want.first >= before + held[at].count) before += held[at++].count;
      const Index skip = want.first - before;
      const Index count = std::min(want.count, held[at].count - skip);
      Append(result, {held[at].first + skip, count});
      want.first += count;
      want.count -= count;
    }
  }
  return result;
}

}  // namespace headrace
