#include "loader/snapshot.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "kernels/cast.h"
#include "kernels/strided_copy.h"
#include "loader/lowering.h"
#include "loader/part_box.h"
#include "planner/lattice.h"

namespace headrace {
namespace {

kernels::FloatType FloatTypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return kernels::FloatType::kF16;
    case Dtype::kBF16:
      return kernels::FloatType::kBF16;
    case Dtype::kF64:
      return kernels::FloatType::kF64;
    default:
      return kernels::FloatType::kF32;
  }
}

// What makes two copies read the same box: everything but the destination.
auto SourceKey(const Copy& c) {
  std::vector<std::tuple<Index, Index, Index>> loops;
  for (const CopyLoop& l : c.loops) loops.emplace_back(l.extent, l.source_stride, l.position_stride);
  return std::make_tuple(c.source, c.source_offset, c.tensor, c.position, c.run_bytes, loops);
}

// The reach of a copy's source box, from its first byte to behind its last.
std::pair<Index, Index> Reach(const Copy& c) {
  Index low = c.source_offset, high = c.source_offset + c.run_bytes;
  for (const CopyLoop& l : c.loops) {
    const Index last = (l.extent - 1) * l.source_stride;
    (last < 0 ? low : high) += last;
  }
  return {low, high};
}

// Whether two copies read a byte in common, as far as that can be found out.
bool MayMeet(const Copy& a, const Copy& b) {
  std::vector<Multiple> multiples = {{1, 0, a.run_bytes - 1}, {1, 1 - b.run_bytes, 0}};
  for (const CopyLoop& l : a.loops)
    if (l.source_stride != 0) multiples.push_back({l.source_stride, 0, l.extent - 1});
  for (const CopyLoop& l : b.loops)
    if (l.source_stride != 0) multiples.push_back({l.source_stride, 1 - l.extent, 0});
  return FindZeroSum(a.source_offset - b.source_offset, multiples, nullptr) != Sum::kNone;
}

Index BytesOf(const std::vector<BufferBox>& boxes) {
  Index total = 0;
  for (const BufferBox& box : boxes) {
    Index bytes = box.run_bytes;
    for (const auto& [extent, stride] : box.loops) bytes *= extent;
    total += bytes;
  }
  return total;
}

// Whether the tiles, in the order of their offsets, are as many bytes as `bytes` and none of them twice.
bool Exact(const std::vector<const Copy*>& tiles, Index bytes) {
  // More would take long to compare; then the buffer is read twice.
  constexpr size_t kMost = 256;
  if (tiles.size() > kMost) return false;
  for (size_t i = 0; i < tiles.size(); ++i) {
    bytes -= tiles[i]->bytes();
    const auto reach = Reach(*tiles[i]);
    for (size_t k = i; k-- > 0;) {
      const auto other = Reach(*tiles[k]);
      if (other.second <= reach.first || reach.second <= other.first) continue;
      if (MayMeet(*tiles[i], *tiles[k])) return false;
    }
  }
  return bytes == 0;
}

}  // namespace

SnapshotWriter::SnapshotWriter(const Manifest& manifest, const Plan& plan, int64_t source_rank,
                               std::map<int, const std::byte*> memory, bool hold)
    : manifest_(manifest),
      layout_(manifest, source_rank, hold),
      sums_layout_(plan, source_rank),
      memory_(std::move(memory)),
      hold_(hold) {
  for (const TensorSpec& t : manifest.tensors) dtypes_.emplace(t.name, t.dtype);
  for (const auto& [snapshot, offset] : layout_.buffers()) {
    if (manifest.source[snapshot.first].dtype != snapshot.second) converted_.emplace(snapshot, offset);
  }
  AddTiles(plan, source_rank);
  if (hold)
    fused_.assign(tiles_.size(), false);
  else
    AddWholes();
}

void SnapshotWriter::AddTiles(const Plan& plan, int64_t source_rank) {
  std::map<decltype(SourceKey(Copy())), Tile> tiles;
  const auto add = [&](const Copy& box, int64_t first, size_t index) {
    Tile& tile = tiles.emplace(SourceKey(box), Tile{box, {}}).first->second;
    tile.sums.push_back(first + static_cast<int64_t>(index * sizeof(uint64_t)));
  };
  for (const Edge& edge : plan.edges) {
    if (edge.source_rank != source_rank || edge.stream >= 0) continue;
    for (size_t i = 0; i < edge.count; ++i) add(plan.copies[edge.first + i], sums_layout_.Offset(edge), i);
  }
  for (size_t s = 0; s < plan.streams.size(); ++s) {
    const Stream& stream = plan.streams[s];
    if (stream.source_rank != source_rank) continue;
    const int64_t first = sums_layout_.OffsetOfStream(static_cast<int>(s));
    for (size_t i = 0; i < stream.parts.size(); ++i) add(SourceBoxOf(stream.parts[i]), first, i);
  }
  for (auto& [key, tile] : tiles) tiles_.push_back(std::move(tile));
}

