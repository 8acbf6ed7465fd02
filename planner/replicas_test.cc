#include "planner/replicas.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// A place of a byte: source buffer, byte in its snapshot, byte of the tensor.
using Place = std::tuple<int, Index, Index>;

void VisitPiece(const Manifest& m, int tensor, const Buffer& b, const Piece& p,
                const std::function<void(Index element, Index place)>& f) {
  const Extents counted = p.view ? *p.view : m.tensors[tensor].shape;
  Index volume = 1;
  for (Index e : p.shape) volume *= e;
  for (Index n = 0; n < volume; ++n) {
    Index rest = n, element = 0, weight = 1, place = 0;
    for (size_t i = p.shape.size(); i-- > 0;) {
      const Index at = rest % p.shape[i];
      rest /= p.shape[i];
      element += (p.tensor_offset[i] + at) * weight;
      weight *= counted[i];
      const int axis = p.axes.empty() ? static_cast<int>(i) : p.axes[i];
      place += (p.buffer_offset[axis] + at) * b.strides[axis];
    }
    f(element, place);
  }
}

// Bytes of a tensor that are wanted, and where each is offered, element by element.
struct Oracle {
  Oracle(const Manifest& m, int tensor) {
    const int bits = DtypeBits(m.tensors[tensor].dtype);
    const auto visit = [&](const std::vector<Buffer>& side, const std::function<void(int, Index, Index)>& f) {
      for (size_t b = 0; b < side.size(); ++b) {
        for (const Piece& p : side[b].pieces) {
          if (p.kind != PieceKind::kTensor || p.tensor != m.tensors[tensor].name) continue;
          VisitPiece(m, tensor, side[b], p, [&](Index element, Index place) {
            // Elements of less than a byte lie in bytes of their own kind, together.
            for (Index bit = 0; bit < bits; ++bit)
              if ((element * bits + bit) % 8 == 0)
                f(static_cast<int>(b), (place * bits + bit) / 8, (element * bits + bit) / 8);
          });
        }
      }
    };
    visit(m.destination, [&](int, Index, Index position) { wanted.insert(position); });
    visit(m.source, [&](int b, Index place, Index position) { offered[position].push_back({b, place, position}); });
    for (auto& [_, places] : offered) std::sort(places.begin(), places.end());
  }
  std::set<Index> wanted;
  std::map<Index, std::vector<Place>> offered;
};

std::vector<Place> PlacesOf(const ReplicaSum& sum) {
  std::vector<Place> places;
  for (const Copy& c : sum.boxes) {
    EXPECT_EQ(c.tensor, sum.tensor);
    EXPECT_EQ(c.destination, -1);
    Index steps = 1;
    for (const CopyLoop& l : c.loops) steps *= l.extent;
    for (Index n = 0; n < steps; ++n) {
      Index source = c.source_offset, position = c.position, rest = n;
      for (size_t i = c.loops.size(); i-- > 0;) {
        const Index at = rest % c.loops[i].extent;
        rest /= c.loops[i].extent;
        source += at * c.loops[i].source_stride;
        position += at * c.loops[i].position_stride;
        EXPECT_EQ(c.loops[i].destination_stride, c.loops[i].source_stride);
      }
      for (Index k = 0; k < c.run_bytes; ++k) places.push_back({c.source, source + k, position + k});
    }
  }
  return places;
}

