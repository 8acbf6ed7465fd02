#ifndef HEADRACE_PLANNER_TESTING_MUTATE_PLAN_H_
#define HEADRACE_PLANNER_TESTING_MUTATE_PLAN_H_

// Test only. Ways to spoil a plan.

#include <functional>
#include <string>

#include "planner/plan.h"
#include "planner/testing/random_manifest.h"

namespace headrace {

// Calls visit(kind, mutated plan) for each kind of mutation that the plan allows, at a random place, with edges that
// fit the copies (except for mutations of edges). A mutation may leave a plan that still writes the same bytes.
void ForEachMutation(Random& random, const Manifest& manifest, const Plan& plan,
                     const std::function<void(const std::string& kind, const Plan& mutated)>& visit);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_TESTING_MUTATE_PLAN_H_
