#include "loader/held_edge.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sum.h"
#include "loader/lowering.h"
#include "loader/testing/naive_copy.h"
#include "loader/testing/side_memory.h"
#include "loader/transport/memory/memory.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

using testing::SideMemory;

constexpr int64_t kChunk = 64;

PackRingOptions RingOptions() {
  PackRingOptions options;
  options.slots = 2;
  options.slot_bytes = kChunk;
  return options;
}

// A publisher's endpoint and a receiver's, with a ring between the two.
struct Pair {
  struct SourceMemory {
    std::map<int, const std::byte*> first;
    std::vector<std::byte> sums;
  };

  Pair() : owner(fabric.NewEndpoint()), reader(fabric.NewEndpoint()) {
    peer = reader->Connect(owner->address(), absl::InfiniteFuture()).value();
    writer = PackRingWriter::Create(owner.get(), RingOptions()).value();
    ring = PackRingReader::Create(reader.get(), peer, writer->key(), RingOptions(), absl::InfiniteFuture()).value();
    const PeerId back = owner->Connect(reader->address(), absl::InfiniteFuture()).value();
    EXPECT_EQ(writer->Connect(owner.get(), back, ring->key(), absl::InfiniteFuture()), absl::OkStatus());
  }

  // What the publisher does whenever a slot is free. False: all is packed.
  bool Pack(const EdgeStream& stream, int64_t* message, uint64_t tag, const SourceMemory& source) {
    if (*message == stream.messages()) return false;
    const auto slot = writer->TryAcquire();
    if (!slot.ok() || !slot->has_value()) return true;
    const int64_t bytes = stream.message_bytes(*message);
    stream.Pack(
        *message, source.sums, [&](const Copy& copy) { return source.first.at(copy.source); },
        (*slot)->subspan(0, bytes));
    writer->Publish(tag, bytes);
    ++*message;
    return true;
  }

  MemoryFabric fabric;
  std::unique_ptr<Transport> owner, reader;
  PeerId peer = 0;
  std::unique_ptr<PackRingWriter> writer;
  std::shared_ptr<PackRingReader> ring;
  std::vector<std::unique_ptr<Registration>> registrations;
};

// Everything read, everything packed, and short runs packed only.
const std::pair<HoldMeans, HoldCosts> kSplits[] = {
    {{true, false}, {}},
    {{false, true}, {}},
    {{true, true}, {.read_byte_ns = 0, .read_range_ns = 10, .read_call_ns = 0, .pack_byte_ns = 1, .pack_run_ns = 0}},
};