// Returns how many bytes are offered more than once.
size_t Check(const Manifest& m) {
  std::set<int64_t> ranks;
  for (const Buffer& b : m.source) ranks.insert(b.rank);
  // The positions of each id, as each of its sums has them; and all places.
  std::map<uint64_t, std::vector<std::vector<Index>>> positions;
  std::map<uint64_t, int> tensors;
  std::map<uint64_t, std::vector<int>> buffers;
  std::map<std::pair<int, Index>, std::vector<Place>> places;
  for (int64_t rank : ranks) {
    const auto sums = FindReplicas(m, rank);
    EXPECT_TRUE(sums.ok()) << sums.status();
    for (const ReplicaSum& sum : *sums) {
      std::vector<Index>& mine = positions[sum.id].emplace_back();
      EXPECT_FALSE(sum.boxes.empty());
      EXPECT_EQ(tensors.emplace(sum.id, sum.tensor).first->second, sum.tensor);
      buffers[sum.id].push_back(sum.boxes.at(0).source);
      for (const Place& place : PlacesOf(sum)) {
        const auto& [buffer, offset, position] = place;
        EXPECT_EQ(buffer, sum.boxes[0].source);
        EXPECT_EQ(m.source[buffer].rank, rank);
        mine.push_back(position);
        places[{sum.tensor, position}].push_back(place);
      }
      std::sort(mine.begin(), mine.end());
      EXPECT_EQ(std::adjacent_find(mine.begin(), mine.end()), mine.end()) << "a byte twice in one sum";
    }
  }
  std::set<std::pair<int, std::vector<int>>> kinds;
  for (auto& [id, of] : positions) {
    EXPECT_GE(of.size(), 2u);
    for (const auto& each : of) EXPECT_EQ(each, of[0]) << "id " << id;
    std::sort(buffers[id].begin(), buffers[id].end());
    EXPECT_TRUE(kinds.insert({tensors[id], buffers[id]}).second) << "one sum would do";
  }
  size_t replicated = 0;
  for (size_t t = 0; t < m.tensors.size(); ++t) {
    const Oracle oracle(m, static_cast<int>(t));
    for (const auto& [position, offered] : oracle.offered) {
      std::vector<Place>& found = places[{static_cast<int>(t), position}];
      std::sort(found.begin(), found.end());
      if (offered.size() < 2 || !oracle.wanted.contains(position)) {
        EXPECT_THAT(found, IsEmpty()) << m.tensors[t].name << " byte " << position;
      } else {
        ++replicated;
        EXPECT_EQ(found, offered) << m.tensors[t].name << " byte " << position;
      }
      found.clear();
    }
  }
  for (const auto& [_, left] : places) EXPECT_THAT(left, IsEmpty());
  return replicated;
}

TEST(Replicas, TheExampleOfTheHeader) {
  const TensorSpec t{"t", {4, 3}, Dtype::kU8};
  Manifest m = WholeManifest({t});
  const auto rows = [&](int64_t rank, Index first, Index count) {
    m.source.push_back(BufferOf(rank, "rows", Dtype::kU8, {count, 3}, {PieceOf("t", {first, 0}, {count, 3}, {0, 0})}));
  };
  rows(1, 0, 2);
  rows(2, 2, 2);
  rows(3, 3, 1);
  ASSERT_TRUE(BuildPlan(m).ok());
  const auto boxes = [&](int64_t rank) {
    std::vector<std::pair<uint64_t, std::pair<Index, Index>>> out;
    const auto sums = FindReplicas(m, rank);
    for (const ReplicaSum& sum : *sums)
      for (const Copy& box : sum.boxes) out.push_back({sum.id, {box.source_offset, box.bytes()}});
    return out;
  };
  EXPECT_THAT(boxes(0), ElementsAre(Pair(0, Pair(0, 6)), Pair(1, Pair(6, 3)), Pair(2, Pair(9, 3))));
  EXPECT_THAT(boxes(1), ElementsAre(Pair(0, Pair(0, 6))));
  EXPECT_THAT(boxes(2), ElementsAre(Pair(1, Pair(0, 3)), Pair(2, Pair(3, 3))));
  EXPECT_THAT(boxes(3), ElementsAre(Pair(2, Pair(0, 3))));
  EXPECT_EQ(Check(m), 12u);
}

