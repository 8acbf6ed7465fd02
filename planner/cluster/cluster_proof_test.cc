// Mutants: whatever is spoiled in a cluster's plan or in a rank's, the proof says so.

#include "planner/cluster/cluster_proof.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cluster/rank_plan.h"
#include "planner/cluster/rank_proof.h"
#include "planner/cluster/testing/random_cluster.h"
#include "planner/layout/case_share.h"
#include "planner/status.h"
#include "planner/testing/manifest_parts.h"

namespace headrace {
namespace {

// A plan's answers, with something else in the place of some.
class Mutant final : public ClusterAnswers {
 public:
  explicit Mutant(const ClusterPlan& plan) : plan_(plan) {}

  std::function<void(const ItemId&, std::vector<StripeRoute>*)> route;
  std::function<void(int unit, int cell, CellAnswer*)> cell_answer;
  std::function<void(int unit, int cell, std::vector<Copy>*)> copies;  // of one call
  std::function<void(int unit, std::vector<ZeroFill>*)> fills;

  Policy policy() const override { return plan_.policy(); }
  int CellCount(int unit) const override { return plan_.CellCount(unit); }
  CellAnswer DescribeCell(int unit, int cell) const override {
    CellAnswer answer = plan_.DescribeCell(unit, cell);
    if (cell_answer) cell_answer(unit, cell, &answer);
    return answer;
  }
  void AppendCopies(int unit, int cell, int source_shard, Index offset, Index bytes,
                    std::vector<Copy>* out) const override {
    std::vector<Copy> made;
    plan_.AppendCopies(unit, cell, source_shard, offset, bytes, &made);
    if (copies && !made.empty()) copies(unit, cell, &made);
    out->insert(out->end(), made.begin(), made.end());
  }
  const std::vector<ZeroFill>& ZeroFills(int unit) const override {
    fills_ = plan_.ZeroFills(unit);
    if (fills) fills(unit, &fills_);
    return fills_;
  }
  void Route(const ItemId& item, std::vector<StripeRoute>* out) const override {
    plan_.Route(item, out);
    if (route) route(item, out);
  }

 private:
  const ClusterPlan& plan_;
  mutable std::vector<ZeroFill> fills_;
};

void AddInstances(Random& random, ClusterUnit* unit, int layers, int experts) {
  std::vector<int32_t> source_places(unit->source_groups.size()), destination_places(unit->destination_groups.size());
  for (int32_t l = 0; l < layers; ++l) {
    std::fill(source_places.begin(), source_places.end(), 0);
    std::fill(destination_places.begin(), destination_places.end(), 0);
    for (int32_t e = 0; e < std::max(experts, 1); ++e) {
      UnitInstance i{l, experts > 0 ? e : -1};
      i.source_group = static_cast<int32_t>(Uniform(random, 0, static_cast<Index>(source_places.size()) - 1));
      i.destination_group = static_cast<int32_t>(Uniform(random, 0, static_cast<Index>(destination_places.size()) - 1));
      i.source_expert = source_places[i.source_group]++;
      i.destination_expert = destination_places[i.destination_group]++;
      unit->instances.push_back(i);
    }
  }
}

// 12 to 12 ranks: a matrix by rows and columns, a large one that replicas share in stripes, stacked experts with a row
// of padding, a tensor that the policy hybrid broadcasts.
Cluster SampleCluster(uint64_t seed) {
  Random random(seed);
  Cluster cluster;
  cluster.model = cluster.layout = "sample";
  cluster.source = {12, 4, 4};
  cluster.destination = {12, 4, 3};
  for (int32_t r = 0; r < 12; ++r) cluster.source_stage.push_back(0);
  cluster.units.push_back(MatrixUnit("w.{layer}", 6, 9, 2, 3));
  cluster.units.push_back(MatrixUnit("large.{layer}", 1000, 256, 1, 1));
  cluster.units.push_back(MatrixUnit("e.{layer}.{expert}", 4, 8, 1, 2));
  cluster.units.push_back(MatrixUnit("q_proj.{layer}", 5, 7, 2, 3));
  ClusterUnit& experts = cluster.units[2];
  for (Buffer& b : experts.manifest.destination) {
    b.pieces.push_back(FillOf(PieceKind::kZero, {1, b.shape[1]}, {b.shape[0], 0}));
    ++b.shape[0];
  }
  experts.source_stacked = experts.destination_stacked = true;
  const int groups[4][4] = {{2, 2, 1, 4}, {1, 12, 1, 12}, {3, 4, 2, 3}, {1, 6, 2, 2}};  // groups and replicas by side
  for (size_t u = 0; u < 4; ++u) {
    ClusterUnit& unit = cluster.units[u];
    unit.source_groups = EvenGroups(groups[u][0], static_cast<int>(unit.manifest.source.size()), groups[u][1]);
    unit.destination_groups =
        EvenGroups(groups[u][2], static_cast<int>(unit.manifest.destination.size()), groups[u][3]);
    AddInstances(random, &unit, 3, u == 2 ? 4 : 0);
  }
  return cluster;
}

class ClusterProofTest : public testing::TestWithParam<uint64_t> {
 protected:
  ClusterProofTest() : random_(GetParam()), cluster_(SampleCluster(GetParam())) {
    plan_.emplace(*PlanCluster(cluster_, GetParam() % 2 == 0 ? Policy::kAuto : Policy::kHybrid));
  }

