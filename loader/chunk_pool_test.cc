#include "loader/chunk_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "loader/testing/fixed_chunks.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Kind = ChunkPool::Kind;
using testing::FixedChunks;

constexpr int64_t kBytes = 100;

Chunk TakeOne(ChunkPool& pool, Kind kind) {
  absl::StatusOr<Chunk> chunk = pool.Take(kind);
  EXPECT_TRUE(chunk.ok()) << chunk.status();
  return chunk.ok() ? *std::move(chunk) : nullptr;
}

TEST(ChunkPoolTest, AtTheCapThereIsNoneUntilOneIsGivenBack) {
  for (const Kind taken : {Kind::kData, Kind::kSums}) {
    for (const Kind wanted : {Kind::kData, Kind::kSums}) {
      FixedChunks work(2, kBytes);
      ChunkPool pool(&work, kBytes, 3 * kBytes - 1);
      Chunk a = TakeOne(pool, taken), b = TakeOne(pool, taken);
      ASSERT_NE(a, nullptr);
      ASSERT_NE(b, nullptr);
      EXPECT_EQ(TakeOne(pool, wanted), nullptr);
      EXPECT_EQ(pool.peak_bytes(), 2 * kBytes);
      pool.GiveBack(taken, std::move(a));
      a = TakeOne(pool, wanted);
      EXPECT_NE(a, nullptr);
      EXPECT_EQ(work.Made(a.get()), wanted == Kind::kData);
      EXPECT_EQ(TakeOne(pool, wanted), nullptr);
      EXPECT_EQ(pool.peak_bytes(), 2 * kBytes);
    }
  }
}

TEST(ChunkPoolTest, DataIsKeptAndSumsAreNot) {
  FixedChunks work(4, kBytes);
  ChunkPool pool(&work, kBytes, 4 * kBytes);
  Chunk data = TakeOne(pool, Kind::kData), sums = TakeOne(pool, Kind::kSums);
  const std::byte* const first = data.get();
  EXPECT_TRUE(work.Made(first));
  EXPECT_FALSE(work.Made(sums.get()));
  EXPECT_EQ(work.free(), 3);
  pool.GiveBack(Kind::kData, std::move(data));
  pool.GiveBack(Kind::kSums, std::move(sums));
  EXPECT_EQ(work.free(), 3);
  EXPECT_FALSE(work.Made(TakeOne(pool, Kind::kSums).get()));
  EXPECT_EQ(TakeOne(pool, Kind::kData).get(), first);
}

// Kept ones would fill the cap, and whoever waits for sums would wait for ever.
TEST(ChunkPoolTest, KeptChunksMakeRoomForSums) {
  constexpr int kChunks = 3;
  FixedChunks work(kChunks, kBytes);
  ChunkPool pool(&work, kBytes, kChunks * kBytes);
  for (int again : {0, 1, 2}) {
    for (const Kind kind : {Kind::kData, Kind::kSums}) {
      std::vector<Chunk> chunks;
      for (int i = 0; i < kChunks; ++i) {
        chunks.push_back(TakeOne(pool, kind));
        EXPECT_NE(chunks.back(), nullptr) << again;
      }
      EXPECT_EQ(TakeOne(pool, kind), nullptr);
      for (Chunk& chunk : chunks) pool.GiveBack(kind, std::move(chunk));
    }
    EXPECT_EQ(work.free(), kChunks);
  }
  EXPECT_EQ(pool.peak_bytes(), kChunks * kBytes);
}

TEST(ChunkPoolTest, AChunkThatCannotBeMadeTakesNoRoom) {
  FixedChunks work(1, kBytes);
  ChunkPool pool(&work, kBytes, 2 * kBytes);
  const Chunk data = TakeOne(pool, Kind::kData);
  for (int again : {0, 1, 2}) {
    EXPECT_TRUE(HasCode(pool.Take(Kind::kData).status(), ErrorCode::kOutOfMemory)) << again;
  }
  EXPECT_EQ(pool.peak_bytes(), kBytes);
  EXPECT_NE(TakeOne(pool, Kind::kSums), nullptr);
}

