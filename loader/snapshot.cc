#include "loader/snapshot.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "kernels/cast.h"
#include "kernels/strided_copy.h"
#include "loader/lowering.h"

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

}  // namespace

SnapshotWriter::SnapshotWriter(const Manifest& manifest, const Plan& plan, int64_t source_rank,
                               std::map<int, const std::byte*> memory)
    : manifest_(manifest), layout_(manifest, plan, source_rank), memory_(std::move(memory)) {
  for (const TensorSpec& t : manifest.tensors) dtypes_.emplace(t.name, t.dtype);
  std::map<decltype(SourceKey(Copy())), Tile> tiles;
  for (const Edge& edge : plan.edges) {
    if (edge.source_rank != source_rank) continue;
    for (size_t i = 0; i < edge.count; ++i) {
      const Copy& copy = plan.copies[edge.first + i];
      Tile& tile = tiles.emplace(SourceKey(copy), Tile{&copy, {}}).first->second;
      tile.sums.push_back(layout_.SumsOffset(edge) + static_cast<int64_t>(i * sizeof(uint64_t)));
      const Dtype dtype = manifest.tensors[copy.tensor].dtype;
      if (manifest.source[copy.source].dtype != dtype) {
        converted_.emplace(std::make_pair(copy.source, dtype), layout_.BufferOffset(copy));
      }
    }
  }
  for (auto& [key, tile] : tiles) tiles_.push_back(std::move(tile));
}

void SnapshotWriter::Convert(int source, Dtype to, std::byte* snapshot) const {
  Buffer offered = manifest_.source[source];
  // Elements that are offered in another dtype have a snapshot of their own.
  std::erase_if(offered.pieces,
                [&](const Piece& p) { return p.kind == PieceKind::kTensor && dtypes_.at(p.tensor) != to; });
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

void SnapshotWriter::Write(absl::Span<std::byte> slot, uint64_t incarnation, uint64_t generation) const {
  OpenSlot(slot, incarnation, generation);
  for (const auto& [snapshot, offset] : converted_) Convert(snapshot.first, snapshot.second, slot.data() + offset);
  for (const Tile& tile : tiles_) {
    const Copy& copy = *tile.copy;
    std::byte* snapshot = slot.data() + layout_.BufferOffset(copy);
    const bool converted = converted_.contains({copy.source, manifest_.tensors[copy.tensor].dtype});
    const uint64_t sum = converted ? kernels::Sum(Lower(copy, snapshot, nullptr))
                                   : kernels::CopyAndSum(LowerSourceBox(copy, memory_.at(copy.source), snapshot));
    for (int64_t at : tile.sums) std::memcpy(slot.data() + at, &sum, sizeof sum);
  }
  CloseSlot(slot, generation);
}

}  // namespace headrace
