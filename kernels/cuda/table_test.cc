#include "kernels/cuda/table.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cursor.h"
#include "kernels/cuda/units.h"
#include "kernels/sum_keys.h"
#include "kernels/test_support.h"

namespace headrace::kernels::grid {
namespace {

using testing::SeededGenerator;
using testing::Uniform;

TEST(TableTest, EveryTileIsInOneShare) {
  for (int64_t tiles = 0; tiles < 40; ++tiles) {
    for (int64_t workers = 1; workers < 20; ++workers) {
      int64_t at = 0;
      for (int64_t worker = 0; worker < workers; ++worker) {
        const TileRange share = SplitTiles(tiles, worker, workers);
        ASSERT_EQ(share.begin, at);
        ASSERT_TRUE(share.end - share.begin == tiles / workers || share.end - share.begin == tiles / workers + 1);
        at = share.end;
      }
      ASSERT_EQ(at, tiles);
    }
  }
}

TEST(TableTest, FindsTheOwnerOfEachTile) {
  auto gen = SeededGenerator();
  for (int n = 0; n < 100; ++n) {
    std::vector<int64_t> first{0}, owner;
    for (int64_t count = Uniform(gen, 1, 50), i = 0; i < count; ++i) {
      const int64_t tiles = Uniform(gen, 1, Uniform(gen, 0, 9) == 0 ? 200 : 3);
      owner.insert(owner.end(), static_cast<size_t>(tiles), i);
      first.push_back(first.back() + tiles);
    }
    for (size_t tile = 0; tile < owner.size(); ++tile) {
      ASSERT_EQ(FindDescriptor(first.data(), static_cast<int64_t>(first.size()) - 1, static_cast<int64_t>(tile)),
                owner[tile]);
    }
  }
}

// One box of 2^26 units beside 100,000 of one: no worker has more than its part, in tiles or in boxes.
TEST(TableTest, HugeAndTinyBoxesAreSharedOut) {
  constexpr int64_t kHuge = TilesOf(int64_t{1} << 26), kTiny = 100000, kWorkers = 2112;
  std::vector<int> descriptors(kTiny + 1);
  std::vector<int64_t> first{0, kHuge};
  for (int64_t i = 1; i <= kTiny; ++i) first.push_back(kHuge + i * TilesOf(1));
  const Table<int> table{descriptors.data(), first.data(), kTiny + 1, first.back()};
  constexpr int64_t kPart = (kHuge + kTiny + kWorkers - 1) / kWorkers;
  int64_t tiles = 0, slices = 0;
  for (int64_t worker = 0; worker < kWorkers; ++worker) {
    int64_t mine = 0, boxes = 0;
    ForEachSlice(table, worker, kWorkers, [&](const int&, int64_t begin, int64_t end) {
      ++boxes;
      mine += end - begin;
    });
    ASSERT_LE(mine, kPart);
    ASSERT_LE(boxes, kPart);
    tiles += mine;
    slices += boxes;
  }
  EXPECT_EQ(tiles, kHuge + kTiny);
  EXPECT_GE(slices, kTiny + 1);
}

// Steps with carries against the division that starts a cursor, for every unit of small and random boxes.
TEST(CursorTest, AdvancesAsItStarts) {
  auto gen = SeededGenerator();
  for (int n = 0; n < 2000; ++n) {
    BoxShape<3, 2> shape = {};
    shape.run_units = Uniform(gen, 1, Uniform(gen, 0, 1) ? 5 : 70);
    int64_t units = shape.run_units;
    for (int i = 0; i < 3; ++i) {
      shape.extent[i] = Uniform(gen, 1, Uniform(gen, 0, 1) ? 3 : 40);
      units *= shape.extent[i];
      for (auto& side : shape.stride) side[i] = Uniform(gen, -1000, 1000);
    }
    SetAdvance(shape);
    const int unit_bytes[2] = {4, 2};
    for (int64_t lane = 0; lane < kWarpLanes; ++lane) {
      Cursor<2, 3, 2> walking(shape, unit_bytes, lane);
      for (int64_t unit = lane; unit < units; unit += kWarpLanes) {
        // In words: the run's units, then the loops from the innermost.
        int64_t left = unit, offset[2] = {left % shape.run_units * 4, left % shape.run_units * 2};
        left /= shape.run_units;
        for (int i = 2; i >= 0; --i) {
          for (int s = 0; s < 2; ++s) offset[s] += left % shape.extent[i] * shape.stride[s][i];
          left /= shape.extent[i];
        }
        for (int s = 0; s < 2; ++s) ASSERT_EQ(walking.offset(s), offset[s]) << unit;
        walking.Advance(shape);
      }
    }
  }
}

template <int kBytes>
void CheckUnitSum(std::mt19937_64& gen) {
  const uint64_t tensor = gen();
  BlockFactor factor(tensor);
  for (int64_t position = 0; position < 3 * internal::kSumBlockBytes; ++position) {
    const std::vector<std::byte> bytes = testing::RandomBytes(gen, kBytes);
    Unit<kBytes> unit;
    std::memcpy(&unit, bytes.data(), kBytes);
    ASSERT_EQ(UnitSum(unit, position, internal::kSumKeyTable.key.data(), factor),
              testing::OracleSum(tensor, position, bytes.data(), kBytes))
        << kBytes << " bytes at " << position;
  }
}

TEST(UnitSumTest, AtEveryPositionOfABlock) {
  auto gen = SeededGenerator();
  CheckUnitSum<1>(gen);
  CheckUnitSum<2>(gen);
  CheckUnitSum<4>(gen);
  CheckUnitSum<8>(gen);
  CheckUnitSum<16>(gen);
}

}  // namespace
}  // namespace headrace::kernels::grid