TEST(ChunkPoolTest, HoldsWhatTheCapHolds) {
  ChunkPool pool(OnCpu(), kBytes, 3 * kBytes - 1);
  EXPECT_TRUE(pool.Holds(0));
  EXPECT_TRUE(pool.Holds(2));
  EXPECT_FALSE(pool.Holds(3));
  EXPECT_FALSE(pool.Holds(INT64_MAX));
}

TEST(CancelledChunksTest, AreValidAndCountUntilTheirOperationsComplete) {
  FixedChunks work(3, kBytes);
  CancelledChunks cancelled;
  {
    ChunkPool broke_off(&work, kBytes, 3 * kBytes);
    for (OpId op : {7, 8}) cancelled.Keep(op, TakeOne(broke_off, Kind::kData), kBytes);
    cancelled.Keep(9, NewHostChunk(1), 0);
  }
  EXPECT_EQ(work.free(), 1);
  EXPECT_EQ(cancelled.bytes(), 2 * kBytes);
  ChunkPool pool(&work, kBytes, 3 * kBytes, &cancelled);
  EXPECT_TRUE(pool.Holds(1));
  EXPECT_FALSE(pool.Holds(2));
  Chunk first = TakeOne(pool, Kind::kData);
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(TakeOne(pool, Kind::kSums), nullptr);
  EXPECT_EQ(TakeOne(pool, Kind::kData), nullptr);
  for (OpId op : {6, 9, 8, 8}) cancelled.Complete(op);
  EXPECT_EQ(cancelled.bytes(), kBytes);
  EXPECT_EQ(work.free(), 1);
  EXPECT_TRUE(pool.Holds(2));
  // A kept one makes room for sums, where it is those that were cancelled that take it.
  Chunk second = TakeOne(pool, Kind::kData);
  ASSERT_NE(second, nullptr);
  pool.GiveBack(Kind::kData, std::move(second));
  EXPECT_NE(TakeOne(pool, Kind::kSums), nullptr);
  EXPECT_EQ(work.free(), 1);
  EXPECT_EQ(pool.peak_bytes(), 2 * kBytes);
}

TEST(CancelledChunksTest, EndWithTheTransport) {
  FixedChunks work(1, kBytes);
  {
    CancelledChunks cancelled;
    cancelled.Keep(1, *work.NewChunk(kBytes), kBytes);
    EXPECT_EQ(work.free(), 0);
  }
  EXPECT_EQ(work.free(), 1);
}

// However it is used: a chunk is there exactly while fewer than the cap's are in use, of whatever kinds.
TEST(ChunkPoolTest, RandomUseStaysUnderTheCapAndNeverLocksUp) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int64_t most = 1 + static_cast<int64_t>(random() % 5);
    FixedChunks work(most, kBytes);
    std::vector<std::pair<Kind, Chunk>> used;
    int64_t peak = 0;
    {
      ChunkPool pool(&work, kBytes, most * kBytes + static_cast<int64_t>(random() % kBytes));
      for (int step = 0; step < 300; ++step) {
        if (random() % 2 == 0) {
          const Kind kind = random() % 2 == 0 ? Kind::kData : Kind::kSums;
          const bool room = static_cast<int64_t>(used.size()) < most;
          Chunk chunk = TakeOne(pool, kind);
          ASSERT_EQ(chunk != nullptr, room);
          if (room) used.emplace_back(kind, std::move(chunk));
        } else if (!used.empty()) {
          std::swap(used[random() % used.size()], used.back());
          pool.GiveBack(used.back().first, std::move(used.back().second));
          used.pop_back();
        }
        std::set<const std::byte*> distinct;
        for (const auto& [kind, chunk] : used) {
          distinct.insert(chunk.get());
          ASSERT_EQ(work.Made(chunk.get()), kind == Kind::kData);
        }
        ASSERT_EQ(distinct.size(), used.size());
        const int64_t sums =
            std::count_if(used.begin(), used.end(), [](const auto& u) { return u.first == Kind::kSums; });
        const int64_t taken = (most - work.free() + sums) * kBytes;  // the kept ones, too
        ASSERT_LE(taken, most * kBytes);
        peak = std::max(peak, taken);
      }
      EXPECT_EQ(pool.peak_bytes(), peak);
    }
    used.clear();
    EXPECT_EQ(work.free(), most);
  }
}

}  // namespace
}  // namespace headrace
