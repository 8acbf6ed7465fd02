#include "planner/layout/parallel.h"

#include <limits>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/status.h"

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Index kMax = std::numeric_limits<Index>::max();

std::vector<Index> Listed(const Segments& segments) {
  std::vector<Index> indices;
  for (const Segment& s : segments) {
    for (Index i = 0; i < s.count; ++i) indices.push_back(s.first + i);
  }
  return indices;
}

// Ranks counted off by nested loops, the fastest dimension innermost.
TEST(PlaceOf, CountsOffEveryGridOfUpToSixRanks) {
  int layouts = 0;
  for (bool data_outermost : {false, true}) {
    for (Index tp = 1; tp <= 6; ++tp) {
      for (Index cp = 1; tp * cp <= 6; ++cp) {
        for (Index dp = 1; tp * cp * dp <= 6; ++dp) {
          for (Index pp = 1; tp * cp * dp * pp <= 6; ++pp) {
            for (Index etp = 1; etp <= tp * cp * dp; ++etp) {
              for (Index ep = 1; ep <= tp * cp * dp; ++ep) {
                const ParallelLayout layout = {tp, cp, dp, pp, ep, etp, data_outermost};
                if (tp * cp * dp % (ep * etp) != 0) {
                  EXPECT_EQ(CodeOf(RanksOf(layout).status()), "shape_mismatch");
                  continue;
                }
                ++layouts;
                ASSERT_EQ(RanksOf(layout).value(), tp * cp * dp * pp);
                // For each stage its ranks in order, which count off both grids.
                std::vector<std::vector<Index>> stages(pp);
                std::vector<RankPlace> places;
                Index rank = 0;
                for (Index outer = 0; outer < (data_outermost ? dp : pp); ++outer) {
                  for (Index inner = 0; inner < (data_outermost ? pp : dp); ++inner) {
                    for (Index c = 0; c < cp; ++c) {
                      for (Index t = 0; t < tp; ++t) {
                        RankPlace& place = places.emplace_back();
                        place.tp = t;
                        place.cp = c;
                        place.dp = data_outermost ? outer : inner;
                        place.pp = data_outermost ? inner : outer;
                        stages[place.pp].push_back(rank++);
                      }
                    }
                  }
                }
                for (const std::vector<Index>& stage : stages) {
                  size_t i = 0;
                  for (Index edp = 0; i < stage.size(); ++edp) {
                    for (Index e = 0; e < ep; ++e) {
                      for (Index t = 0; t < etp; ++t, ++i) {
                        places[stage[i]].edp = edp;
                        places[stage[i]].ep = e;
                        places[stage[i]].etp = t;
                      }
                    }
                  }
                }
                for (Index r = 0; r < rank; ++r) ASSERT_EQ(PlaceOf(layout, r).value(), places[r]) << "rank " << r;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(layouts, 100);
}

TEST(PlaceOf, Errors) {
  EXPECT_EQ(CodeOf(PlaceOf({.tp = 0}, 0).status()), "invalid_option");
  EXPECT_EQ(CodeOf(PlaceOf({.etp = 0}, 0).status()), "invalid_option");
  EXPECT_EQ(CodeOf(PlaceOf({.tp = 2}, 2).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(PlaceOf({.tp = 2}, -1).status()), "out_of_bounds");
  EXPECT_EQ(CodeOf(RanksOf({.tp = kMax, .dp = 2}).status()), "out_of_bounds");
  EXPECT_THAT(RanksOf({.tp = 2, .ep = 3}).status().message(), HasSubstr("EP 3 x expert TP 1 does not divide the 2"));
}

TEST(Stages, WorkedExamplesAndErrors) {
  EXPECT_THAT(EvenStages(10, 4).value(), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(EvenStages(2, 3).value(), ElementsAre(1, 1, 0));
  EXPECT_THAT(LateStages(10, 4).value(), ElementsAre(2, 3, 3, 2));
  EXPECT_THAT(LateStages(11, 4).value(), ElementsAre(3, 3, 3, 2));
  EXPECT_THAT(LateStages(5, 1).value(), ElementsAre(5));
  EXPECT_THAT(EndStages(10, 4, 2, 2).value(), ElementsAre(2, 3, 3, 2));
  EXPECT_THAT(EndStages(61, 16, 3, 2).value(), ElementsAre(3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2));
  EXPECT_THAT(EndStages(5, 2, 3, 2).value(), ElementsAre(3, 2));
  EXPECT_EQ(CodeOf(EndStages(5, 2, 3, 3).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(EndStages(5, 2, 3, 1).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(EndStages(10, 4, 2, 3).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(EndStages(10, 4, -2, 2).status()), "invalid_option");
  EXPECT_EQ(CodeOf(EndStages(10, 1, 10, 0).status()), "invalid_option");
  EXPECT_EQ(CodeOf(EvenStages(-1, 1).status()), "invalid_option");
  EXPECT_EQ(CodeOf(LateStages(1, 0).status()), "invalid_option");
  EXPECT_THAT(VirtualChunks({4, 2}, 2).value(), ElementsAre(2, 1, 2, 1));
  EXPECT_EQ(CodeOf(VirtualChunks({4, 3}, 2).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(VirtualChunks({4}, 0).status()), "invalid_option");
  EXPECT_THAT(LayersOf({2, 1, 2, 1}, 2, 0).value(), ElementsAre(Segment{0, 2}, Segment{3, 2}));
  EXPECT_THAT(LayersOf({2, 1, 2, 1}, 2, 1).value(), ElementsAre(Segment{2, 1}, Segment{5, 1}));
  EXPECT_THAT(LayersOf({2, 0, 1}, 3, 1).value(), IsEmpty());
  EXPECT_EQ(CodeOf(LayersOf({2, 1, 2}, 2, 0).status()), "shape_mismatch");
  EXPECT_EQ(CodeOf(LayersOf({2, -1}, 2, 0).status()), "invalid_option");
  EXPECT_EQ(CodeOf(LayersOf({2, 1}, 2, 2).status()), "invalid_option");
  EXPECT_EQ(CodeOf(LayersOf({kMax, 1}, 2, 0).status()), "out_of_bounds");
}

// Layers dealt out one by one, as a scheduler walks the model.
TEST(LayersOf, EveryLayerIsOnTheStageThatRunsIt) {
  for (Index pp = 1; pp <= 6; ++pp) {
    for (Index vpp = 1; vpp <= 3; ++vpp) {
      for (Index per_chunk = 0; per_chunk <= 2; ++per_chunk) {
        std::vector<Index> stages;
        for (Index s = 0; s < pp; ++s) stages.push_back(vpp * ((per_chunk + s) % 3));
        const std::vector<Index> chunks = VirtualChunks(stages, vpp).value();
        std::map<Index, std::vector<Index>> want;  // by stage
        Index layer = 0;
        for (Index v = 0; v < vpp; ++v) {
          for (Index s = 0; s < pp; ++s) {
            for (Index i = 0; i < (per_chunk + s) % 3; ++i) want[s].push_back(layer++);
          }
        }
        for (Index s = 0; s < pp; ++s) {
          ASSERT_EQ(Listed(LayersOf(chunks, pp, s).value()), want[s])
              << "PP " << pp << " VPP " << vpp << " stage " << s;
        }
      }
    }
  }
}

TEST(ExpertsOf, DealsEveryExpertOutOnce) {
  EXPECT_THAT(ExpertsOf(7, 3, 0).value(), ElementsAre(Segment{0, 3}));
  EXPECT_THAT(ExpertsOf(7, 3, 2).value(), ElementsAre(Segment{5, 2}));
  EXPECT_THAT(ExpertsOf(7, 3, 0, ExpertOrder::kRoundRobin).value(),
              ElementsAre(Segment{0, 1}, Segment{3, 1}, Segment{6, 1}));
  EXPECT_THAT(ExpertsOf(1, 3, 2).value(), IsEmpty());
  EXPECT_EQ(CodeOf(ExpertsOf(-1, 3, 0).status()), "invalid_option");
  EXPECT_EQ(CodeOf(ExpertsOf(4, 2, 2).status()), "invalid_option");
  EXPECT_EQ(CodeOf(ExpertsOf(4, 0, 0).status()), "invalid_option");
  for (Index experts = 0; experts <= 13; ++experts) {
    for (Index ep = 1; ep <= 6; ++ep) {
      // Cards dealt in turn give the counts of both orders.
      std::vector<std::vector<Index>> dealt(ep);
      for (Index e = 0; e < experts; ++e) dealt[e % ep].push_back(e);
      Index next = 0;
      for (Index r = 0; r < ep; ++r) {
        const std::vector<Index> linear = Listed(ExpertsOf(experts, ep, r).value());
        ASSERT_EQ(Listed(ExpertsOf(experts, ep, r, ExpertOrder::kRoundRobin).value()), dealt[r]);
        ASSERT_EQ(linear.size(), dealt[r].size());
        for (Index e : linear) ASSERT_EQ(e, next++);
      }
      ASSERT_EQ(next, experts);
    }
  }
}

}  // namespace
}  // namespace headrace
