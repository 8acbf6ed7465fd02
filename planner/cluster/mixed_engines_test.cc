// Engines of different layouts in one NVLink domain: plans are proven, and none of a domain's ranks enters more than it
// must, by a bound that is found from who wants what alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/cluster_figures.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cluster/cluster_proof.h"
#include "planner/cluster/cluster_traffic.h"
#include "planner/cluster/layout_json.h"
#include "planner/cluster/rank_plan.h"
#include "planner/cluster/rank_proof.h"
#include "planner/cost/bounds.h"
#include "planner/cost/gpu_machine.h"
#include "planner/cost/shard_classes.h"
#include "planner/cost/simulate.h"
#include "planner/layout/case_share.h"
#include "planner/models/hardware.h"
#include "planner/models/records.h"
#include "planner/testing/random_manifest.h"

namespace headrace {
namespace {

Cluster ClusterOf(const std::string& train, const std::string& gen, int domain) {
  const absl::StatusOr<JobLayout> layout =
      ParseLayout(absl::StrCat(R"({"id": "mixed", "model": "qwen3-30b-a3b", "gpu": "H100", "nvlink_domain_used": )",
                               domain, R"(, "train": )", train, R"(, "gen": )", gen, "}"));
  EXPECT_TRUE(layout.ok()) << layout.status();
  absl::StatusOr<Cluster> cluster = BuildCluster(ModelNamed(layout->model).value(), *layout);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

// By destination rank, as the plan's routes say.
std::vector<Index> Entered(const Cluster& cluster, const ClusterPlan& plan) {
  std::vector<Index> entered(cluster.destination.ranks, 0);
  const int32_t first = cluster.source.ranks;
  const auto domain = [&](int32_t node) { return (node - first) / cluster.destination.ranks_per_domain; };
  std::vector<StripeRoute> routes;
  for (size_t u = 0; u < cluster.units.size(); ++u) {
    for (size_t i = 0; i < cluster.units[u].instances.size(); ++i) {
      for (int c = 0; c < plan.CellCount(static_cast<int>(u)); ++c) {
        plan.Route({static_cast<int32_t>(u), static_cast<int32_t>(i), c}, &routes);
        for (const StripeRoute& route : routes) {
          for (const Leg& leg : route.legs) {
            if (leg.from < first || domain(leg.from) != domain(leg.to)) entered[leg.to - first] += route.bytes;
          }
        }
      }
    }
  }
  return entered;
}

// Of each domain: what its busiest rank enters at the least, where each byte that the domain wants is entered once, by
// a rank that wants it. That is the mean over the worst set of ranks of what nobody else in the domain wants.
std::vector<double> LeastBusiest(const Cluster& cluster) {
  const int32_t size = cluster.destination.ranks_per_domain;
  std::vector<std::map<unsigned, Index>> wanted((cluster.destination.ranks + size - 1) / size);  // by its ranks
  for (const ClusterUnit& unit : cluster.units) {
    const std::vector<ShardClass> classes = ShardClasses(unit.manifest).value();
    for (const GroupPair& pair : GroupPairs(unit)) {
      for (const ShardClass& c : classes) {
        std::map<int32_t, unsigned> by_domain;
        for (const int32_t rank : RanksOfShards(unit.destination_groups[pair.destination_group], c.consumers)) {
          by_domain[rank / size] |= 1u << (rank % size);
        }
        for (const auto& [domain, ranks] : by_domain) wanted[domain][ranks] += c.bytes * pair.instances;
      }
    }
  }
  std::vector<double> least;
  for (const std::map<unsigned, Index>& sets : wanted) {
    double worst = 0;
    for (unsigned some = 1; some < (1u << size); ++some) {
      Index bytes = 0;
      for (const auto& [ranks, of] : sets) bytes += (ranks & ~some) == 0 ? of : 0;
      worst = std::max(worst, static_cast<double>(bytes) / __builtin_popcount(some));
    }
    least.push_back(worst);
  }
  return least;
}

void ExpectEven(const Cluster& cluster, const ClusterPlan& plan) {
  const std::vector<Index> entered = Entered(cluster, plan);
  const std::vector<double> least = LeastBusiest(cluster);
  const int32_t size = cluster.destination.ranks_per_domain;
  for (size_t d = 0; d < least.size(); ++d) {
    const auto begin = entered.begin() + static_cast<int32_t>(d) * size;
    const auto end = entered.begin() + std::min(cluster.destination.ranks, static_cast<int32_t>(d + 1) * size);
    const auto busiest = static_cast<double>(*std::max_element(begin, end));
    EXPECT_GE(busiest, 0.99 * least[d]);  // else the bound is none
    EXPECT_LE(busiest, 1.02 * least[d]) << "domain " << d;
  }
}

double RefitOverBound(const Cluster& cluster, const ClusterPlan& plan) {
  const CostModel model = GpuCostModel(HardwareNamed("H100").value());
  const absl::StatusOr<Simulation> refit = Simulate(PlanTraffic(plan), model, {});
  const absl::StatusOr<LowerBounds> bounds = FindLowerBounds(cluster, model);
  EXPECT_TRUE(refit.ok() && bounds.ok()) << refit.status() << bounds.status();
  return refit->seconds / bounds->seconds;
}

// TP 8 beside TP 1: equal parts of what the same ranks want would be half of everything for one rank of each stage.
TEST(MixedEnginesTest, OneWholeEngineBesideOneInEighths) {
  const Cluster cluster = ClusterOf(R"({"gpus": 24, "tp": 4, "pp": 2, "etp": 2})",
                                    R"([{"gpus": 8, "tp": 8, "ep": 2}, {"gpus": 2, "tp": 1, "pp": 2}])", 16);
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, Policy::kAuto);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ProveCluster(cluster, *plan), absl::OkStatus());
  EXPECT_LE(MeasureCluster(*plan).receiver_max_over_mean, 1.02);
  EXPECT_LE(MeasureCluster(*plan).worst_stage_max_over_mean, 1.02);
  EXPECT_LE(RefitOverBound(cluster, *plan), 1.02);
  ExpectEven(cluster, *plan);
}

TEST(MixedEnginesTest, NoRankEntersMoreThanItMust) {
  constexpr const char* kTrainers[] = {
      R"({"gpus": 24, "tp": 4, "pp": 2, "etp": 2})",
      R"({"gpus": 16, "tp": 2, "ep": 8})",
      R"({"gpus": 16, "tp": 1, "pp": 2, "ep": 4})",
      R"({"gpus": 32, "tp": 4, "pp": 4})",
      R"({"gpus": 8, "fsdp": 8})",
  };
  constexpr Index kDomains[] = {4, 8, 8, 16};
  CaseShare share("mixed engines", 1, 10);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    if (!share.Take()) continue;
    Random random(seed);
    const auto engine = [&] {
      const Index tp = Index{1} << Uniform(random, 0, 3), pp = Uniform(random, 0, 2) == 0 ? 2 : 1;
      const Index dp = Uniform(random, 1, 2);
      const Index ep = tp * dp % 2 == 0 && Uniform(random, 0, 1) ? 2 : 1;
      return absl::StrCat(R"({"gpus": )", tp * pp * dp, R"(, "tp": )", tp, R"(, "pp": )", pp, R"(, "ep": )", ep, "}");
    };
    const std::string train = kTrainers[Uniform(random, 0, std::size(kTrainers) - 1)];
    std::string gen = absl::StrCat("[", engine(), ", ", engine());
    if (Uniform(random, 0, 1)) absl::StrAppend(&gen, ", ", engine());
    gen += "]";
    const auto domain = static_cast<int>(kDomains[Uniform(random, 0, 3)]);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", train, " to ", gen, ", domains of ", domain));
    const Cluster cluster = ClusterOf(train, gen, domain);
    for (const Policy policy : {Policy::kAuto, Policy::kHybrid}) {
      const absl::StatusOr<ClusterPlan> plan = PlanCluster(cluster, policy);
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_EQ(ProveCluster(cluster, *plan), absl::OkStatus());
      const auto last = static_cast<int32_t>(cluster.destination.ranks - 1);
      ASSERT_EQ(ProveReceiver(cluster, *plan, ReceiverPlan(*plan, last).value()), absl::OkStatus());
      ASSERT_EQ(ProveSender(cluster, *plan, SenderPlan(*plan, 0).value()), absl::OkStatus());
      if (policy == Policy::kAuto) ExpectEven(cluster, *plan);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace headrace