  size_t Pick(size_t size) { return static_cast<size_t>(Uniform(random_, 0, static_cast<Index>(size) - 1)); }

  ItemId AnyItem() {
    ItemId item;
    item.unit = static_cast<int32_t>(Pick(cluster_.units.size()));
    item.instance = static_cast<int32_t>(Pick(cluster_.units[item.unit].instances.size()));
    item.cell = static_cast<int32_t>(Pick(plan_->CellCount(item.unit)));
    return item;
  }

  void ExpectInvalid(const Mutant& mutant, const std::string& what) {
    const absl::Status status = ProveCluster(cluster_, mutant);
    EXPECT_TRUE(HasCode(status, ErrorCode::kPlanInvalid)) << what << ": " << status;
    if (!status.ok()) {
      EXPECT_THAT(status.message(), testing::HasSubstr("unit \""));
    }
  }

  // Spoils the route of one item; `change` says whether it could.
  void SpoilRoute(const std::string& what,
                  const std::function<bool(const ItemId&, std::vector<StripeRoute>*)>& change) {
    for (int attempt = 0; attempt < 40; ++attempt) {
      const ItemId item = AnyItem();
      std::vector<StripeRoute> spoiled;
      plan_->Route(item, &spoiled);
      if (!change(item, &spoiled)) continue;
      Mutant mutant(*plan_);
      mutant.route = [&](const ItemId& asked, std::vector<StripeRoute>* out) {
        if (asked == item) *out = spoiled;
      };
      return ExpectInvalid(mutant, what);
    }
    ADD_FAILURE() << "nothing to spoil: " << what;
  }

  void SpoilCopy(const std::string& what, const std::function<bool(std::vector<Copy>*, Copy*)>& change) {
    for (int attempt = 0; attempt < 60; ++attempt) {
      const ItemId item = AnyItem();
      const size_t at = Pick(6);
      Mutant mutant(*plan_);
      bool changed = false;
      mutant.copies = [&](int unit, int cell, std::vector<Copy>* copies) {
        if (unit != item.unit || cell != item.cell) return;
        changed = change(copies, &(*copies)[at % copies->size()]) || changed;
      };
      const absl::Status status = ProveCluster(cluster_, mutant);
      if (!changed) continue;
      EXPECT_TRUE(HasCode(status, ErrorCode::kPlanInvalid)) << what << ": " << status;
      return;
    }
    ADD_FAILURE() << "nothing to spoil: " << what;
  }

