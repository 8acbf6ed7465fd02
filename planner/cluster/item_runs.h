#ifndef HEADRACE_PLANNER_CLUSTER_ITEM_RUNS_H_
#define HEADRACE_PLANNER_CLUSTER_ITEM_RUNS_H_

// A plan's items in runs: instances that go from one sender to the same consumers in the same way, one after the other.

#include <cstdint>
#include <functional>

#include "planner/cluster/cluster_plan.h"

namespace headrace {

struct ItemRun {
  int unit = 0;
  const InstanceGroup* group = nullptr;
  int cell_class = 0;
  // All cells of the class of so many instances; or, where `cell` is not -1, one stripe of one item.
  Index instances = 1;
  int cell = -1;
  Index bytes = 0;
  int32_t consumers = 0;
  ItemStripe first;  // of the run
};

// Every byte of every item is in exactly one run. Runs of whole instances have at most `most_bytes`, or one instance.
// O(aggregates + runs + the cells of an instance for each end of a stretch).
void ForEachItemRun(const ClusterPlan& plan, Index most_bytes, const std::function<void(const ItemRun&)>& visit);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_ITEM_RUNS_H_
