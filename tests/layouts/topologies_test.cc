// Whole tiny models between random trainers and engines of up to 16 ranks a side on one to four hosts, by both
// policies: each plan is proven, executed on bytes, and what it sends is compared with what must be sent, counted
// element by element. HEADRACE_LAYOUT_SEED (the first one) and HEADRACE_LAYOUT_CASES (of each model) run other ones.

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "planner/layout/case_share.h"
#include "planner/plan.h"
#include "planner/status.h"
#include "planner/testing/element_oracle.h"
#include "tests/layouts/draw.h"
#include "tests/layouts/element_demand.h"
#include "tests/layouts/tiny_model.h"

namespace headrace {
namespace {

// The name of a tiny model's tensor in a public checkpoint, by which `hybrid` goes: "layers.0.q" is
// "layers.0.q_proj.weight".
std::string PublicName(const std::string& tiny) {
  static const std::map<std::string, std::string> kNames = {
      {"q", "q_proj"},
      {"k", "k_proj"},
      {"v", "v_proj"},
      {"q_a", "q_a_proj"},
      {"q_b", "q_b_proj"},
      {"kv_a_with_mqa", "kv_a_proj_with_mqa"},
      {"kv_b", "kv_b_proj"},
      {"in_proj", "mixer.in_proj"},
      {"A_log", "mixer.A_log"},
      {"D", "mixer.D"},
      {"dt_bias", "mixer.dt_bias"},
      {"conv1d", "mixer.conv1d"},
      {"in_proj_qkvz", "linear_attn.in_proj_qkvz"},
      {"in_proj_ba", "linear_attn.in_proj_ba"},
      {"in_proj_qkv", "linear_attn.in_proj_qkv"},
      {"in_proj_z", "linear_attn.in_proj_z"},
      {"in_proj_a", "linear_attn.in_proj_a"},
      {"in_proj_b", "linear_attn.in_proj_b"},
  };
  constexpr absl::string_view kScale = "_scale_inv";
  const bool scale = absl::EndsWith(tiny, kScale);
  std::vector<std::string> parts = absl::StrSplit(scale ? tiny.substr(0, tiny.size() - kScale.size()) : tiny, '.');
  if (const auto it = kNames.find(parts.back()); it != kNames.end()) parts.back() = it->second;
  std::string name;
  for (const std::string& part : parts) absl::StrAppend(&name, part, ".");
  return absl::StrCat(name, "weight", scale ? kScale : "");
}

void GivePublicNames(Manifest* m) {
  for (TensorSpec& t : m->tensors) t.name = PublicName(t.name);
  for (std::vector<Buffer>* side : {&m->source, &m->destination}) {
    for (Buffer& b : *side) {
      for (Piece& p : b.pieces) {
        if (p.kind == PieceKind::kTensor) p.tensor = PublicName(p.tensor);
      }
    }
  }
  for (Coupling& c : m->coupled) c.weight = PublicName(c.weight), c.scale = PublicName(c.scale);
  for (std::string& name : m->ignore) name = PublicName(name);
}

// Places ranks on 1 to 4 hosts: in blocks, in turn, or anywhere; trainer and engines together or apart.
std::string Place(Draw& draw, Manifest* m) {
  const Index hosts = 1 + draw.Below(4), way = draw.Below(3), apart = draw.Below(2);
  const auto place = [&](std::vector<Placement>& placements, const std::string& prefix) {
    const auto n = static_cast<Index>(placements.size());
    for (Index i = 0; i < n; ++i) {
      const Index host = way == 0 ? i * hosts / n : way == 1 ? i % hosts : draw.Below(hosts);
      placements[i].host = absl::StrCat(prefix, host);
    }
  };
  m->topology.source.clear();
  for (const Buffer& b : m->source) {
    if (m->topology.source.empty() || m->topology.source.back().rank != b.rank) {
      m->topology.source.push_back({b.rank, "", "", ""});
    }
  }
  place(m->topology.source, apart == 1 ? "trainer" : "host");
  place(m->topology.destination, "host");
  return absl::StrCat(" on ", hosts, " hosts, way ", way, apart == 1 ? " apart" : "");
}

// Every element becomes `k` of them: a trailing axis that nobody cuts.
Manifest Inflate(Manifest m, Index k) {
  m.coupled.clear();  // of the tiny blocks
  for (TensorSpec& t : m.tensors) t.shape.push_back(k);
  for (std::vector<Buffer>* side : {&m.source, &m.destination}) {
    for (Buffer& b : *side) {
      b.shape.push_back(k);
      for (Index& stride : b.strides) stride *= k;
      b.strides.push_back(1);
      if (b.storage) b.storage->offset_bytes *= k;
      for (Piece& p : b.pieces) {
        if (p.kind == PieceKind::kTensor) p.tensor_offset.push_back(0);
        if (p.view) p.view->push_back(k);
        if (!p.axes.empty()) p.axes.push_back(static_cast<int>(p.axes.size()));
        p.shape.push_back(k);
        p.buffer_offset.push_back(0);
      }
    }
  }
  return m;
}

// What each source rank sends: a stream counts once.
Index BusiestSender(const Plan& plan) {
  std::map<int64_t, Index> sent;
  for (const Edge& e : plan.edges) {
    if (e.stream >= 0) continue;
    for (size_t c = e.first; c < e.first + e.count; ++c) sent[e.source_rank] += plan.copies[c].bytes();
  }
  for (const Stream& s : plan.streams) sent[s.source_rank] += s.bytes();
  Index busiest = 0;
  for (const auto& [rank, bytes] : sent) busiest = std::max(busiest, bytes);
  return busiest;
}

struct Case {
  Manifest manifest;
  std::string what;
};

// The next drawn case of a model that can be laid out.
absl::StatusOr<Case> DrawCase(const TinyModel& model, uint64_t seed, Draw& draw) {
  HR_ASSIGN_OR_RETURN(auto drawn, DrawManifest(model, draw));
  Case c{std::move(drawn.first), absl::StrCat(model.name, ", seed ", seed, ", ", drawn.second)};
  GivePublicNames(&c.manifest);
  absl::StrAppend(&c.what, Place(draw, &c.manifest));
  return c;
}

constexpr int kLeastShare = 25;  // percent of the cases of a model

TEST(Topologies, BothPoliciesAreExactAndSendWhatTheyMust) {
  const int64_t first_seed = Setting("HEADRACE_LAYOUT_SEED", 1);
  const int64_t seeds = Setting("HEADRACE_LAYOUT_CASES", 24);  // of each model; about two thirds can be laid out
  int64_t relayed = 0, broadcast = 0;
  for (const TinyModel& model : TinyModels()) {
    CaseShare share(model.name, static_cast<uint64_t>(first_seed), kLeastShare);
    int64_t planned = 0, streams = 0;
    for (int64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      if (!share.Take()) continue;
      Draw draw(static_cast<uint64_t>(seed));
      const auto drawn = DrawCase(model, seed, draw);
      if (!drawn.ok()) continue;  // models_test looks at what is refused
      SCOPED_TRACE(drawn->what);
      const Manifest& m = drawn->manifest;
      const ElementDemand demand = CountElements(m);
      for (const Policy policy : {Policy::kAuto, Policy::kHybrid}) {
        SCOPED_TRACE(std::string(PolicyName(policy)));
        const absl::StatusOr<Plan> plan = BuildPlan(m, {.policy = policy});
        ASSERT_TRUE(plan.ok()) << plan.status();
        ASSERT_EQ(CheckPlan(m, *plan), "");
        const PlanFigures figures = Measure(m, *plan);
        EXPECT_EQ(figures.needed_bytes, demand.needed_bytes);
        Index resharded = 0, gathered_wanted = 0;
        for (size_t t = 0; t < m.tensors.size(); ++t) {
          const bool cast = plan->decisions[t].transfer == TransferKind::kBroadcast;
          ASSERT_FALSE(cast && policy == Policy::kAuto);
          (cast ? gathered_wanted : resharded) += cast ? demand.distinct_of_tensor[t] : demand.needed_of_tensor[t];
        }
        EXPECT_EQ(figures.reshard_bytes, resharded);  // each once: wire / needed = 1.000
        if (policy == Policy::kAuto) {
          EXPECT_EQ(figures.wire_bytes, demand.needed_bytes);
          EXPECT_EQ(figures.host_wire_bytes, demand.host_wire_bytes);
          EXPECT_EQ(figures.distinct_host_bytes, demand.host_wire_bytes);
          relayed += plan->streams.empty() ? 0 : 1;
        } else {
          // What is broadcast leaves the sources once for each engine.
          Index gathered = 0;
          for (const Stream& s : plan->streams) {
            for (const Part& part : s.parts) {
              if (plan->decisions[part.tensor].transfer == TransferKind::kBroadcast) gathered += part.bytes();
            }
          }
          EXPECT_EQ(gathered, gathered_wanted);
          EXPECT_GE(figures.broadcast_bytes, demand.needed_bytes - resharded);
          EXPECT_EQ(figures.wire_bytes, figures.reshard_bytes + figures.broadcast_bytes);
          broadcast += gathered > 0 ? 1 : 0;
        }
        streams += static_cast<int64_t>(plan->streams.size());
      }
      if (HasFailure()) return;
      ++planned;
    }
    std::cout << model.name << ": " << planned << " planned twice, " << streams << " streams\n";
  }
  if (seeds < 24) return;
  EXPECT_GT(relayed, 0);
  EXPECT_GT(broadcast, 0);
}

// With weights as large as real ones the busiest source rank sends at most 1.02 times what it must.
TEST(Topologies, SendersShareEvenlyWhereReplicasAllow) {
  constexpr double kBound = 1.02;
  constexpr Index kManyBytes = Index{200} * (64 << 10);  // the smallest stripe is 64 KiB
  const int64_t first_seed = Setting("HEADRACE_LAYOUT_SEED", 1);
  const int64_t seeds = Setting("HEADRACE_LAYOUT_CASES", 15);
  int64_t checked = 0, above_mean = 0;
  double worst = 1;
  for (const TinyModel& model : TinyModels()) {
    CaseShare share(model.name, static_cast<uint64_t>(first_seed), kLeastShare);
    for (int64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      if (!share.Take()) continue;
      Draw draw(static_cast<uint64_t>(seed));
      const auto drawn = DrawCase(model, seed, draw);
      if (!drawn.ok()) continue;
      SCOPED_TRACE(drawn->what);
      const ElementDemand demand = CountElements(drawn->manifest);
      const double least = demand.LeastBusiest();
      const auto k = static_cast<Index>(kManyBytes / least) + 1;
      const absl::StatusOr<Plan> plan = BuildPlan(Inflate(drawn->manifest, k));
      ASSERT_TRUE(plan.ok()) << plan.status();
      const double busiest = static_cast<double>(BusiestSender(*plan)) / (least * static_cast<double>(k));
      EXPECT_GE(busiest, 1 - 1e-9) << "the count of elements is wrong";
      EXPECT_LE(busiest, kBound) << least << " bytes at least, times " << k;
      worst = std::max(worst, busiest);
      ++checked;
      Index sent = 0;
      for (const auto& [ranks, bytes] : demand.by_candidates) sent += bytes;
      above_mean +=
          least > kBound * static_cast<double>(sent) / static_cast<double>(demand.source_ranks.size()) ? 1 : 0;
    }
  }
  std::cout << checked << " plans: the busiest sender at most " << worst << " times what it must; in " << above_mean
            << " of them replicas do not allow the mean\n";
  EXPECT_GT(checked, 0);
}

}  // namespace
}  // namespace headrace