Buffer SnapshotWriter::Offered(int source, Dtype dtype) const {
  Buffer offered = manifest_.source[source];
  std::erase_if(offered.pieces,
                [&](const Piece& p) { return p.kind == PieceKind::kTensor && dtypes_.at(p.tensor) != dtype; });
  return offered;
}

void SnapshotWriter::AddWholes() {
  const auto snapshot_of = [&](const Copy& c) { return std::make_pair(c.source, manifest_.tensors[c.tensor].dtype); };
  std::map<std::pair<int, Dtype>, std::vector<const Copy*>> tiles_of;
  for (const Tile& tile : tiles_) tiles_of[snapshot_of(tile.box)].push_back(&tile.box);
  std::map<std::pair<int, Dtype>, bool> exact;
  for (const auto& [snapshot, offset] : layout_.buffers()) {
    const auto& [source, dtype] = snapshot;
    if (converted_.contains(snapshot)) continue;
    std::vector<BufferBox> boxes = BoxesOf(Offered(source, dtype), PieceKind::kTensor, dtype);
    exact[snapshot] = Exact(tiles_of[snapshot], BytesOf(boxes));
    if (!exact[snapshot]) wholes_.push_back({source, offset, std::move(boxes)});
  }
  for (const Tile& tile : tiles_) fused_.push_back(exact[snapshot_of(tile.box)]);
}

void SnapshotWriter::Convert(int source, Dtype to, std::byte* snapshot) const {
  // Elements that are offered in another dtype have a snapshot of their own.
  const Buffer offered = Offered(source, to);
  const Index from_bytes = DtypeBits(offered.dtype) / 8, to_bytes = DtypeBits(to) / 8;
  for (const BufferBox& box : BoxesOf(offered, PieceKind::kTensor, offered.dtype)) {
    kernels::StridedCast cast;
    cast.src = memory_.at(source) + box.offset;
    cast.dst = snapshot + box.offset / from_bytes * to_bytes;
    auto loop = [&](Index extent, Index stride) {
      cast.extent[cast.rank] = extent;
      cast.src_stride[cast.rank] = stride;
      cast.dst_stride[cast.rank] = stride / from_bytes * to_bytes;
      ++cast.rank;
    };
    static_assert(kernels::kMaxBoxLoops + 1 <= kernels::kMaxCastLoops);
    for (const auto& [extent, stride] : box.loops) loop(extent, stride);
    loop(box.run_bytes / from_bytes, from_bytes);
    kernels::Cast(FloatTypeOf(offered.dtype), FloatTypeOf(to), cast);
  }
}

void SnapshotWriter::Write(absl::Span<std::byte> slot, absl::Span<std::byte> sums, uint64_t incarnation,
                           uint64_t generation) const {
  OpenSlot(slot, incarnation, generation);
  for (const auto& [snapshot, offset] : converted_) Convert(snapshot.first, snapshot.second, slot.data() + offset);
  for (const Whole& whole : wholes_) {
    for (const BufferBox& box : whole.boxes) {
      kernels::Copy(Lower(box, memory_.at(whole.source), slot.data() + whole.snapshot));
    }
  }
  const SourceOf published = Published(slot);
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const Copy& copy = tiles_[i].box;
    const uint64_t sum = fused_[i] ? kernels::CopyAndSum(LowerSourceBox(copy, memory_.at(copy.source),
                                                                        slot.data() + layout_.BufferOffset(copy)))
                                   : kernels::Sum(Lower(copy, published(copy), nullptr));
    for (int64_t at : tiles_[i].sums) std::memcpy(sums.data() + at, &sum, sizeof sum);
  }
  CloseSlot(slot, generation);
}

SourceOf SnapshotWriter::Published(absl::Span<const std::byte> slot) const {
  if (hold_) return [this](const Copy& copy) { return memory_.at(copy.source); };
  return [this, slot](const Copy& copy) { return slot.data() + layout_.BufferOffset(copy); };
}

bool SnapshotWriter::Agrees(absl::Span<const std::byte> slot, absl::Span<const std::byte> sums) const {
  const SourceOf published = Published(slot);
  return std::all_of(tiles_.begin(), tiles_.end(), [&](const Tile& tile) {
    const uint64_t sum = kernels::Sum(Lower(tile.box, published(tile.box), nullptr));
    return std::memcmp(sums.data() + tile.sums[0], &sum, sizeof sum) == 0;
  });
}

void SnapshotWriter::SumAgain(absl::Span<const std::byte> slot, absl::Span<std::byte> sums) const {
  const SourceOf published = Published(slot);
  for (const Tile& tile : tiles_) {
    const uint64_t sum = kernels::Sum(Lower(tile.box, published(tile.box), nullptr));
    for (int64_t at : tile.sums) std::memcpy(sums.data() + at, &sum, sizeof sum);
  }
}

}  // namespace headrace