  Random random_;
  const Cluster cluster_;
  std::optional<ClusterPlan> plan_;
};

TEST_P(ClusterProofTest, AcceptsThePlan) {
  EXPECT_TRUE(ProveCluster(cluster_, *plan_).ok());
  size_t stripes = 0;
  std::vector<StripeRoute> route;
  for (int32_t i = 0; i < 3; ++i) {
    plan_->Route({1, i, 0}, &route);
    stripes += route.size();
  }
  EXPECT_GT(stripes, 6u) << "the large matrix is not striped, and mutants of stripes are not tried";
}

TEST_P(ClusterProofTest, CatchesMutantsOfRoutes) {
  const int32_t nodes = cluster_.source.ranks + cluster_.destination.ranks, first = cluster_.source.ranks;
  using Stripes = std::vector<StripeRoute>;
  auto holders = [&](const ItemId& item, const StripeRoute& s) -> const std::vector<int32_t>& {
    const ClusterUnit& unit = cluster_.units[item.unit];
    return unit.source_groups[unit.instances[item.instance].source_group].shards[s.source_shard];
  };
  SpoilRoute("a sender that does not hold it", [&](const ItemId& item, Stripes* stripes) {
    StripeRoute& s = (*stripes)[Pick(stripes->size())];
    for (int32_t r = 0; r < cluster_.source.ranks; ++r) {
      if (std::binary_search(holders(item, s).begin(), holders(item, s).end(), r)) continue;
      for (Leg& leg : s.legs) leg.from = leg.from == s.sender ? r : leg.from;
      s.sender = r;
      return true;
    }
    return false;
  });
  SpoilRoute("a sender that is not where the legs begin", [&](const ItemId& item, Stripes* stripes) {
    StripeRoute& s = (*stripes)[Pick(stripes->size())];
    const std::vector<int32_t>& ranks = holders(item, s);
    const int32_t other = ranks[Pick(ranks.size())];
    return std::exchange(s.sender, other) != other;
  });
  SpoilRoute("a sender that is none", [&](const ItemId&, Stripes* stripes) {
    (*stripes)[0].sender = cluster_.source.ranks;
    return true;
  });
  SpoilRoute("another shard", [&](const ItemId&, Stripes* stripes) {
    (*stripes)[Pick(stripes->size())].source_shard += Pick(2) == 0 ? 1 : -1;
    return true;
  });
  SpoilRoute("a shorter stripe", [&](const ItemId&, Stripes* stripes) {
    --(*stripes)[Pick(stripes->size())].bytes;
    return true;
  });
  SpoilRoute("a longer stripe", [&](const ItemId&, Stripes* stripes) {
    ++(*stripes)[Pick(stripes->size())].bytes;
    return true;
  });
  SpoilRoute("a moved stripe", [&](const ItemId&, Stripes* stripes) {
    (*stripes)[Pick(stripes->size())].offset += Pick(2) == 0 ? 1 : -1;
    return true;
  });
  SpoilRoute("a border inside of a row", [&](const ItemId&, Stripes* stripes) {
    if (stripes->size() < 2) return false;
    const size_t n = Pick(stripes->size() - 1);
    --(*stripes)[n].bytes;
    --(*stripes)[n + 1].offset;
    ++(*stripes)[n + 1].bytes;
    return true;
  });
  SpoilRoute("stripes in another order", [&](const ItemId&, Stripes* stripes) {
    if (stripes->size() < 2) return false;
    std::swap((*stripes)[0], (*stripes)[1]);
    return true;
  });
  SpoilRoute("a dropped stripe", [&](const ItemId&, Stripes* stripes) {
    stripes->erase(stripes->begin() + static_cast<ptrdiff_t>(Pick(stripes->size())));
    return true;
  });
  SpoilRoute("a doubled stripe", [&](const ItemId&, Stripes* stripes) {
    const size_t n = Pick(stripes->size());
    stripes->insert(stripes->begin() + static_cast<ptrdiff_t>(n), StripeRoute((*stripes)[n]));
    return true;
  });
  SpoilRoute("a dropped leg", [&](const ItemId&, Stripes* stripes) {
    std::vector<Leg>& legs = (*stripes)[Pick(stripes->size())].legs;
    legs.erase(legs.begin() + static_cast<ptrdiff_t>(Pick(legs.size())));
    return true;
  });
  SpoilRoute("a doubled leg", [&](const ItemId&, Stripes* stripes) {
    std::vector<Leg>& legs = (*stripes)[Pick(stripes->size())].legs;
    legs.push_back(Leg(legs[Pick(legs.size())]));
    return true;
  });
  SpoilRoute("legs in another order", [&](const ItemId&, Stripes* stripes) {
    std::vector<Leg>& legs = (*stripes)[Pick(stripes->size())].legs;
    if (legs.size() < 2) return false;
    std::swap(legs[0], legs[1]);  // the second begins where the first ends
    return true;
  });
  SpoilRoute("a leg to somebody else", [&](const ItemId&, Stripes* stripes) {
    Leg& leg = (*stripes)[Pick(stripes->size())].legs.back();
    const int32_t to = first + static_cast<int32_t>(Pick(cluster_.destination.ranks));
    return std::exchange(leg.to, to) != to;
  });
  SpoilRoute("a leg to a sender, or past the nodes", [&](const ItemId&, Stripes* stripes) {
    (*stripes)[Pick(stripes->size())].legs.back().to = Pick(2) == 0 ? static_cast<int32_t>(Pick(first)) : nodes;
    return true;
  });
  SpoilRoute("a leg from somebody who has it not", [&](const ItemId&, Stripes* stripes) {
    std::vector<Leg>& legs = (*stripes)[Pick(stripes->size())].legs;
    Leg& leg = legs[Pick(legs.size())];
    leg.from = Pick(2) == 0 ? legs.back().to : nodes;
    return true;
  });
  SpoilRoute("a leg from another sender", [&](const ItemId&, Stripes* stripes) {
    StripeRoute& s = (*stripes)[Pick(stripes->size())];
    s.legs[0].from = (s.sender + 1) % cluster_.source.ranks;
    return true;
  });
  SpoilRoute("sent twice", [&](const ItemId&, Stripes* stripes) {
    StripeRoute& s = (*stripes)[Pick(stripes->size())];
    if (s.legs.size() < 2) return false;
    s.legs.back().from = s.sender;
    return true;
  });
  SpoilRoute("a domain that is entered twice", [&](const ItemId&, Stripes* stripes) {
    std::vector<Leg>& legs = (*stripes)[Pick(stripes->size())].legs;
    auto domain = [&](int32_t node) { return (node - first) / cluster_.destination.ranks_per_domain; };
    for (size_t n = 1; n < legs.size(); ++n) {
      for (size_t m = 0; m < n; ++m) {
        if (legs[n].from < first || domain(legs[n].from) != domain(legs[n].to) ||
            domain(legs[m].to) == domain(legs[n].to)) {
          continue;
        }
        legs[n].from = legs[m].to;
        return true;
      }
    }
    return false;
  });
  SpoilRoute("another instance's way", [&](const ItemId& item, Stripes* stripes) {
    const ClusterUnit& unit = cluster_.units[item.unit];
    for (int32_t i = 0; i < static_cast<int32_t>(unit.instances.size()); ++i) {
      if (unit.instances[i].source_group == unit.instances[item.instance].source_group) continue;
      plan_->Route({item.unit, i, item.cell}, stripes);
      return true;
    }
    return false;
  });
  SpoilRoute("another cell's way", [&](const ItemId& item, Stripes* stripes) {
    for (int32_t c = 0; c < plan_->CellCount(item.unit); ++c) {
      if (plan_->DescribeCell(item.unit, c).source_shards == plan_->DescribeCell(item.unit, item.cell).source_shards) {
        continue;
      }
      plan_->Route({item.unit, item.instance, c}, stripes);
      return true;
    }
    return false;
  });
}

TEST_P(ClusterProofTest, CatchesMutantsOfCells) {
  auto spoil = [&](const std::string& what, const std::function<void(const ItemId&, CellAnswer*)>& change) {
    const ItemId item = AnyItem();
    Mutant mutant(*plan_);
    mutant.cell_answer = [&](int unit, int cell, CellAnswer* answer) {
      if (unit == item.unit && cell == item.cell) change(item, answer);
    };
    ExpectInvalid(mutant, what);
  };
  spoil("fewer bytes", [](const ItemId&, CellAnswer* a) { --a->bytes; });
  spoil("more bytes", [](const ItemId&, CellAnswer* a) { ++a->bytes; });
  spoil("another tensor", [](const ItemId&, CellAnswer* a) { ++a->tensor; });
  spoil("no source", [](const ItemId&, CellAnswer* a) { a->source_shards.clear(); });
  spoil("a source that holds it not",
        [](const ItemId&, CellAnswer* a) { a->source_shards.push_back(a->source_shards.back() + 1); });
  spoil("a shard that does not exist", [](const ItemId&, CellAnswer* a) { a->goes_to.push_back(99); });
  spoil("a shard less", [](const ItemId&, CellAnswer* a) { a->goes_to.pop_back(); });
  spoil("shards out of order", [](const ItemId&, CellAnswer* a) { a->goes_to.push_back(a->goes_to.front()); });
  Mutant mutant(*plan_);  // of cell 0 of w, which goes to one shard
  mutant.cell_answer = [&](int unit, int cell, CellAnswer* a) {
    if (unit == 0 && cell == 0) a->goes_to = {0, 1, 2};
  };
  mutant.route = [&](const ItemId& item, std::vector<StripeRoute>* out) {
    if (item.unit != 0 || item.cell != 0) return;
    StripeRoute& s = (*out)[0];
    s.legs = {{s.sender, cluster_.source.ranks}};
    for (int32_t r = 1; r < 12; ++r) s.legs.push_back({cluster_.source.ranks + r - 1, cluster_.source.ranks + r});
  };
  ExpectInvalid(mutant, "a whole way to shards that do not want it");
}

TEST_P(ClusterProofTest, CatchesMutantsOfCopiesAndFills) {
  SpoilCopy("dropped", [](std::vector<Copy>* all, Copy* c) {
    all->erase(all->begin() + (c - all->data()));
    return true;
  });
  SpoilCopy("doubled", [](std::vector<Copy>* all, Copy* c) {
    all->push_back(Copy(*c));
    return true;
  });
  const std::vector<std::pair<std::string, std::function<bool(Copy*)>>> changes = {
      {"source offset", [](Copy* c) { return (c->source_offset += 2) != 0; }},
      {"source offset by a byte", [](Copy* c) { return (c->source_offset -= 1) != 0; }},
      {"destination offset", [](Copy* c) { return (c->destination_offset += 2) != 0; }},
      {"position", [](Copy* c) { return (c->position += 2) != 0; }},
      {"all three", [](Copy* c) { return (c->position += 2, c->source_offset += 2, c->destination_offset += 2) != 0; }},
      {"run", [](Copy* c) { return (c->run_bytes += 2) != 0; }},
      {"shorter run", [](Copy* c) { return (c->run_bytes -= 2) != 0; }},
      {"extent", [](Copy* c) { return !c->loops.empty() && ++c->loops[0].extent > 0; }},
      {"source stride", [](Copy* c) { return !c->loops.empty() && ++c->loops[0].source_stride > 0; }},
      {"destination stride", [](Copy* c) { return !c->loops.empty() && ++c->loops[0].destination_stride > 0; }},
      {"position stride", [](Copy* c) { return !c->loops.empty() && ++c->loops[0].position_stride > 0; }},
      {"no loops", [](Copy* c) { return !c->loops.empty() && (c->loops.clear(), true); }},
      {"tensor", [](Copy* c) { return ++c->tensor > 0; }},
      {"source", [](Copy* c) { return ++c->source > 0; }},
      {"destination", [](Copy* c) { return ++c->destination > 0; }},
      {"destination that is none", [](Copy* c) { return (c->destination = -1) < 0; }},
      {"part", [](Copy* c) { return ++c->part > 0; }},
  };
  for (const auto& [what, change] : changes) {
    SpoilCopy(what, [&change = change](std::vector<Copy>*, Copy* c) { return change(c); });
  }
  auto spoil_fills = [&](const std::string& what, const std::function<void(std::vector<ZeroFill>*)>& change) {
    Mutant mutant(*plan_);
    mutant.fills = [&](int unit, std::vector<ZeroFill>* fills) {
      if (unit == 2) change(fills);
    };
    ExpectInvalid(mutant, what);
  };
  spoil_fills("a fill less", [](std::vector<ZeroFill>* f) { f->pop_back(); });
  spoil_fills("a fill twice", [](std::vector<ZeroFill>* f) { f->push_back(ZeroFill(f->front())); });
  spoil_fills("a moved fill", [](std::vector<ZeroFill>* f) { (*f)[0].destination_offset -= 2; });
  spoil_fills("a longer fill", [](std::vector<ZeroFill>* f) { (*f)[0].run_bytes += 2; });
  spoil_fills("a fill of another buffer", [](std::vector<ZeroFill>* f) { (*f)[0].destination ^= 1; });
}

// Every field of a rank's plan.
class RankMutants {
 public:
  RankMutants(Random& random, const RankPlan& plan) : random_(random), plan_(plan) {}

