#ifndef HEADRACE_KERNELS_CUDA_TABLE_H_
#define HEADRACE_KERNELS_CUDA_TABLE_H_

// A launch works off a table of descriptors, cut into tiles of about equal cost. Warps are its workers: each takes an
// equal share of consecutive tiles, finds the descriptor of the first one by binary search and walks on from there, so
// that one huge box beside 100,000 tiny ones keeps every warp busy.

#include <cstdint>

#include "kernels/host_device.h"

namespace headrace::kernels::grid {

inline constexpr int kWarpLanes = 32;
// Units of a box's packed order that make a tile, at least one tile for each box: 8 for each lane of a warp, 4 KiB
// where a unit is 16 bytes.
inline constexpr int64_t kTileUnits = 256;

HR_HOST_DEVICE constexpr int64_t TilesOf(int64_t units) { return (units + kTileUnits - 1) / kTileUnits; }

// Descriptor i owns tiles [first_tile[i], first_tile[i + 1]), at least one; first_tile[count] == tiles.
template <class Descriptor>
struct Table {
  const Descriptor* descriptors;
  const int64_t* first_tile;
  int64_t count;
  int64_t tiles;
};

struct TileRange {
  int64_t begin;
  int64_t end;
};

// The share of worker 0 <= worker < workers; shares differ by one tile at most, and every tile is in one.
HR_HOST_DEVICE constexpr TileRange SplitTiles(int64_t tiles, int64_t worker, int64_t workers) {
  const int64_t each = tiles / workers, more = tiles % workers;
  const int64_t begin = worker * each + internal::Min(worker, more);
  return {begin, begin + each + (worker < more ? 1 : 0)};
}

// The descriptor that owns `tile`, 0 <= tile < first_tile[count].
HR_HOST_DEVICE constexpr int64_t FindDescriptor(const int64_t* first_tile, int64_t count, int64_t tile) {
  int64_t low = 0, high = count;  // first_tile[low] <= tile < first_tile[high]
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

// Calls body(descriptor, begin, end) for each descriptor of a worker's share, with its own tiles [begin, end) counted
// from 0.
template <class Descriptor, class Body>
HR_HOST_DEVICE void ForEachSlice(const Table<Descriptor>& table, int64_t worker, int64_t workers, Body&& body) {
  const TileRange share = SplitTiles(table.tiles, worker, workers);
  if (share.begin == share.end) return;
  int64_t i = FindDescriptor(table.first_tile, table.count, share.begin);
  for (int64_t tile = share.begin; tile < share.end; ++i) {
    const int64_t first = table.first_tile[i];
    const int64_t end = internal::Min(share.end, table.first_tile[i + 1]);
    body(table.descriptors[i], tile - first, end - first);
    tile = end;
  }
}

}  // namespace headrace::kernels::grid

#endif  // HEADRACE_KERNELS_CUDA_TABLE_H_
