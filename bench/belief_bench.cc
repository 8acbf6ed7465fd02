// Runs one refit of belief_cases.h as real processes and prints one JSON document: wall seconds of each generation,
// when its steps ended, and how busy others kept the machine meanwhile. bench/belief.py runs all of them in turns.

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/belief_cases.h"
#include "bench/refit_processes.h"
#include "loader/control/coordinator_service.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using To = RefitProcesses::To;

struct Options {
  std::string name;
  bool list = false;
  uint64_t generations = 3;
  uint64_t warmup = 2;  // both slots of each publisher are mapped and touched in two
};

// CPU-seconds that all processors were busy, or not given to this machine, since it was started.
double BusySeconds() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  double field, busy = 0;
  file >> cpu;
  // user nice system idle iowait irq softirq steal
  for (int i = 0; i < 8 && file >> field; ++i) {
    if (i != 3 && i != 4) busy += field;
  }
  return busy / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// When the last one of some answers had come to each of its steps, from `begin` on.
Json LastAt(const std::vector<Json>& answers, size_t first, size_t end, double begin) {
  std::vector<double> last(3, 0);
  for (size_t i = first; i < end; ++i) {
    for (size_t k = 0; k < 3; ++k) last[k] = std::max(last[k], answers[i]["at"][k].get<double>() - begin);
  }
  return last;
}

absl::StatusOr<Json> Generation(RefitProcesses* processes, size_t publishers, uint64_t generation) {
  HR_RETURN_IF_ERROR(processes->Order(To::kPublishers, {{"do", "fill"}, {"generation", generation}}).status());
  const double begin = MonotonicSeconds(), cpu = ProcessCpuSeconds();
  HR_ASSIGN_OR_RETURN(const auto answers, processes->Order(To::kAll, {{"do", "refit"}, {"generation", generation}}));
  const double seconds = MonotonicSeconds() - begin;
  double publishing = 0, receiving = 0;
  for (size_t i = 0; i < answers.size(); ++i) (i < publishers ? publishing : receiving) += answers[i].value("cpu", 0.0);
  return Json{{"seconds", seconds},
              {"publishers_cpu", publishing},
              {"receivers_cpu", receiving},
              {"coordinator_cpu", ProcessCpuSeconds() - cpu},
              {"publishers_at", LastAt(answers, 0, publishers, begin)},
              {"receivers_at", LastAt(answers, publishers, answers.size(), begin)}};
}

absl::StatusOr<Json> Run(const Options& options) {
  HR_ASSIGN_OR_RETURN(const BeliefCase refit, FindBeliefCase(options.name));
  const Manifest& manifest = refit.manifest;
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
  HR_ASSIGN_OR_RETURN(RefitProcesses processes, RefitProcesses::Fork(manifest, plan, refit.options));
  CoordinatorOptions coordinator;
  coordinator.job = "refit_bench";
  coordinator.incarnation = "refit_bench";
  const size_t publishers = manifest.topology.source.size();
  coordinator.publishers = static_cast<int>(publishers);
  coordinator.workers.clear();
  std::string engine = "none yet";
  for (const Placement& p : manifest.topology.destination) {
    if (p.engine != std::exchange(engine, p.engine)) coordinator.workers.push_back(0);
    ++coordinator.workers.back();
  }
  coordinator.timeouts = PatientTimeouts();
  ControlServerOptions server;
  server.token = absl::StrCat("refit_bench-", getpid());  // guards nothing: the weights are noise
  HR_ASSIGN_OR_RETURN(auto service, CoordinatorService::Start(coordinator, server));
  HR_RETURN_IF_ERROR(
      processes.Order(To::kAll, {{"do", "join"}, {"coordinator", service->address()}, {"token", server.token}})
          .status());
  Json samples = Json::array();
  double begin = 0, busy = 0, own = 0;
  for (uint64_t g = 1; g <= options.warmup + options.generations; ++g) {
    if (g == options.warmup + 1) {
      begin = MonotonicSeconds();
      busy = BusySeconds();
      own = processes.CpuSeconds() + ProcessCpuSeconds();
    }
    HR_ASSIGN_OR_RETURN(Json sample, Generation(&processes, publishers, g));
    if (g > options.warmup) samples.push_back(std::move(sample));
  }
  const double seconds = MonotonicSeconds() - begin;
  own = processes.CpuSeconds() + ProcessCpuSeconds() - own;
  const double foreign = std::max(0.0, BusySeconds() - busy - own) / seconds;
  HR_ASSIGN_OR_RETURN(
      const auto checks,
      processes.Order(To::kReceivers, {{"do", "check"}, {"generation", options.warmup + options.generations}}));
  for (const Json& check : checks) {
    if (check["wrong"] != 0) return Error(ErrorCode::kInternal, absl::StrCat(check["wrong"].dump(), " wrong words"));
  }
  HR_RETURN_IF_ERROR(processes.Order(To::kAll, {{"do", "close"}}).status());
  return Json{{"case", refit.name}, {"foreign_cores", foreign}, {"samples", std::move(samples)}};
}

absl::StatusOr<Json> List() {
  HR_ASSIGN_OR_RETURN(const std::vector<BeliefCase> cases, BeliefCases());
  Json list = Json::array();
  for (const BeliefCase& c : cases) {
    HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(c.manifest));
    const PlanFigures figures = Measure(c.manifest, plan);
    list.push_back({{"case", c.name},
                    {"weights", c.weights},
                    {"transport", c.options.transport},
                    {"shadow", c.options.shadow},
                    {"trainers", c.manifest.topology.source.size()},
                    {"workers", c.manifest.topology.destination.size()},
                    {"copies", figures.copies},
                    {"needed_bytes", figures.needed_bytes}});
  }
  return list;
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::Options options;
  CLI::App app("Times one real refit by which the time model is tested.");
  app.add_option("--case", options.name, "as --list names it");
  app.add_flag("--list", options.list, "prints the cases instead");
  app.add_option("--generations", options.generations, "measured")->check(CLI::Range(1, 200))->capture_default_str();
  app.add_option("--warmup", options.warmup, "generations before")->check(CLI::Range(0, 50))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto document = options.list ? headrace::bench::List() : headrace::bench::Run(options);
  if (!document.ok()) {
    std::cerr << "belief_bench: " << document.status().message() << "\n";
    return 1;
  }
  std::cout << document->dump(2) << "\n";
}
