#include "loader/snapshot.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sum.h"
#include "loader/lowering.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "planner/replicas.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::SideMemory;
using testing::VisitCopy;
using testing::VisitPiece;

std::map<int, const std::byte*> FirstBytes(const Manifest& m, int64_t rank, SideMemory* memory) {
  std::map<int, const std::byte*> first;
  for (size_t s = 0; s < m.source.size(); ++s) {
    if (m.source[s].rank == rank) first[static_cast<int>(s)] = memory->First(m.source[s]);
  }
  return first;
}

// Writes generation 7 of all sources and checks slots, sums and what a receiver makes of them.
void CheckSnapshots(const Manifest& m, Policy policy = Policy::kAuto) {
  const auto plan = BuildPlan(m, {.policy = policy});
  ASSERT_TRUE(plan.ok()) << plan.status();
  SideMemory source(m.source), live(m.destination), wanted(m.destination);
  testing::PaintSource(m, 7, &source);
  std::set<int64_t> sources, destinations;
  for (const Buffer& b : m.source) sources.insert(b.rank);
  for (const Buffer& b : m.destination) destinations.insert(b.rank);
  for (int64_t rank : destinations) {
    for (const Buffer& b : m.destination) {
      if (b.rank != rank) continue;
      for (const BufferBox& zero : BoxesOf(b, PieceKind::kZero, b.dtype)) Clear(zero, live.First(b));
    }
    testing::PaintDestination(m, rank, 7, &wanted);
  }
  std::map<uint64_t, uint64_t> sum_of_replica;  // by id
  for (int64_t rank : sources) {
    const auto replicas = FindReplicas(m, rank);
    ASSERT_TRUE(replicas.ok()) << replicas.status();
    const SnapshotWriter writer(m, *plan, rank, FirstBytes(m, rank, &source), *replicas);
    std::vector<std::byte> slot(writer.layout().bytes(), testing::kPoison);
    std::vector<std::byte> sums(writer.sums_layout().slot_bytes(), testing::kPoison), again = sums;
    const std::vector<uint64_t> replica_sums = *writer.Write(absl::MakeSpan(slot), absl::MakeSpan(sums), 99, 7);
    ASSERT_EQ(*writer.SumAgain(absl::MakeConstSpan(slot), absl::MakeSpan(again)), replica_sums);
    ASSERT_EQ(sums, again);
    ASSERT_EQ(replica_sums.size(), replicas->size());
    // Weights that are held have the same sums.
    if (std::none_of(m.source.begin(), m.source.end(),
                     [&](const Buffer& b) { return b.rank == rank && b.convert_rne; })) {
      const SnapshotWriter holder(m, *plan, rank, FirstBytes(m, rank, &source), *replicas, /*hold=*/true);
      std::vector<std::byte> stamps(holder.layout().bytes()), held(sums.size(), testing::kPoison);
      ASSERT_EQ(*holder.Write(absl::MakeSpan(stamps), absl::MakeSpan(held), 99, 7), replica_sums);
      ASSERT_EQ(held, sums);
      ASSERT_TRUE(*holder.Agrees(absl::MakeConstSpan(stamps), absl::MakeConstSpan(held), replica_sums));
    }
    const auto agrees = [&] {
      return *writer.Agrees(absl::MakeConstSpan(slot), absl::MakeConstSpan(sums), replica_sums);
    };
    ASSERT_TRUE(agrees());
    for (size_t i = 0; i < replicas->size(); ++i) {
      uint64_t naive = 0;
      for (const Copy& box : (*replicas)[i].boxes) {
        VisitCopy(box, [&](Index s, Index, Index p) {
          naive += kernels::SumRun(TensorKey(box.tensor), p, &slot[writer.layout().BufferOffset(box) + s], 1);
        });
      }
      ASSERT_EQ(replica_sums[i], naive);
      // Everybody has painted the same.
      ASSERT_EQ(sum_of_replica.emplace((*replicas)[i].id, naive).first->second, naive);
      const Copy& box = (*replicas)[i].boxes.back();
      std::byte& damaged = slot[writer.layout().BufferOffset(box) + box.source_offset];
      damaged ^= std::byte{16};
      ASSERT_FALSE(agrees());
      damaged ^= std::byte{16};
    }
    const auto read = std::find_if(plan->copies.begin(), plan->copies.end(),
                                   [&](const Copy& c) { return m.source[c.source].rank == rank; });
    if (read != plan->copies.end()) {
      std::byte& damaged = slot[writer.layout().BufferOffset(*read) + read->source_offset];
      damaged ^= std::byte{16};
      ASSERT_FALSE(agrees());
      damaged ^= std::byte{16};
    }
    ASSERT_TRUE(CheckSlot(absl::MakeConstSpan(slot), 99, 7, "it").ok());
    std::set<int64_t> may_change;
    for (int64_t i = 0; i < 64; ++i) may_change.insert(i);
    for (const Edge& edge : plan->edges) {
      if (edge.source_rank != rank) continue;
      for (size_t i = 0; i < edge.count; ++i) {
        const Copy& c = plan->copies[edge.first + i];
        const int64_t at = writer.layout().BufferOffset(c);
        const Buffer& to = m.destination[c.destination];
        uint64_t naive = 0;
        VisitCopy(c, [&](Index s, Index d, Index p) {
          live.First(to)[d] = slot[at + s];
          naive += kernels::SumRun(TensorKey(c.tensor), p, &slot[at + s], 1);
        });
        const int64_t sum_at =
            writer.sums_layout().Offset(edge) + 8 * (edge.stream < 0 ? static_cast<int64_t>(i) : int64_t{c.part});
        uint64_t sum;
        std::memcpy(&sum, &sums[sum_at], sizeof sum);
        ASSERT_EQ(sum, naive);
        // The receiver's own sum, over what it has in its destination.
        Copy landed = c;
        landed.source_offset = c.destination_offset;
        for (CopyLoop& l : landed.loops) l.source_stride = l.destination_stride;
        ASSERT_EQ(kernels::Sum(Lower(landed, live.First(to), nullptr)), sum);
      }
    }
    // All that is offered is there, read by a copy or not, and nothing else is written.
    for (size_t i = 0; i < m.source.size(); ++i) {
      const Buffer& b = m.source[i];
      if (b.rank != rank) continue;
      for (const Piece& p : b.pieces) {
        if (p.kind != PieceKind::kTensor) continue;
        const Dtype dtype = m.tensors[testing::TensorIndex(m, p.tensor)].dtype;
        const int64_t at = writer.layout().BufferOffset(static_cast<int>(i), dtype);
        const int bits = DtypeBits(dtype);
        VisitPiece(m, b, p, [&](Index, Index place) {
          for (Index bit = place * bits; bit < (place + 1) * bits; ++bit) may_change.insert(at + bit / 8);
          const uint64_t held = testing::GetBits(source.First(b), place, DtypeBits(b.dtype));
          const uint64_t got = testing::GetBits(slot.data() + at, place, bits);
          const bool narrows = bits < DtypeBits(b.dtype);
          ASSERT_EQ(narrows ? testing::Widen(dtype, got, b.dtype) : got,
                    b.dtype == dtype || narrows ? held : testing::Widen(b.dtype, held, dtype));
        });
      }
    }
    for (size_t i = 0; i < slot.size(); ++i) {
      if (!may_change.contains(i)) {
        ASSERT_EQ(slot[i], testing::kPoison) << "source rank " << rank << ", slot byte " << i;
      }
    }
  }
  ASSERT_EQ(live.Difference(wanted), "");
}

