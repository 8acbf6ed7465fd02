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
#include "planner/status.h"

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
  for (const BufferBox& box : boxes) total += BytesOf(box);
  return total;
}

// Whether the boxes are as many bytes as `bytes` and none of them twice.
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
                               std::map<int, const std::byte*> memory, std::vector<ReplicaSum> replicas, bool hold,
                               SnapshotMeans means)
    : manifest_(manifest),
      layout_(manifest, source_rank, hold),
      sums_layout_(plan, source_rank),
      memory_(std::move(memory)),
      hold_(hold),
      means_(std::move(means)),
      replicas_(std::move(replicas)) {
  for (const TensorSpec& t : manifest.tensors) dtypes_.emplace(t.name, t.dtype);
  for (const auto& [snapshot, offset] : layout_.buffers()) {
    if (manifest.source[snapshot.first].dtype != snapshot.second) converted_.emplace(snapshot, offset);
  }
  AddTiles(plan, source_rank);
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
  struct Boxes {
    std::vector<const Copy*> tiles;
    std::vector<const Copy*> replicas;
    bool tiles_exact = false;
    bool replicas_exact = false;
    std::map<int, Index> tile_bytes;  // by tensor
  };
  std::map<std::pair<int, Dtype>, Boxes> of;
  for (const Tile& tile : tiles_) {
    Boxes& boxes = of[snapshot_of(tile.box)];
    boxes.tiles.push_back(&tile.box);
    boxes.tile_bytes[tile.box.tensor] += tile.box.bytes();
  }
  for (const ReplicaSum& sum : replicas_)
    for (const Copy& box : sum.boxes) of[snapshot_of(box)].replicas.push_back(&box);
  for (const auto& [snapshot, _] : layout_.buffers()) of[snapshot];
  const auto is_copied = [&](const auto& snapshot) { return !hold_ && !converted_.contains(snapshot); };
  const auto is_fused = [&](const auto& snapshot) {
    return is_copied(snapshot) && !means_.on_gpu.contains(snapshot.first);
  };
  for (auto& [snapshot, boxes] : of) {
    const auto& [source, dtype] = snapshot;
    std::vector<BufferBox> offered = BoxesOf(Offered(source, dtype), PieceKind::kTensor, dtype);
    boxes.tiles_exact = Exact(boxes.tiles, BytesOf(offered));
    if (!is_copied(snapshot)) continue;
    const bool fused = is_fused(snapshot);
    boxes.replicas_exact = fused && !boxes.tiles_exact && Exact(boxes.replicas, BytesOf(offered));
    if (!fused || (!boxes.tiles_exact && !boxes.replicas_exact)) {
      wholes_.push_back({source, layout_.BufferOffset(source, dtype), std::move(offered)});
    }
  }
  for (const Tile& tile : tiles_)
    fused_.push_back(of.at(snapshot_of(tile.box)).tiles_exact && is_fused(snapshot_of(tile.box)));
  replica_of_tile_.assign(tiles_.size(), -1);
  std::map<std::pair<int, int>, int> made_up;  // of tiles: sums, by buffer and tensor
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const ReplicaSum& sum = replicas_[i];
    const Boxes& boxes = of.at(snapshot_of(sum.boxes[0]));
    Index bytes = 0;
    for (const Copy& box : sum.boxes) bytes += box.bytes();
    const auto tiles = boxes.tile_bytes.find(sum.tensor);
    if (boxes.tiles_exact && tiles != boxes.tile_bytes.end() && tiles->second == bytes) {
      made_up[{sum.boxes[0].source, sum.tensor}] = static_cast<int>(i);
    } else {
      for (const Copy& box : sum.boxes) AddReplicaBox(box, i, boxes.replicas_exact);
    }
  }
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const auto sum = made_up.find({tiles_[i].box.source, tiles_[i].box.tensor});
    if (sum != made_up.end()) replica_of_tile_[i] = sum->second;
  }
}

