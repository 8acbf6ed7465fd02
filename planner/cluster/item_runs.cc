#include "planner/cluster/item_runs.h"

#include <algorithm>
#include <vector>

namespace headrace {
namespace {

// The first of the ascending borders behind `at`, or `end`.
Index NextBorder(const std::vector<Index>& borders, Index at, Index end) {
  const auto it = std::upper_bound(borders.begin(), borders.end(), at);
  return it == borders.end() ? end : std::min(*it, end);
}

}  // namespace

void ForEachItemRun(const ClusterPlan& plan, Index most_bytes, const std::function<void(const ItemRun&)>& visit) {
  std::vector<ItemStripe> stripes;
  for (size_t u = 0; u < plan.cluster().units.size(); ++u) {
    const UnitPlan& unit_plan = plan.unit_plan(static_cast<int>(u));
    for (const InstanceGroup& group : plan.unit_index(static_cast<int>(u)).groups) {
      for (size_t c = 0; c < unit_plan.classes().size(); ++c) {
        const CellClass& cells = unit_plan.classes()[c];
        const Aggregate& a = plan.aggregate(group, static_cast<int>(c));
        const Index end = cells.bytes * group.count;
        const Index most = std::max<Index>(most_bytes / cells.bytes, 1);
        for (int32_t place = 0; place < group.count;) {
          const Index at = cells.bytes * place;
          const Index border = std::min(
              NextBorder(plan.loads()[a.load].begins, a.load_begin + at, a.load_begin + end) - a.load_begin,
              NextBorder(plan.consumers()[a.consumers].borders(), a.consumers_begin + at, a.consumers_begin + end) -
                  a.consumers_begin);
          ItemRun run;
          run.unit = static_cast<int>(u);
          run.group = &group;
          run.cell_class = static_cast<int>(c);
          run.consumers = a.consumers;
          run.instances = std::min((border - at) / cells.bytes, most);
          if (run.instances > 0) {
            stripes.clear();
            plan.AppendStripes(run.unit, group, place, cells.cells[0], &stripes);
            run.bytes = run.instances * cells.bytes;
            run.first = stripes[0];
            visit(run);
            place += static_cast<int32_t>(run.instances);
            continue;
          }
          run.instances = 1;
          for (int cell : cells.cells) {
            stripes.clear();
            plan.AppendStripes(run.unit, group, place, cell, &stripes);
            run.cell = cell;
            for (const ItemStripe& stripe : stripes) {
              run.bytes = stripe.bytes;
              run.first = stripe;
              visit(run);
            }
          }
          ++place;
        }
      }
    }
  }
}

}  // namespace headrace