TEST(SnapshotTest, RandomManifests) {
  for (int seed = 0; seed < testing::Share(1500); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    RandomManifestOptions options;
    options.max_hosts = 1 + seed % 3;
    options.broadcast_percent = 30;
    Manifest m = RandomManifest(random, options);
    if (seed % 2 == 1) testing::WidenSources(seed, &m);
    if (SourcesContradict(m)) continue;
    CheckSnapshots(m, seed % 5 == 0 ? Policy::kHybrid : Policy::kAuto);
    if (HasFatalFailure()) return;
  }
}

// The sums of replicas of all source ranks, by id and rank.
std::map<uint64_t, std::vector<uint64_t>> ReplicaSums(const Manifest& m, SideMemory* source) {
  const auto plan = BuildPlan(m);
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::set<int64_t> ranks;
  for (const Buffer& b : m.source) ranks.insert(b.rank);
  std::map<uint64_t, std::vector<uint64_t>> sums_of;
  for (int64_t rank : ranks) {
    const auto replicas = FindReplicas(m, rank);
    const SnapshotWriter writer(m, *plan, rank, FirstBytes(m, rank, source), *replicas);
    std::vector<std::byte> slot(writer.layout().bytes()), sums(writer.sums_layout().slot_bytes());
    const std::vector<uint64_t> found = *writer.Write(absl::MakeSpan(slot), absl::MakeSpan(sums), 1, 1);
    for (size_t i = 0; i < found.size(); ++i) sums_of[(*replicas)[i].id].push_back(found[i]);
  }
  return sums_of;
}

