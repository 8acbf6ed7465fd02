// Relays and broadcasts as BuildPlan makes them. Every plan is executed on bytes, chains included.

#include "planner/streams.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/digest.h"
#include "planner/layout/case_share.h"
#include "planner/plan.h"
#include "planner/testing/element_oracle.h"
#include "planner/testing/manifest_parts.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

Plan MustPlan(const Manifest& m, Policy policy = Policy::kAuto) {
  absl::StatusOr<Plan> plan = BuildPlan(m, {.policy = policy});
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  EXPECT_EQ(CheckPlan(m, *plan), "");
  return *std::move(plan);
}

// One tensor on one source rank of host "s", wanted whole by ranks of the given hosts.
Manifest Replicated(const TensorSpec& tensor, const std::vector<std::string>& hosts) {
  Manifest m;
  m.tensors = {tensor};
  m.source = {WholeBuffer(0, tensor)};
  m.topology.source = {{0, "s", "", ""}};
  for (size_t r = 0; r < hosts.size(); ++r) {
    m.destination.push_back(WholeBuffer(static_cast<int64_t>(r), tensor));
    m.topology.destination.push_back({static_cast<int64_t>(r), hosts[r], "", ""});
  }
  return m;
}

using Chain = std::vector<int64_t>;

TEST(Streams, BytesEnterAHostOnceAndArePassedOn) {
  const Manifest m = Replicated({"w", {100}, Dtype::kU8}, {"a", "a", "b", "a", "c", "c"});
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.streams.size(), 2u);
  EXPECT_EQ(plan.streams[0].chain, (Chain{0, 1, 3}));
  EXPECT_EQ(plan.streams[1].chain, (Chain{4, 5}));
  ASSERT_EQ(plan.streams[0].parts.size(), 1u);
  EXPECT_EQ(plan.streams[0].parts[0].run_bytes, 100);
  ASSERT_EQ(plan.edges.size(), 6u);
  EXPECT_EQ(plan.edges[2].stream, -1);  // alone on its host
  EXPECT_EQ(plan.copies[2].part, -1);
  EXPECT_EQ(plan.edges[3].stream, 0);
  EXPECT_EQ(plan.copies[3].part, 0);
  const PlanFigures f = Measure(m, plan);
  EXPECT_EQ(f.streams, 2);
  EXPECT_EQ(f.needed_bytes, 600);
  EXPECT_EQ(f.wire_bytes, 600);
  EXPECT_EQ(f.host_wire_bytes, 300);
  EXPECT_EQ(f.distinct_host_bytes, 300);
  EXPECT_EQ(f.busiest_sender_bytes, 300);
  EXPECT_EQ(plan.decisions[0].transfer, TransferKind::kReshard);
  EXPECT_EQ(plan.decisions[0].reason, "plain copies; 2 of 3 cells are relayed on hosts a, c");
}

TEST(Streams, NothingIsRelayedOnTheSourcesOwnHost) {
  Manifest m = Replicated({"w", {100}, Dtype::kU8}, {"s", "s", "s"});
  EXPECT_TRUE(MustPlan(m).streams.empty());
  // A source on the receivers' host is preferred to others.
  m = Replicated({"w", {100}, Dtype::kU8}, {"a", "a"});
  m.source.push_back(WholeBuffer(1, m.tensors[0]));
  m.topology.source.push_back({1, "a", "", ""});
  const Plan plan = MustPlan(m);
  EXPECT_TRUE(plan.streams.empty());
  for (const Edge& e : plan.edges) EXPECT_EQ(e.source_rank, 1);
  EXPECT_EQ(Measure(m, plan).host_wire_bytes, 0);
  EXPECT_EQ(Measure(m, plan).distinct_host_bytes, 0);
}

TEST(Streams, OnlyWhatIsSharedIsRelayed) {
  // Rank 0 wants rows 0 to 5, rank 1 rows 4 to 9.
  Manifest m = Replicated({"w", {10, 4}, Dtype::kU8}, {"a", "a"});
  for (Index r = 0; r < 2; ++r) {
    m.destination[r] = BufferOf(r, "w", Dtype::kU8, {6, 4}, {PieceOf("w", {4 * r, 0}, {6, 4}, {0, 0})});
  }
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.streams.size(), 1u);
  EXPECT_EQ(plan.streams[0].bytes(), 8);
  EXPECT_EQ(plan.streams[0].parts[0].position, 16);
  EXPECT_EQ(plan.edges.size(), 4u);
  EXPECT_EQ(plan.decisions[0].reason, "plain copies; 1 of 3 cells are relayed on host a");
  EXPECT_EQ(Measure(m, plan).host_wire_bytes, 40);
}

