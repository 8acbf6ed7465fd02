#include "cli/cluster_commands.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/cluster_report.h"
#include "cli/report.h"
#include "cli/stopwatch.h"
#include "planner/cluster/cluster_proof.h"
#include "planner/cluster/cluster_traffic.h"
#include "planner/cluster/expand.h"
#include "planner/cluster/message_groups.h"
#include "planner/cluster/rank_plan.h"
#include "planner/cost/gpu_machine.h"
#include "planner/manifest_wire.h"
#include "planner/models/hardware.h"
#include "planner/status.h"

namespace headrace {
namespace {

Index PeakBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return Index{usage.ru_maxrss} * 1024;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.fail()) return Error(ErrorCode::kIo, absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
  return absl::OkStatus();
}

// By pointer, since the plan refers to the cluster.
absl::StatusOr<std::unique_ptr<PlannedJob>> PlanJob(const LayoutChoice& options, const std::string& policy,
                                                    ProgressBar& progress) {
  auto planned = std::make_unique<PlannedJob>();
  HR_ASSIGN_OR_RETURN(const Policy parsed, ParsePolicy(policy));
  Stopwatch watch;
  progress.Update(0, "laying the model out");
  HR_ASSIGN_OR_RETURN(planned->job, LoadJob(options));
  planned->cluster_seconds = watch.Lap();
  const Cluster& cluster = planned->job.cluster;
  progress.Update(0.1, "planning");
  HR_ASSIGN_OR_RETURN(planned->plan, PlanCluster(cluster, parsed));
  planned->plan_seconds = watch.Lap();
  HR_ASSIGN_OR_RETURN(const RankPlan receiver, ReceiverPlan(*planned->plan, 0));
  planned->receiver_seconds = watch.Lap();
  planned->receiver_copies = static_cast<Index>(receiver.copies.size());
  progress.Update(0.3, "proving");
  watch.Lap();
  HR_RETURN_IF_ERROR(ProveCluster(cluster, *planned->plan));
  planned->proof_seconds = watch.Lap();
  planned->figures = MeasureCluster(*planned->plan);
  HR_ASSIGN_OR_RETURN(planned->groups_max, CountGroups(*planned->plan, planned->figures.busiest_node));
  planned->peak_bytes = PeakBytes();
  Manifest part;
  HR_ASSIGN_OR_RETURN(part.destination, RankBuffers(cluster, ClusterSide::kDestination, 0));
  part.topology.destination = {{0, "host", "domain", ""}};
  planned->manifest_bytes = static_cast<Index>(ManifestToWire(part).size());
  return planned;
}

void PrintNotes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cout << "Note: " << note << "\n";
}

absl::Status PlanForPeopleOrPrograms(const ClusterCommand& command) {
  std::optional<ProgressBar> progress(std::in_place, "plan", !command.json);
  HR_ASSIGN_OR_RETURN(const std::unique_ptr<PlannedJob> planned, PlanJob(command.job, command.policy, *progress));
  if (!command.page.empty()) {
    progress->Update(0.9, "drawing");
    HR_RETURN_IF_ERROR(WriteFile(command.page, HtmlPage(PageOf(*planned, PlanTraffic(*planned->plan), nullptr))));
  }
  progress.reset();
  if (command.json) {
    nlohmann::ordered_json document = {{"outcome", "planned"}};
    document.update(PlannedJobToJson(*planned));
    PrintJson(document);
    return absl::OkStatus();
  }
  std::cout << "The plan is proven: every byte of every engine rank is written exactly once, by the right element.\n\n"
            << Table(PlannedJobTable(*planned)) << "\n"
            << Table(TransferTable(*planned->plan));
  PrintNotes(planned->job.notes);
  if (!command.page.empty()) std::cout << "Pictures: " << command.page << "\n";
  return absl::OkStatus();
}