size_t Diverging(const std::map<uint64_t, std::vector<uint64_t>>& sums_of) {
  return std::count_if(sums_of.begin(), sums_of.end(), [](const auto& of) {
    return std::adjacent_find(of.second.begin(), of.second.end(), std::not_equal_to<>()) != of.second.end();
  });
}

// One bit of one element differs: that is seen where the element is wanted and lies at another place too.
TEST(SnapshotTest, ReplicasThatDiffer) {
  int seen = 0, unseen = 0;
  for (int seed = 0; seed < testing::Share(1500); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Manifest m = RandomManifest(random, {.max_hosts = 1 + seed % 3});
    if (SourcesContradict(m)) continue;
    if (seed % 3 == 0) {
      m.ignore.clear();
      for (const TensorSpec& t : m.tensors) m.ignore.push_back(t.name);
      m.coupled.clear();
      std::erase_if(m.destination, [&](const Buffer& b) { return b.alias_of || Uniform(random, 0, 1) == 0; });
    }
    SideMemory source(m.source);
    testing::PaintSource(m, 7, &source);
    ASSERT_EQ(Diverging(ReplicaSums(m, &source)), 0u);
    // Some element of some piece.
    const Buffer& b = m.source[Uniform(random, 0, static_cast<Index>(m.source.size()) - 1)];
    std::vector<std::pair<Index, std::pair<int, Index>>> elements;  // place; tensor, element
    for (const Piece& p : b.pieces) {
      if (p.kind != PieceKind::kTensor) continue;
      const int tensor = testing::TensorIndex(m, p.tensor);
      if (b.dtype != m.tensors[tensor].dtype) continue;  // what is rounded need not differ
      VisitPiece(m, b, p, [&](Index element, Index place) { elements.push_back({place, {tensor, element}}); });
    }
    if (elements.empty()) continue;
    const auto [place, of] = elements[Uniform(random, 0, static_cast<Index>(elements.size()) - 1)];
    const int bits = DtypeBits(b.dtype);
    testing::SetBits(source.First(b), place, bits, testing::GetBits(source.First(b), place, bits) ^ 1);
    // The places of that element; other elements that lie there go with it wherever they are offered.
    std::set<std::pair<const std::byte*, Index>> places;
    bool wanted = false;
    for (const Buffer& other : m.source) {
      for (const Piece& p : other.pieces) {
        if (p.kind != PieceKind::kTensor || testing::TensorIndex(m, p.tensor) != of.first) continue;
        VisitPiece(m, other, p, [&](Index element, Index at) {
          const Index bit = at * DtypeBits(other.dtype);
          if (element == of.second) places.insert({source.First(other) + bit / 8, bit % 8});
        });
      }
    }
    for (const Buffer& to : m.destination) {
      for (const Piece& p : to.pieces) {
        if (p.kind != PieceKind::kTensor || testing::TensorIndex(m, p.tensor) != of.first) continue;
        VisitPiece(m, to, p, [&](Index element, Index) { wanted |= element == of.second; });
      }
    }
    const bool expected = wanted && places.size() > 1;
    ASSERT_EQ(Diverging(ReplicaSums(m, &source)) > 0, expected);
    ++(expected ? seen : unseen);
  }
  EXPECT_GT(seen, testing::Share(200));
  EXPECT_GT(unseen, testing::Share(200));
}