TEST(Streams, OneRankWithTwoPlacesIsAChainOfOne) {
  Manifest m = Replicated({"w", {10}, Dtype::kU8}, {"a"});
  m.destination.push_back(m.destination[0]);
  m.destination[1].name = "tied";
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.streams.size(), 1u);
  EXPECT_EQ(plan.streams[0].chain, Chain{0});
  EXPECT_EQ(plan.edges[0].count, 2u);
  EXPECT_EQ(Measure(m, plan).host_wire_bytes, 10);
}

// Receivers whose buffers are laid out differently share a part's loops; what the layouts do not share is not merged.
TEST(Streams, ReceiversOfDifferentLayouts) {
  Manifest m = Replicated({"w", {6, 8}, Dtype::kBF16}, {"a", "a", "a"});
  m.destination[1].strides = {1, 6};
  m.destination[2] =
      BufferOf(2, "w", Dtype::kBF16, {3, 2, 8}, {ViewPiece("w", {3, 2, 8}, {0, 0, 0}, {3, 2, 8}, {0, 0, 0})});
  m.destination[2].strides = {40, 20, 1};
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.streams.size(), 1u);
  ASSERT_EQ(plan.streams[0].parts.size(), 1u);
  EXPECT_EQ(plan.streams[0].parts[0].run_bytes, 2);
  EXPECT_EQ(plan.streams[0].parts[0].loops.size(), 2u);  // 6 rows are 3 x 2, which all sides join again
  EXPECT_EQ(plan.copies.size(), 3u);
}

TEST(Streams, MoreLoopsThanACopyHasCutTheParts) {
  Manifest m = Replicated({"w", {2, 3, 2, 3, 2}, Dtype::kU8}, {"a", "a"});
  m.destination[0].strides = {1, 2, 6, 12, 36};
  m.destination[1].strides = {90, 30, 15, 5, 2};
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.streams.size(), 1u);
  EXPECT_EQ(plan.streams[0].parts.size(), 2u);
  EXPECT_EQ(plan.copies.size(), 4u);
}

TEST(Streams, HeadsShareWhatEntersAHost) {
  // Ten tensors from one source to four ranks: each takes a quarter into the host.
  Manifest m;
  m.topology.source = {{0, "s", "", ""}};
  for (int64_t r = 0; r < 4; ++r) m.topology.destination.push_back({r, "a", "", ""});
  for (int t = 0; t < 10; ++t) {
    m.tensors.push_back({absl::StrCat("w", t), {300, 1024}, Dtype::kU8});
    m.source.push_back(WholeBuffer(0, m.tensors.back()));
    for (int64_t r = 0; r < 4; ++r) m.destination.push_back(WholeBuffer(r, m.tensors.back()));
  }
  const Plan plan = MustPlan(m);
  std::map<int64_t, Index> heads;
  for (const Stream& s : plan.streams) {
    EXPECT_EQ(s.chain.size(), 4u);
    heads[s.chain[0]] += s.bytes();
    // In their order from the head on.
    for (size_t i = 1; i < 4; ++i) EXPECT_EQ(s.chain[i], (s.chain[i - 1] + 1) % 4);
  }
  EXPECT_EQ(heads.size(), 4u);
  for (const auto& [rank, bytes] : heads) EXPECT_LE(bytes, 3000 * 1024 / 4 * 1.02) << rank;
}

TEST(Streams, ReplicasShareWhatIsRelayedAndBroadcast) {
  // Four replicas on two hosts, two engines of four workers on two others; one tensor is much larger than the rest.
  Manifest m;
  for (int64_t r = 0; r < 4; ++r) m.topology.source.push_back({r, r < 2 ? "s" : "t", "", ""});
  for (int64_t r = 0; r < 8; ++r) m.topology.destination.push_back({r, r < 4 ? "a" : "b", "", ""});
  for (int t = 0; t < 9; ++t) {
    const TensorSpec tensor{
        absl::StrCat("l", t, t % 2 ? ".q_proj" : ".norm"), {t == 0 ? 4096 : 400 + 3 * t, 512}, Dtype::kU8};
    m.tensors.push_back(tensor);
    for (int64_t r = 0; r < 4; ++r) m.source.push_back(WholeBuffer(r, tensor));
    for (int64_t r = 0; r < 8; ++r) m.destination.push_back(WholeBuffer(r, tensor));
  }
  for (Policy policy : {Policy::kAuto, Policy::kHybrid}) {
    const auto plan = BuildPlan(m, {.policy = policy});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const PlanFigures f = Measure(m, *plan);
    EXPECT_LE(f.sender_max_over_mean, 1.02) << PolicyName(policy);
    EXPECT_EQ(f.wire_bytes, f.needed_bytes);
    EXPECT_EQ(f.host_wire_bytes, f.distinct_host_bytes);
    EXPECT_EQ(f.host_wire_bytes * 4, f.needed_bytes);
  }
}