TEST(HeldEdgeTest, BringsWhatThePlanSaysByEitherWay) {
  int64_t both = 0;
  for (int seed = 0; seed < testing::Share(60); ++seed) {
    Random random(seed);
    const Manifest m = RandomManifest(random);
    bool converts = false;
    for (const Buffer& b : m.source) converts |= b.convert_rne;
    if (converts || SourcesContradict(m)) continue;
    const auto plan = BuildPlan(m);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const auto& [means, costs] : kSplits) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", read " << means.read << ", pack " << means.pack);
      SideMemory source(m.source), wanted(m.destination), got(m.destination);
      for (const Edge& edge : plan->edges) {
        Pair pair;
        std::map<int, std::shared_ptr<RemoteMemory>> memory;
        Pair::SourceMemory held;
        std::map<int, std::byte*> destination;
        for (size_t i = 0; i < m.source.size(); ++i) {
          const int64_t bytes = SpanBytes(m.source[i], m.source[i].dtype);
          held.first[static_cast<int>(i)] = source.First(m.source[i]);
          if (bytes == 0) continue;
          pair.registrations.push_back(
              pair.owner->Register({source.First(m.source[i]), static_cast<size_t>(bytes)}).value());
          memory[static_cast<int>(i)] =
              pair.reader->OpenRemote(pair.peer, pair.registrations.back()->key(), absl::InfiniteFuture()).value();
        }
        for (size_t i = 0; i < m.destination.size(); ++i)
          destination[static_cast<int>(i)] = got.First(m.destination[i]);
        HoldSplit split = SplitForHold(*plan, edge, means, costs);
        both += !split.reads.empty() && !split.packed_copies.empty() ? 1 : 0;
        held.sums.resize(split.packed_copies.size() * sizeof(uint64_t));
        const HoldSplit packed = SplitForHold(*plan, edge, means, costs);
        const EdgeStream stream(packed.packed, packed.packed.edges[0], kChunk);
        HeldEdge receiving(*plan, std::move(split), memory, pair.ring, kChunk);
        EXPECT_EQ(receiving.packs(), !packed.packed_copies.empty());
        for (uint64_t generation : {1, 2}) {
          testing::PaintSource(m, generation, &source);
          int64_t message = 0, bytes = 0;
          std::map<size_t, uint64_t> sums;
          receiving.Begin({generation, &destination, absl::InfiniteFuture()});
          while (!receiving.over()) {
            pair.Pack(stream, &message, generation, held);
            const auto arrived = receiving.Step(absl::ZeroDuration(), [&](size_t copy, uint64_t sum) {
              EXPECT_TRUE(sums.emplace(copy, sum).second) << "copy " << copy << " came twice";
              return absl::OkStatus();
            });
            ASSERT_TRUE(arrived.ok()) << arrived.status();
            bytes += *arrived;
          }
          ASSERT_EQ(sums.size(), edge.count);
          int64_t all = static_cast<int64_t>(held.sums.size());
          for (const auto& [copy, sum] : sums) {
            const Copy& c = plan->copies[copy];
            all += c.bytes();
            EXPECT_EQ(sum, kernels::Sum(Lower(c, held.first.at(c.source), nullptr)));
          }
          EXPECT_EQ(bytes, all);
        }
      }
      for (const Placement& p : m.topology.destination) testing::PaintDestination(m, p.rank, 2, &wanted);
      if (m.topology.destination.empty()) {
        std::map<int64_t, bool> ranks;
        for (const Buffer& b : m.destination) ranks[b.rank] = true;
        for (const auto& [rank, _] : ranks) testing::PaintDestination(m, rank, 2, &wanted);
      }
      // Fills are the commit's.
      for (const Buffer& b : m.destination) {
        for (const Piece& p : b.pieces) {
          if (p.kind != PieceKind::kZero) continue;
          testing::VisitPiece(m, b, p,
                              [&](Index, Index at) { testing::SetBits(got.First(b), at, DtypeBits(b.dtype), 0); });
        }
      }
      ASSERT_EQ(got.Difference(wanted), "");
    }
  }
  EXPECT_GT(both, 0);
}

// What an earlier transfer left in the ring is passed over; what is no message of this edge is an error.
TEST(HeldEdgeTest, TakesItsOwnMessagesOnly) {
  Pair pair;
  Plan plan;
  Copy copy;
  copy.run_bytes = 100;
  plan.copies = {copy};
  HeldEdge edge(plan, SplitForHold(plan, {0, 0, 0, 1}, {false, true}), {}, pair.ring, kChunk);
  std::vector<std::byte> memory(100);
  const std::map<int, std::byte*> destination = {{0, memory.data()}};
  const auto step = [&] { return edge.Step(absl::ZeroDuration(), [](size_t, uint64_t) { return absl::OkStatus(); }); };
  edge.Begin({7, &destination, absl::InfiniteFuture()});
  EXPECT_EQ(*step(), 0);
  ASSERT_TRUE(pair.writer->TryAcquire().ok());
  pair.writer->Publish(6, 8);
  EXPECT_EQ(*step(), 0);
  ASSERT_TRUE(pair.writer->TryAcquire().ok());
  pair.writer->Publish(7, 9);
  const absl::Status wrong = step().status();
  EXPECT_TRUE(HasCode(wrong, ErrorCode::kTransport)) << wrong;
  pair.writer.reset();
  EXPECT_TRUE(HasCode(step().status(), ErrorCode::kTransport) || HasCode(step().status(), ErrorCode::kPeerLost));
}

}  // namespace
}  // namespace headrace