// Sums of replicas are of what travels: masters that round to the same are equal.
TEST(SnapshotTest, ReplicasAreComparedAsConverted) {
  const TensorSpec t{"t", {4, 8}, Dtype::kBF16};
  Manifest m = WholeManifest({t});
  m.source[0].dtype = Dtype::kF32;
  m.source[0].convert_rne = true;
  m.source.push_back(WholeBuffer(1, t));
  SideMemory source(m.source);
  testing::PaintSource(m, 7, &source);
  EXPECT_EQ(Diverging(ReplicaSums(m, &source)), 0u);
  // A number of moderate size, and what is near it.
  for (const auto& [bits, diverging] : {std::pair{0x40490000u, 0u}, {0x40490001u, 0u}, {0x40498001u, 1u}}) {
    testing::SetBits(source.First(m.source[0]), 9, 32, bits);
    testing::SetBits(source.First(m.source[1]), 9, 16, 0x4049);
    EXPECT_EQ(Diverging(ReplicaSums(m, &source)), diverging);
  }
}

// Two engines that cut the same rows differently read overlapping boxes of one snapshot.
TEST(SnapshotTest, TwoEnginesOfDifferentLayouts) {
  for (bool converts : {false, true}) {
    const TensorSpec t{"t", {6, 5}, Dtype::kBF16};
    Manifest m;
    m.tensors = {t};
    m.source = {WholeBuffer(0, t)};
    if (converts) {
      m.source[0].dtype = Dtype::kF32;
      m.source[0].convert_rne = true;
    }
    for (int r = 0; r < 3; ++r) {
      m.destination.push_back(BufferOf(r, "rows", t.dtype, {2, 5}, {PieceOf("t", {2 * r, 0}, {2, 5}, {0, 0})}));
    }
    m.destination.push_back(WholeBuffer(3, t));
    m.destination.push_back(BufferOf(4, "left", t.dtype, {6, 2}, {PieceOf("t", {0, 0}, {6, 2}, {0, 0})}));
    m.destination.push_back(BufferOf(5, "right", t.dtype, {6, 3}, {PieceOf("t", {0, 2}, {6, 3}, {0, 0})}));
    CheckSnapshots(m);
  }
}

// A broadcast view: every row of the tensor is the same memory.
TEST(SnapshotTest, StrideZeroSources) {
  for (Dtype held : {Dtype::kBF16, Dtype::kF32}) {
    const TensorSpec t{"t", {4, 3}, Dtype::kBF16};
    Manifest m = WholeManifest({t});
    m.source[0].strides = {0, 1};
    m.source[0].dtype = held;
    m.source[0].convert_rne = held != Dtype::kBF16;
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<std::byte> row(3 * DtypeBits(held) / 8);
    for (int i = 0; i < 3; ++i) {
      testing::SetBits(row.data(), i, DtypeBits(held),
                       held == Dtype::kBF16 ? 0x4000 + i : testing::Widen(Dtype::kBF16, 0x4000 + i, held));
    }
    const SnapshotWriter writer(m, *plan, 0, {{0, row.data()}});
    std::vector<std::byte> slot(writer.layout().bytes());
    std::vector<std::byte> sums(writer.sums_layout().slot_bytes());
    ASSERT_EQ(writer.Write(absl::MakeSpan(slot), absl::MakeSpan(sums), 1, 1).status(), absl::OkStatus());
    for (const Copy& c : plan->copies) {
      VisitCopy(c, [&](Index s, Index, Index p) {
        const uint64_t value = testing::GetBits(slot.data() + writer.layout().BufferOffset(plan->copies[0]), s / 2, 16);
        EXPECT_EQ(value, 0x4000u + static_cast<uint64_t>(p / 2 % 3));
      });
    }
  }
}