TEST(Streams, ARankThatGetsMuchDirectlyIsNoHead) {
  Manifest m = Replicated({"w", {1000}, Dtype::kU8}, {"a", "a"});
  m.tensors.push_back({"own", {5000}, Dtype::kU8});
  m.source.push_back(WholeBuffer(0, m.tensors[1]));
  m.destination.push_back(WholeBuffer(0, m.tensors[1]));
  const Plan plan = MustPlan(m);
  ASSERT_EQ(plan.streams.size(), 1u);
  EXPECT_EQ(plan.streams[0].chain, (Chain{1, 0}));
}

TEST(Streams, BroadcastGoesToAllHoldersHostByHost) {
  // Two shards of q_proj; four workers on two hosts want a half each, and one tensor is no QKV.
  const TensorSpec q{"l.q_proj.weight", {8, 4}, Dtype::kBF16}, o{"l.o_proj.weight", {8, 4}, Dtype::kBF16};
  Manifest m;
  m.tensors = {q, o};
  for (const TensorSpec& t : m.tensors) {
    for (Index r = 0; r < 2; ++r) {
      m.source.push_back(BufferOf(r, t.name, t.dtype, {4, 4}, {PieceOf(t.name, {4 * r, 0}, {4, 4}, {0, 0})}));
    }
    for (Index r = 0; r < 4; ++r) {
      m.destination.push_back(
          BufferOf(r, t.name, t.dtype, {4, 4}, {PieceOf(t.name, {4 * (r % 2), 0}, {4, 4}, {0, 0})}));
    }
  }
  m.topology.source = {{0, "s", "", ""}, {1, "b", "", ""}};
  m.topology.destination = {{0, "b", "", ""}, {1, "a", "", ""}, {2, "b", "", ""}, {3, "a", "", ""}};
  const Plan plan = MustPlan(m, Policy::kHybrid);
  EXPECT_EQ(plan.decisions[0].transfer, TransferKind::kBroadcast);
  EXPECT_EQ(plan.decisions[0].reason, "the policy hybrid broadcasts weights of this name: QKV (q_proj)");
  EXPECT_EQ(plan.decisions[1].transfer, TransferKind::kReshard);
  std::vector<Stream> broadcasts;
  for (const Stream& s : plan.streams) {
    if (plan.decisions[s.parts[0].tensor].transfer == TransferKind::kBroadcast) broadcasts.push_back(s);
  }
  ASSERT_EQ(broadcasts.size(), 2u);
  EXPECT_EQ(broadcasts[0].chain, (Chain{1, 3, 0, 2}));
  EXPECT_EQ(broadcasts[1].chain, (Chain{0, 2, 1, 3}));  // the source's own host first
  const PlanFigures f = Measure(m, plan);
  EXPECT_EQ(f.needed_bytes, 2 * 4 * 32);
  EXPECT_EQ(f.broadcast_bytes, 64 * 4);
  EXPECT_EQ(f.reshard_bytes, 32 * 4);
  EXPECT_EQ(f.wire_bytes, f.broadcast_bytes + f.reshard_bytes);
  // Passing bytes on is all that some edges do.
  EXPECT_TRUE(std::any_of(plan.edges.begin(), plan.edges.end(), [](const Edge& e) { return e.count == 0; }));
  // Everything is broadcast once by replicas in turn, without a topology too.
  m.topology = {};
  EXPECT_EQ(Measure(m, MustPlan(m, Policy::kHybrid)).broadcast_bytes, 64 * 4);
  EXPECT_TRUE(MustPlan(m, Policy::kAuto).streams.empty());
}