void SnapshotWriter::AddReplicaBox(Copy box, size_t sum, bool fused) {
  if (box.loops.empty()) {
    auto tile = std::lower_bound(tiles_.begin(), tiles_.end(), box, [](const Tile& t, const Copy& b) {
      return std::tie(t.box.source, t.box.source_offset) < std::tie(b.source, b.source_offset);
    });
    for (; tile != tiles_.end() && tile->box.source == box.source; ++tile) {
      const Copy& part = tile->box;
      const Index before = part.source_offset - box.source_offset;
      if (before >= box.run_bytes) break;
      // What several tiles have in common is the first one's.
      if (before < 0 || !part.loops.empty() || part.tensor != box.tensor || part.position != box.position + before ||
          before + part.run_bytes > box.run_bytes)
        continue;
      if (before > 0) {
        replica_boxes_.push_back({box, sum, fused});
        replica_boxes_.back().box.run_bytes = before;
      }
      const size_t index = static_cast<size_t>(tile - tiles_.begin());
      replica_of_tile_[index] = static_cast<int>(sum);
      if (fused) fused_[index] = true;
      const Index past = before + part.run_bytes;
      box.source_offset += past;
      box.destination_offset += past;
      box.position += past;
      box.run_bytes -= past;
    }
    if (box.run_bytes == 0) return;
  }
  replica_boxes_.push_back({std::move(box), sum, fused});
}

absl::Status SnapshotWriter::Convert(int source, Dtype to, std::byte* snapshot) const {
  // Elements that are offered in another dtype have a snapshot of their own.
  const Buffer offered = Offered(source, to);
  const Index from_bytes = DtypeBits(offered.dtype) / 8, to_bytes = DtypeBits(to) / 8;
  // `from`: the box's first byte; packed: its runs lie one behind the other there.
  const auto convert = [&](const BufferBox& box, const std::byte* from, bool packed) {
    kernels::StridedCast cast;
    cast.src = from;
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
    for (int i = cast.rank - 2; packed && i >= 0; --i) {
      cast.src_stride[i] = cast.extent[i + 1] * cast.src_stride[i + 1];
    }
    (packed ? OnCpu() : means_.work)->Cast(FloatTypeOf(offered.dtype), FloatTypeOf(to), cast);
  };
  for (const BufferBox& box : BoxesOf(offered, PieceKind::kTensor, offered.dtype)) {
    if (!means_.on_gpu.contains(source)) {
      convert(box, memory_.at(source) + box.offset, /*packed=*/false);
    } else {
      HR_RETURN_IF_ERROR(means_.gpu->ReadInPieces(
          box, memory_.at(source), from_bytes,
          [&](const BufferBox& piece, const std::byte* bytes) { convert(piece, bytes, /*packed=*/true); }));
    }
  }
  return absl::OkStatus();
}

absl::Status SnapshotWriter::CopyWholes(std::byte* slot) const {
  for (const Whole& whole : wholes_) {
    for (const BufferBox& box : whole.boxes) {
      const kernels::StridedCopy copy = Lower(box, memory_.at(whole.source), slot + whole.snapshot);
      if (means_.on_gpu.contains(whole.source)) {
        means_.gpu->FromDevice(copy);
      } else {
        means_.work->Copy(copy, /*sum=*/nullptr);
      }
    }
  }
  return means_.on_gpu.empty() ? absl::OkStatus() : means_.gpu->Finish();
}

absl::StatusOr<std::vector<uint64_t>> SnapshotWriter::Write(absl::Span<std::byte> slot, absl::Span<std::byte> sums,
                                                            uint64_t incarnation, uint64_t generation) const {
  HR_RETURN_IF_ERROR(OpenSlot(slot, incarnation, generation, means_.regions));
  for (const auto& [snapshot, offset] : converted_) {
    HR_RETURN_IF_ERROR(Convert(snapshot.first, snapshot.second, slot.data() + offset));
  }
  HR_RETURN_IF_ERROR(CopyWholes(slot.data()));
  Sums made = NoSums();
  HR_RETURN_IF_ERROR(CopyFused(slot.data(), &made));
  // After those: they may have bytes in common.
  HR_RETURN_IF_ERROR(SumPublished(slot, /*all=*/false, &made));
  std::vector<uint64_t> replica_sums;
  HR_RETURN_IF_ERROR(StoreSums(made, sums, &replica_sums));
  HR_RETURN_IF_ERROR(CloseSlot(slot, generation, means_.regions));
  return replica_sums;
}