// Conversion rounds to nearest, ties to even, once.
TEST(SnapshotTest, ConvertsByRoundingToNearestEven) {
  const auto nearest = [](double x, int fraction_bits) {
    const int exponent = std::ilogb(x);
    const double unit = std::ldexp(1.0, exponent - fraction_bits);
    return std::nearbyint(x / unit) * unit;  // the default mode is to nearest even
  };
  const auto value_of = [](Dtype dtype, uint64_t bits) {
    const uint64_t wide = testing::Widen(dtype, bits, Dtype::kF64);
    double value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  };
  for (Dtype to : {Dtype::kBF16, Dtype::kF16}) {
    const int fraction_bits = to == Dtype::kBF16 ? 7 : 10;
    Manifest m = WholeManifest({{"t", {1000}, to}});
    m.source[0].dtype = Dtype::kF64;
    m.source[0].convert_rne = true;
    Random random(1);
    std::vector<double> values;
    for (int i = 0; i < 1000; ++i) {
      const double mantissa = 1 + static_cast<double>(random() >> 11) * 0x1p-53;
      // Every fourth lies exactly, or nearly, between two neighbours.
      const double tie = 1 + std::ldexp(2.0 * static_cast<double>(random() % 64) + 1, -fraction_bits - 1);
      values.push_back((i % 4 == 0   ? tie
                        : i % 4 == 1 ? std::nextafter(tie, 2 * (i % 8))
                                     : mantissa) *
                       std::ldexp(i % 2 == 0 ? 1 : -1, static_cast<int>(random() % 20) - 10));
    }
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const SnapshotWriter writer(m, *plan, 0, {{0, reinterpret_cast<const std::byte*>(values.data())}});
    std::vector<std::byte> slot(writer.layout().bytes());
    std::vector<std::byte> sums(writer.sums_layout().slot_bytes());
    ASSERT_EQ(writer.Write(absl::MakeSpan(slot), absl::MakeSpan(sums), 1, 1).status(), absl::OkStatus());
    for (int i = 0; i < 1000; ++i) {
      const uint64_t bits = testing::GetBits(slot.data() + writer.layout().BufferOffset(plan->copies[0]), i, 16);
      EXPECT_EQ(value_of(to, bits), nearest(values[i], fraction_bits)) << values[i];
    }
  }
}

// Neither the weights nor the destinations need be aligned to their elements.
TEST(SnapshotTest, UnalignedSources) {
  const Manifest m = WholeManifest({{"t", {300}, Dtype::kF32}});
  const auto plan = BuildPlan(m);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<std::byte> memory(1300);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(testing::ValueBits(1, 0, i, 8));
  for (int shift = 0; shift < 9; ++shift) {
    const SnapshotWriter writer(m, *plan, 0, {{0, memory.data() + shift}});
    std::vector<std::byte> slot(writer.layout().bytes());
    std::vector<std::byte> sums(writer.sums_layout().slot_bytes());
    ASSERT_EQ(writer.Write(absl::MakeSpan(slot), absl::MakeSpan(sums), 1, 1).status(), absl::OkStatus());
    EXPECT_EQ(std::memcmp(slot.data() + writer.layout().BufferOffset(plan->copies[0]), memory.data() + shift, 1200), 0);
  }
}

}  // namespace
}  // namespace headrace