TEST(Streams, PoliciesHaveNames) {
  for (Policy p : {Policy::kAuto, Policy::kHybrid}) EXPECT_EQ(*ParsePolicy(PolicyName(p)), p);
  EXPECT_FALSE(ParsePolicy("").ok());
  EXPECT_FALSE(ParsePolicy("Auto").ok());
}

// What destination hosts want from elsewhere, element by element: distinct (host, engine, tensor, element) that no
// source of the host offers; in bits.
double DistinctHostBits(const Manifest& m) {
  auto place = [](const std::vector<Placement>& side, int64_t rank) {
    for (const Placement& p : side) {
      if (p.rank == rank) return p;
    }
    return Placement();
  };
  using Element = std::tuple<std::string, std::string, Index>;
  std::set<Element> offered;
  std::map<std::string, std::set<Element>> wanted;  // by engine
  std::map<std::string, const TensorSpec*> tensors;
  for (const TensorSpec& t : m.tensors) tensors[t.name] = &t;
  for (bool source : {true, false}) {
    for (const Buffer& b : source ? m.source : m.destination) {
      const Placement on = place(source ? m.topology.source : m.topology.destination, b.rank);
      for (const Piece& p : b.pieces) {
        if (p.kind != PieceKind::kTensor) continue;
        const Extents& counted = p.view ? *p.view : tensors[p.tensor]->shape;
        Index count = 1;
        for (Index e : p.shape) count *= e;
        for (Index n = 0; n < count; ++n) {
          Index rest = n, element = 0, stride = 1;
          for (size_t i = p.shape.size(); i-- > 0;) {
            element += (p.tensor_offset[i] + rest % p.shape[i]) * stride;
            rest /= p.shape[i];
            stride *= counted[i];
          }
          (source ? offered : wanted[on.engine]).insert({on.host, p.tensor, element});
        }
      }
    }
  }
  double bits = 0;
  for (const auto& [engine, elements] : wanted) {
    for (const Element& e : elements) bits += offered.count(e) ? 0 : DtypeBits(tensors[std::get<1>(e)]->dtype);
  }
  return bits;
}

TEST(Streams, RandomTopologiesAndPoliciesAreExact) {
  const uint64_t seed = 900000;
  Index streams = 0, parts = 0, passing = 0;
  CaseShare share("random manifests", 1, 10);
  for (uint64_t n = 0; n < 2000; ++n) {
    if (!share.Take()) continue;
    SCOPED_TRACE(testing::Message() << "seed " << seed + n);
    Random random(seed + n);
    RandomManifestOptions options;
    options.max_hosts = static_cast<int>(Uniform(random, 1, 4));
    options.max_ranks = 6;
    options.broadcast_percent = 40;
    const Manifest m = RandomManifest(random, options);
    for (Policy policy : {Policy::kAuto, Policy::kHybrid}) {
      const Plan plan = MustPlan(m, policy);
      ASSERT_EQ(CanonicalText(m, plan), CanonicalText(m, *BuildPlan(m, {.policy = policy})));
      const PlanFigures f = Measure(m, plan);
      ASSERT_EQ(f.direct_bytes, f.needed_bytes);
      ASSERT_EQ(f.reshard_bytes + f.broadcast_bytes, f.wire_bytes);
      if (policy == Policy::kAuto) {
        ASSERT_EQ(f.host_wire_bytes, f.distinct_host_bytes);
        ASSERT_EQ(f.broadcast_bytes, 0);
        ASSERT_LE(f.wire_bytes, f.needed_bytes);  // less where a rank has two places for what it gets once
        ASSERT_EQ(static_cast<double>(f.distinct_host_bytes) * 8, DistinctHostBits(m));
      } else {
        ASSERT_GE(f.host_wire_bytes, f.distinct_host_bytes);
      }
      streams += f.streams;
      for (const Stream& s : plan.streams) parts += static_cast<Index>(s.parts.size());
      for (const Edge& e : plan.edges) passing += e.count == 0;
      for (size_t i = 1; i < plan.edges.size(); ++i) {
        const Edge &a = plan.edges[i - 1], &b = plan.edges[i];
        ASSERT_LT(std::tie(a.destination_rank, a.source_rank, a.stream),
                  std::tie(b.destination_rank, b.source_rank, b.stream));
      }
      if (HasFailure()) return;
    }
  }
  std::cout << "seeds from " << seed << ", twice: " << streams << " streams, " << parts << " parts, " << passing
            << " edges that only pass on\n";
  EXPECT_GT(streams, 100);
  EXPECT_GT(passing, 0);
}

}  // namespace
}  // namespace headrace
