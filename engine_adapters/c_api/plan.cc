#include "planner/plan.h"

#include <chrono>
#include <cstdlib>

#include "engine_adapters/c_api/boundary.h"
#include "engine_adapters/c_api/headrace.h"
#include "planner/manifest_json.h"
#include "planner/plan_json.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status PlanText(const char* text, const char* policy, char** figures) {
  PlanOptions options;
  HR_ASSIGN_OR_RETURN(options.policy, ParsePolicy(policy));
  HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  const auto begin = std::chrono::steady_clock::now();
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest, options));
  nlohmann::ordered_json document = {{"policy", PolicyName(options.policy)}};
  document.update(FiguresToJson(manifest, plan));
  document["plan_seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  *figures = NewText(document);
  return absl::OkStatus();
}

}  // namespace
}  // namespace headrace

extern "C" {

void hr_free(char* text) { std::free(text); }

char* hr_plan(const char* manifest, const char* policy, char** figures) {
  return headrace::Guard([&] { return headrace::PlanText(manifest, policy, figures); });
}

}  // extern "C"