// Whole shards that others hold too are one box each, whatever the engines' cuts.
TEST(Replicas, EqualShardsAreOneBox) {
  const TensorSpec t{"t", {8, 6}, Dtype::kBF16};
  Manifest m;
  m.tensors = {t};
  for (int64_t rank = 0; rank < 8; ++rank)
    m.source.push_back(BufferOf(rank, "shard", t.dtype, {2, 6}, {PieceOf("t", {2 * (rank % 4), 0}, {2, 6}, {0, 0})}));
  for (int64_t rank = 0; rank < 3; ++rank)
    m.destination.push_back(BufferOf(rank, "columns", t.dtype, {8, 2}, {PieceOf("t", {0, 2 * rank}, {8, 2}, {0, 0})}));
  ASSERT_TRUE(BuildPlan(m).ok());
  EXPECT_EQ(Check(m), 96u);
  for (int64_t rank = 0; rank < 8; ++rank) {
    const auto sums = FindReplicas(m, rank);
    ASSERT_EQ(sums->size(), 1u);
    ASSERT_EQ((*sums)[0].boxes.size(), 1u);
    EXPECT_EQ((*sums)[0].boxes[0].run_bytes, 24);
  }
}

// Flat shards that cross rows are several boxes on the common axes, and one run of memory.
TEST(Replicas, FlatShardsAreOneRun) {
  Manifest m = WholeManifest({{"t", {5, 4}, Dtype::kF32}});
  m.source.clear();
  for (int64_t rank = 0; rank < 4; ++rank)
    m.source.push_back(BufferOf(rank, "flat", Dtype::kF32, {10}, {ViewPiece("t", {20}, {10 * (rank / 2)}, {10}, {0})}));
  ASSERT_TRUE(BuildPlan(m).ok());
  EXPECT_EQ(Check(m), 80u);
  for (int64_t rank = 0; rank < 4; ++rank) {
    const auto sums = FindReplicas(m, rank);
    ASSERT_EQ(sums->size(), 1u);
    ASSERT_EQ((*sums)[0].boxes.size(), 1u);
    EXPECT_EQ((*sums)[0].boxes[0].run_bytes, 40);
  }
}

TEST(Replicas, WhatNobodyWantsOrHoldsTwiceIsNotCompared) {
  Manifest m = WholeManifest({{"a", {4}, Dtype::kU8}, {"b", {4}, Dtype::kU8}, {"c", {4}, Dtype::kU8}});
  m.destination[1] = BufferOf(0, "b", Dtype::kU8, {2}, {PieceOf("b", {1}, {2}, {0})});
  m.destination.pop_back();
  m.ignore = {"b", "c"};
  for (int i : {1, 2}) {
    m.source.push_back(m.source[i]);
    m.source.back().rank = 1;
  }
  ASSERT_TRUE(BuildPlan(m).ok());
  EXPECT_EQ(Check(m), 2u);
  m.destination.clear();
  m.ignore.push_back("a");
  EXPECT_EQ(Check(m), 0u);
}

// Twice in one buffer, and in two buffers of one rank.
TEST(Replicas, OfOneRank) {
  Manifest m = WholeManifest({{"a", {3}, Dtype::kU8}});
  m.source[0] = BufferOf(0, "twice", Dtype::kU8, {7}, {PieceOf("a", {0}, {3}, {0}), PieceOf("a", {0}, {3}, {4})});
  ASSERT_TRUE(BuildPlan(m).ok());
  EXPECT_EQ(Check(m), 3u);
  EXPECT_EQ(FindReplicas(m, 0)->size(), 2u);
  m.source.push_back(BufferOf(0, "again", Dtype::kU8, {2}, {PieceOf("a", {1}, {2}, {0})}));
  ASSERT_TRUE(BuildPlan(m).ok());
  EXPECT_EQ(Check(m), 3u);
  EXPECT_EQ(FindReplicas(m, 0)->size(), 5u);
}

TEST(Replicas, RandomManifestsElementByElement) {
  size_t replicated = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Manifest m = RandomManifest(random);
    // Some of the destinations go away.
    if (seed % 4 == 0) {
      m.ignore.clear();
      for (const TensorSpec& t : m.tensors) m.ignore.push_back(t.name);
      m.coupled.clear();
      std::erase_if(m.destination, [&](const Buffer& b) { return b.alias_of || Uniform(random, 0, 2) == 0; });
    }
    replicated += Check(m);
    if (HasFailure()) return;
  }
  EXPECT_GT(replicated, 10000u);
}

}  // namespace
}  // namespace headrace
