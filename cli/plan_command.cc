#include "cli/plan_command.h"

#include <chrono>
#include <iostream>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report.h"
#include "planner/digest.h"
#include "planner/manifest_json.h"
#include "planner/plan.h"
#include "planner/plan_json.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status PlanFile(const PlanCommand& command) {
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(command.file));
  HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  std::optional<ProgressBar> progress(std::in_place, "plan", !command.json);
  progress->Update(0, "planning and proving");
  const auto begin = std::chrono::steady_clock::now();
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  progress.reset();
  if (command.json) {
    nlohmann::ordered_json document = {{"outcome", "planned"}};
    document.update(FiguresToJson(manifest, plan));
    document["plan_seconds"] = seconds;
    PrintJson(document);
    return absl::OkStatus();
  }
  const PlanFigures f = Measure(manifest, plan);
  std::vector<std::vector<std::string>> edges = {{"from", "to", "copies", "bytes"}};
  for (const Edge& e : plan.edges) {
    Index bytes = 0;
    for (size_t i = e.first; i < e.first + e.count; ++i) bytes += plan.copies[i].bytes();
    edges.push_back({absl::StrCat("source ", e.source_rank), absl::StrCat("destination ", e.destination_rank),
                     absl::StrCat(e.count), HumanBytes(bytes)});
  }
  std::cout << "The plan is proven: every destination byte is written exactly once, by the right element.\n\n"
            << Table({{"tensors", absl::StrCat(f.tensors)},
                      {"copies", absl::StrCat(f.copies)},
                      {"needed", HumanBytes(f.needed_bytes)},
                      {"on the wire", HumanBytes(f.wire_bytes)},
                      {"transfer", absl::StrCat(HumanBytes(f.reshard_bytes), " reshard, ",
                                                HumanBytes(f.broadcast_bytes), " broadcast")},
                      {"install",
                       absl::StrCat(HumanBytes(f.direct_bytes), " direct, ", HumanBytes(f.loader_bytes), " loader")},
                      {"zero fills", HumanBytes(f.zero_bytes)},
                      {"busiest sender", absl::StrFormat("%.3f x mean", f.sender_max_over_mean)},
                      {"planned in", HumanSeconds(seconds)},
                      {"digest", absl::BytesToHexString(PlanDigest(manifest, plan))}});
  if (!plan.edges.empty()) std::cout << "\n" << Table(edges);
  return absl::OkStatus();
}

}  // namespace

int Run(const PlanCommand& command) {
  absl::Status status = PlanFile(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

}  // namespace headrace
