// Refits the model of refit_model.h over the host transport, every rank a process, and prints one JSON document: the
// CPU-seconds of each generation by phase, and beside each the one-copy floor on the same memory. bench/README.md lists
// the fields; bench/run.sh runs it beside gather-and-broadcast.

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/refit_model.h"
#include "bench/refit_processes.h"
#include "loader/control/coordinator_service.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using To = RefitProcesses::To;

struct Options {
  RefitModel model;
  std::string mode = "in_place";
  uint64_t generations = 7;
  uint64_t warmup = 3;  // both slots of each publisher are mapped and touched in two
};

double Total(const std::vector<Json>& answers, const char* field) {
  double sum = 0;
  for (const Json& a : answers) sum += a.value(field, 0.0);
  return sum;
}

absl::Status ExpectRight(RefitProcesses* processes, uint64_t generation, const char* what) {
  HR_ASSIGN_OR_RETURN(const auto answers,
                      processes->Order(To::kReceivers, {{"do", "check"}, {"generation", generation}}));
  const double wrong = Total(answers, "wrong");
  if (wrong == 0) return absl::OkStatus();
  return Error(ErrorCode::kInternal,
               absl::StrCat(wrong, " words are wrong after ", what, " of generation ", generation));
}

absl::StatusOr<Json> Refit(RefitProcesses* processes, uint64_t generation) {
  HR_RETURN_IF_ERROR(processes->Order(To::kPublishers, {{"do", "fill"}, {"generation", generation}}).status());
  const double begin = ProcessCpuSeconds();
  HR_ASSIGN_OR_RETURN(const auto answers, processes->Order(To::kAll, {{"do", "refit"}, {"generation", generation}}));
  const double coordinator = ProcessCpuSeconds() - begin;
  const double total = Total(answers, "cpu") + coordinator, snapshot = Total(answers, "snapshot"),
               transfer = Total(answers, "transfer"), verify = Total(answers, "verify"),
               commit = Total(answers, "commit");
  return Json{{"total", total},   {"snapshot", snapshot}, {"transfer", transfer},
              {"verify", verify}, {"commit", commit},     {"control", total - snapshot - transfer - verify - commit}};
}

absl::StatusOr<double> Floor(RefitProcesses* processes, uint64_t generation, const char* how) {
  HR_ASSIGN_OR_RETURN(const auto answers,
                      processes->Order(To::kReceivers, {{"do", "floor"}, {"generation", generation}, {"how", how}}));
  return Total(answers, "cpu");
}

absl::StatusOr<Json> Run(const Options& options) {
  HR_ASSIGN_OR_RETURN(const Manifest manifest, RefitManifest(options.model));
  const Policy policy = options.model.broadcast ? Policy::kHybrid : Policy::kAuto;
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest, {policy}));
  HR_ASSIGN_OR_RETURN(RefitProcesses processes,
                      RefitProcesses::Fork(manifest, plan, {.shadow = options.mode == "shadow"}));
  CoordinatorOptions coordinator;
  coordinator.job = "refit_bench";
  coordinator.incarnation = "refit_bench";
  coordinator.publishers = static_cast<int>(options.model.trainers);
  coordinator.workers = {static_cast<int>(options.model.workers)};
  coordinator.timeouts = PatientTimeouts();
  coordinator.policy = std::string(PolicyName(policy));
  ControlServerOptions server;
  server.token = absl::StrCat("refit_bench-", getpid());  // guards nothing: the weights are noise
  HR_ASSIGN_OR_RETURN(auto service, CoordinatorService::Start(coordinator, server));
  HR_RETURN_IF_ERROR(
      processes.Order(To::kAll, {{"do", "join"}, {"coordinator", service->address()}, {"token", server.token}})
          .status());
  Json samples = Json::array(), warmup_samples = Json::array();
  for (uint64_t g = 1; g <= options.warmup + options.generations; ++g) {
    HR_ASSIGN_OR_RETURN(Json sample, Refit(&processes, g));
    const bool check = g == 1 || g == options.warmup + options.generations;
    if (check) HR_RETURN_IF_ERROR(ExpectRight(&processes, g, "the refit"));
    for (const char* how : {"memcpy", "kernel"}) {
      if (check) HR_RETURN_IF_ERROR(processes.Order(To::kReceivers, {{"do", "clear"}}).status());
      HR_ASSIGN_OR_RETURN(sample[absl::StrCat("floor_", how)], Floor(&processes, g, how));
      if (check) HR_RETURN_IF_ERROR(ExpectRight(&processes, g, how));
    }
    if (options.model.broadcast) {
      HR_ASSIGN_OR_RETURN(sample["floor_broadcast"], Floor(&processes, g, "whole"));
    }
    (g > options.warmup ? samples : warmup_samples).push_back(std::move(sample));
  }
  HR_ASSIGN_OR_RETURN(const auto ends, processes.Order(To::kAll, {{"do", "close"}}));
  int64_t peak_staging = 0;
  for (const Json& end : ends) peak_staging = std::max(peak_staging, end["peak_staging_bytes"].get<int64_t>());
  const PlanFigures figures = Measure(manifest, plan);
  return Json{{"mode", options.mode},
              {"tensors", figures.tensors},
              {"copies", figures.copies},
              {"needed_bytes", figures.needed_bytes},
              {"wire_bytes", static_cast<int64_t>(Total(ends, "bytes"))},
              {"slot_bytes", static_cast<int64_t>(Total(ends, "slot_bytes"))},
              {"shadow_bytes", static_cast<int64_t>(Total(ends, "shadow_bytes"))},
              {"peak_staging_bytes", peak_staging},
              {"warmup_samples", std::move(warmup_samples)},
              {"samples", std::move(samples)}};
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::Options options;
  CLI::App app("The CPU-seconds of a refit over the host transport, beside the one-copy floor.");
  app.add_option("--mode", options.mode)
      ->check(CLI::IsMember({"in_place", "shadow", "broadcast"}))
      ->capture_default_str();
  app.add_option("--layers", options.model.layers, "of the model; 8 are about 2 GiB")->capture_default_str();
  app.add_option("--generations", options.generations, "measured")->check(CLI::Range(1, 200))->capture_default_str();
  app.add_option("--warmup", options.warmup, "generations before")->check(CLI::Range(0, 50))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.model.broadcast = options.mode == "broadcast";  // in place
  const auto document = headrace::bench::Run(options);
  if (!document.ok()) {
    std::cerr << "refit_bench: " << document.status().message() << "\n";
    return 1;
  }
  std::cout << document->dump(2) << "\n";
}