absl::Status SimulateForPeopleOrPrograms(const ClusterCommand& command) {
  std::optional<ProgressBar> progress(std::in_place, "simulate", !command.json);
  HR_ASSIGN_OR_RETURN(const std::unique_ptr<PlannedJob> planned, PlanJob(command.job, command.policy, *progress));
  const Cluster& cluster = planned->job.cluster;
  HR_ASSIGN_OR_RETURN(const Hardware hardware, HardwareNamed(planned->job.layout.gpu));
  CostModel model = GpuCostModel(hardware);
  model.spine_share = command.spine;
  progress->Update(0.5, "simulating");
  const Traffic traffic = PlanTraffic(*planned->plan);
  SimulateOptions options;
  if (!command.page.empty()) options.timeline_nodes = ShownNodes(cluster);
  options.max_intervals = 4000;  // about what can be told apart
  HR_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(traffic, model, options));
  HR_ASSIGN_OR_RETURN(const LowerBounds bounds, FindLowerBounds(cluster, model));
  if (!command.page.empty()) {
    HR_RETURN_IF_ERROR(WriteFile(command.page, HtmlPage(PageOf(*planned, traffic, &simulation))));
  }
  progress.reset();
  const std::vector<std::pair<std::string, const Bound*>> parts = {
      {"leaving", &bounds.leaving}, {"entering", &bounds.entering}, {"copying", &bounds.copying}};
  if (command.json) {
    nlohmann::ordered_json document = {{"outcome", "simulated"}};
    document.update(PlannedJobToJson(*planned));
    document["gpu"] = hardware.name;
    document["spine_share"] = model.spine_share;
    document["simulated_seconds"] = simulation.seconds;
    document["bound_seconds"] = bounds.seconds;
    for (const auto& [name, bound] : parts) document["bounds"][name] = {{"seconds", bound->seconds}, {"of", bound->of}};
    for (size_t p = 0; p < kPhases; ++p) {
      document["by_phase"][std::string(PhaseName(static_cast<Phase>(p)))] = simulation.by_phase[p];
    }
    document["chunk_bytes"] = simulation.chunk_bytes;
    if (planned->job.layout.seconds_min) {
      document["published"] = {{"seconds_min", *planned->job.layout.seconds_min},
                               {"seconds_max", *planned->job.layout.seconds_max},
                               {"method", planned->job.layout.method},
                               {"scope", planned->job.layout.scope}};
    }
    PrintJson(document);
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> times = {{"simulated", "seconds", ""}};
  times.push_back({"the refit", absl::StrFormat("%.4f", simulation.seconds),
                   absl::StrFormat("%.3f x the bound", simulation.seconds / bounds.seconds)});
  for (size_t p = 0; p < kPhases; ++p) {
    if (simulation.by_phase[p] > 0) {
      times.push_back({absl::StrCat("  ", PhaseName(static_cast<Phase>(p))),
                       absl::StrFormat("%.4f", simulation.by_phase[p]), "of its critical path"});
    }
  }
  times.push_back({"no schedule is faster than", absl::StrFormat("%.4f", bounds.seconds), ""});
  for (const auto& [name, bound] : parts) {
    times.push_back({absl::StrCat("  ", name), absl::StrFormat("%.4f", bound->seconds), bound->of});
  }
  if (simulation.chunk_bytes > model.chunk_bytes) {
    times.push_back({"chunks simulated", HumanBytes(simulation.chunk_bytes),
                     absl::StrCat("instead of ", HumanBytes(model.chunk_bytes), ", so that there are not too many")});
  }
  if (const JobLayout& layout = planned->job.layout; layout.seconds_min) {
    times.push_back({"published",
                     *layout.seconds_min == *layout.seconds_max
                         ? absl::StrFormat("%.2f", *layout.seconds_min)
                         : absl::StrFormat("%.2f to %.2f", *layout.seconds_min, *layout.seconds_max),
                     absl::StrCat(layout.method, "; ", layout.scope)});
  }
  std::cout << "Simulated on " << hardware.name << " at line rates"
            << (model.spine_share < 1 ? absl::StrCat(", of which a spine carries ", model.spine_share, " between rails")
                                      : "")
            << ", not measured.\n\n"
            << Table(times) << "\n"
            << Table(PlannedJobTable(*planned));
  PrintNotes(planned->job.notes);
  if (!command.page.empty()) std::cout << "Pictures: " << command.page << "\n";
  return absl::OkStatus();
}

}  // namespace

int RunClusterPlan(const ClusterCommand& command) {
  const absl::Status status = PlanForPeopleOrPrograms(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

int RunSimulate(const ClusterCommand& command) {
  const absl::Status status = SimulateForPeopleOrPrograms(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

}  // namespace headrace