absl::Status SnapshotWriter::CopyFused(std::byte* slot, Sums* sums) const {
  const auto copy = [&](const Copy& box, uint64_t* sum) {
    means_.work->Copy(LowerSourceBox(box, memory_.at(box.source), slot + layout_.BufferOffset(box)), sum);
  };
  for (const ReplicaBox& replica : replica_boxes_)
    if (replica.fused) copy(replica.box, &sums->replicas[replica.sum]);
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (fused_[i]) copy(tiles_[i].box, &sums->tiles[i]);
  }
  return means_.work->Finish();
}

absl::Status SnapshotWriter::SumPublished(absl::Span<const std::byte> slot, bool all, Sums* sums) const {
  const SourceOf published = Published(slot);
  const auto sum = [&](const Copy& box, uint64_t* sum) { means_.work->Sum(Lower(box, published(box), nullptr), sum); };
  for (size_t i = 0; i < tiles_.size(); ++i) {
    if (all || !fused_[i]) sum(tiles_[i].box, &sums->tiles[i]);
  }
  for (const ReplicaBox& replica : replica_boxes_) {
    if (all || !replica.fused) sum(replica.box, &sums->replicas[replica.sum]);
  }
  return means_.work->Finish();
}

absl::Status SnapshotWriter::StoreSums(const Sums& sums, absl::Span<std::byte> region,
                                       std::vector<uint64_t>* replica_sums) const {
  std::vector<uint64_t> words(region.size() / sizeof(uint64_t));
  *replica_sums = sums.replicas;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    for (int64_t at : tiles_[i].sums) words[at / sizeof(uint64_t)] = sums.tiles[i];
    if (replica_of_tile_[i] >= 0) (*replica_sums)[replica_of_tile_[i]] += sums.tiles[i];
  }
  return means_.regions->StoreWords(words, region.data());
}

SourceOf SnapshotWriter::Published(absl::Span<const std::byte> slot) const {
  if (hold_) return [this](const Copy& copy) { return memory_.at(copy.source); };
  return [this, slot](const Copy& copy) { return slot.data() + layout_.BufferOffset(copy); };
}

absl::StatusOr<bool> SnapshotWriter::Agrees(absl::Span<const std::byte> slot, absl::Span<const std::byte> sums,
                                            absl::Span<const uint64_t> replica_sums) const {
  Sums made = NoSums();
  HR_RETURN_IF_ERROR(SumPublished(slot, /*all=*/true, &made));
  std::vector<uint64_t> words(sums.size() / sizeof(uint64_t));
  HR_RETURN_IF_ERROR(means_.regions->LoadWords(sums.data(), absl::MakeSpan(words)));
  for (size_t i = 0; i < tiles_.size(); ++i) {
    for (int64_t at : tiles_[i].sums)
      if (words[at / sizeof(uint64_t)] != made.tiles[i]) return false;
    if (replica_of_tile_[i] >= 0) made.replicas[replica_of_tile_[i]] += made.tiles[i];
  }
  return made.replicas == replica_sums;
}

absl::StatusOr<std::vector<uint64_t>> SnapshotWriter::SumAgain(absl::Span<const std::byte> slot,
                                                               absl::Span<std::byte> sums) const {
  Sums made = NoSums();
  HR_RETURN_IF_ERROR(SumPublished(slot, /*all=*/true, &made));
  std::vector<uint64_t> replica_sums;
  HR_RETURN_IF_ERROR(StoreSums(made, sums, &replica_sums));
  return replica_sums;
}

}  // namespace headrace