  void ForEach(const std::function<void(const std::string&, const RankPlan&)>& visit) {
    auto passage = [&](const std::string& what, const std::function<bool(RankPlan*, Passage*)>& change) {
      if (plan_.passages.empty()) return;
      for (int attempt = 0; attempt < 10; ++attempt) {
        RankPlan mutant = plan_;
        if (change(&mutant, &mutant.passages[Pick(mutant.passages.size())])) return visit(what, mutant);
      }
    };
    auto sign = [&] { return Pick(2) == 0 ? 1 : -1; };
    passage("unit", [&](RankPlan*, Passage* p) { return (p->item.unit += sign(), true); });
    passage("instance", [&](RankPlan*, Passage* p) { return (p->item.instance += sign(), true); });
    passage("cell", [&](RankPlan*, Passage* p) { return (p->item.cell += sign(), true); });
    passage("offset", [&](RankPlan*, Passage* p) { return (p->offset += sign(), true); });
    passage("bytes", [&](RankPlan*, Passage* p) { return (p->bytes += sign(), true); });
    passage("order", [&](RankPlan*, Passage* p) { return (p->order += sign(), true); });
    passage("sender", [&](RankPlan*, Passage* p) { return (p->sender += sign(), true); });
    passage("source_shard", [&](RankPlan*, Passage* p) { return (p->source_shard += sign(), true); });
    passage("from", [&](RankPlan*, Passage* p) { return (p->from += sign(), true); });
    passage("next_domain", [&](RankPlan*, Passage* p) { return (p->next_domain += sign(), true); });
    passage("next_inside", [&](RankPlan*, Passage* p) { return (p->next_inside += sign(), true); });
    passage("legs", [&](RankPlan*, Passage* p) { return (p->legs += sign(), true); });
    passage("nobody next", [&](RankPlan*, Passage* p) {
      return std::exchange(p->next_domain, -1) >= 0 || std::exchange(p->next_inside, -1) >= 0;
    });
    passage("first_copy", [&](RankPlan*, Passage* p) { return p->copies > 0 && (p->first_copy += sign(), true); });
    passage("copies", [&](RankPlan*, Passage* p) { return (p->copies += sign(), true); });
    passage("dropped", [&](RankPlan* plan, Passage* p) {
      plan->passages.erase(plan->passages.begin() + (p - plan->passages.data()));
      return true;
    });
    passage("dropped with its copies", [&](RankPlan* plan, Passage* p) {
      const Passage gone = *p;
      plan->passages.erase(plan->passages.begin() + (p - plan->passages.data()));
      const auto first = plan->copies.begin() + gone.first_copy;
      plan->copies.erase(first, first + gone.copies);
      for (Passage& x : plan->passages) x.first_copy -= x.first_copy > gone.first_copy ? gone.copies : 0;
      return true;
    });
    passage("doubled", [&](RankPlan* plan, Passage* p) {
      plan->passages.insert(plan->passages.begin() + (p - plan->passages.data()), Passage(*p));
      return true;
    });
    passage("exchanged", [&](RankPlan* plan, Passage* p) {
      Passage& other = plan->passages[Pick(plan->passages.size())];
      std::swap(*p, other);
      return p != &other;
    });
    passage("exchanged copies", [&](RankPlan* plan, Passage* p) {
      Passage& other = plan->passages[Pick(plan->passages.size())];
      if (Text(*plan, *p) == Text(*plan, other)) return false;  // another instance's, say the same
      std::swap(p->first_copy, other.first_copy);
      std::swap(p->copies, other.copies);
      return true;
    });
    auto copy = [&](const std::string& what, const std::function<bool(RankPlan*, Copy*)>& change) {
      if (plan_.copies.empty()) return;
      for (int attempt = 0; attempt < 10; ++attempt) {
        RankPlan mutant = plan_;
        if (change(&mutant, &mutant.copies[Pick(mutant.copies.size())])) return visit("copy: " + what, mutant);
      }
    };
    copy("tensor", [&](RankPlan*, Copy* c) { return (c->tensor += sign(), true); });
    copy("source", [&](RankPlan*, Copy* c) { return (c->source += sign(), true); });
    copy("destination", [&](RankPlan*, Copy* c) { return (c->destination += c->destination < 0 ? 1 : sign(), true); });
    copy("part", [&](RankPlan*, Copy* c) { return (c->part += sign(), true); });
    copy("source_offset", [&](RankPlan*, Copy* c) { return (c->source_offset += sign(), true); });
    copy("destination_offset", [&](RankPlan*, Copy* c) { return (c->destination_offset += sign(), true); });
    copy("far destination_offset", [&](RankPlan*, Copy* c) { return (c->destination_offset += 64, true); });
    copy("position", [&](RankPlan*, Copy* c) { return (c->position += sign(), true); });
    copy("run_bytes", [&](RankPlan*, Copy* c) { return (c->run_bytes += sign(), true); });
    auto loop = [&](const std::string& what, const std::function<void(CopyLoop*)>& change) {
      copy(what,
           [&](RankPlan*, Copy* c) { return !c->loops.empty() && (change(&c->loops[Pick(c->loops.size())]), true); });
    };
    loop("extent", [&](CopyLoop* l) { l->extent += sign(); });
    loop("source_stride", [&](CopyLoop* l) { l->source_stride += sign(); });
    loop("destination_stride", [&](CopyLoop* l) { l->destination_stride += sign(); });
    loop("position_stride", [&](CopyLoop* l) { l->position_stride += sign(); });
    copy("dropped loop", [&](RankPlan*, Copy* c) { return !c->loops.empty() && (c->loops.pop_back(), true); });
    copy("dropped", [&](RankPlan* plan, Copy* c) {
      plan->copies.erase(plan->copies.begin() + (c - plan->copies.data()));
      return true;
    });
    copy("doubled", [&](RankPlan* plan, Copy* c) {
      plan->copies.push_back(Copy(*c));
      return true;
    });
    auto fill = [&](const std::string& what, const std::function<void(RankPlan*, RankFill*)>& change) {
      if (plan_.fills.empty()) return;
      RankPlan mutant = plan_;
      change(&mutant, &mutant.fills[Pick(mutant.fills.size())]);
      visit("fill: " + what, mutant);
    };
    fill("unit", [&](RankPlan*, RankFill* f) { f->unit += sign(); });
    fill("instance", [&](RankPlan*, RankFill* f) { f->instance += sign(); });
    fill("destination", [&](RankPlan*, RankFill* f) { f->fill.destination += sign(); });
    fill("destination_offset", [&](RankPlan*, RankFill* f) { f->fill.destination_offset += sign(); });
    fill("run_bytes", [&](RankPlan*, RankFill* f) { f->fill.run_bytes += sign(); });
    fill("dropped", [&](RankPlan* plan, RankFill*) { plan->fills.pop_back(); });
    fill("doubled", [&](RankPlan* plan, RankFill* f) { plan->fills.push_back(RankFill(*f)); });
    if (plan_.passages.empty()) return;  // as right for another node that has nothing to do
    RankPlan elsewhere = plan_;
    elsewhere.node += sign();
    visit("node", elsewhere);
  }

 private:
  size_t Pick(size_t size) { return static_cast<size_t>(Uniform(random_, 0, static_cast<Index>(size) - 1)); }

  static std::string Text(const RankPlan& plan, const Passage& p) {
    std::string out;
    for (uint32_t n = 0; n < p.copies; ++n) {
      const Copy& c = plan.copies[p.first_copy + n];
      absl::StrAppend(&out, c.tensor, " ", c.source, "+", c.source_offset, " ", c.destination, "+",
                      c.destination_offset, " @");
      absl::StrAppend(&out, c.position, " run ", c.run_bytes, "; ");
      for (const CopyLoop& l : c.loops) absl::StrAppend(&out, l.extent, " ", l.source_stride, ", ");
    }
    return out;
  }

  Random& random_;
  const RankPlan& plan_;
};

// Whether the mutant of one rank's plan is caught: by its own proof, or where it meets the others.
void ExpectMutantsCaught(Random& random, const Cluster& cluster, const ClusterPlan& plan) {
  std::vector<RankPlan> all;
  for (int32_t r = 0; r < cluster.source.ranks; ++r) all.push_back(*SenderPlan(plan, r));
  for (int32_t r = 0; r < cluster.destination.ranks; ++r) all.push_back(*ReceiverPlan(plan, r));
  for (size_t node = 0; node < all.size(); ++node) {
    const bool sends = static_cast<int32_t>(node) < cluster.source.ranks;
    RankMutants(random, all[node]).ForEach([&](const std::string& what, const RankPlan& mutant) {
      const absl::Status own = sends ? ProveSender(cluster, plan, mutant) : ProveReceiver(cluster, plan, mutant);
      bool caught = !own.ok();
      for (const RankPlan& other : all) {
        if (caught || other.node == mutant.node) continue;
        caught = !ProveHandover(other, mutant).ok() || !ProveHandover(mutant, other).ok();
      }
      EXPECT_TRUE(caught) << "node " << node << ": " << what;
      EXPECT_TRUE(own.ok() || HasCode(own, ErrorCode::kPlanInvalid)) << own;
    });
  }
}

TEST_P(ClusterProofTest, CatchesMutantsOfRankPlans) { ExpectMutantsCaught(random_, cluster_, *plan_); }

INSTANTIATE_TEST_SUITE_P(Seeds, ClusterProofTest, testing::Range<uint64_t>(1, 9));

TEST(RankProofTest, CatchesMutantsOfRandomClusters) {
  CaseShare share("random clusters", 1, 10);
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    if (!share.Take()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    RandomClusterOptions options;
    options.max_ranks = 6;
    const Cluster cluster = RandomCluster(random, options);
    const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectMutantsCaught(random, cluster, *plan);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace headrace
