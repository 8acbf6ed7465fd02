// Runs one refit of belief_cases.h as real processes and prints one JSON document: wall seconds of each generation,
// when its steps ended, and how busy others kept the machine meanwhile. Or predicts all of them from a calibration.
// bench/belief.py runs all of them in turns and compares.

#include <algorithm>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/belief_cases.h"
#include "bench/belief_model.h"
#include "bench/busy.h"
#include "bench/refit_job.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

struct Options {
  std::string name;
  bool list = false;
  std::string calibration;
  uint64_t generations = 3;
  uint64_t warmup = 2;  // both slots of each publisher are mapped and touched in two
};

absl::StatusOr<Json> Run(const Options& options) {
  HR_ASSIGN_OR_RETURN(const BeliefCase refit, FindBeliefCase(options.name));
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(refit.manifest));
  HR_ASSIGN_OR_RETURN(const auto job, RefitJob::Start(refit.manifest, plan, refit.options));
  Json samples = Json::array();
  double begin = 0, busy = 0, own = 0;
  for (uint64_t g = 1; g <= options.warmup + options.generations; ++g) {
    if (g == options.warmup + 1) {
      begin = MonotonicSeconds();
      busy = BusySeconds();
      own = job->CpuSeconds();
    }
    HR_ASSIGN_OR_RETURN(Json sample, job->Generation(g));
    if (g > options.warmup) samples.push_back(std::move(sample));
  }
  const double seconds = MonotonicSeconds() - begin;
  own = job->CpuSeconds() - own;
  const double foreign = std::max(0.0, BusySeconds() - busy - own) / seconds;
  HR_RETURN_IF_ERROR(job->Check(options.warmup + options.generations));
  HR_RETURN_IF_ERROR(job->Close());
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

absl::StatusOr<Json> PredictAll(const std::string& path) {
  std::ifstream file(path);
  const Json document = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return Error(ErrorCode::kMalformed, absl::StrCat(path, " is not JSON"));
  HR_ASSIGN_OR_RETURN(const Calibration calibration, ParseCalibration(document));
  HR_ASSIGN_OR_RETURN(const std::vector<BeliefCase> cases, BeliefCases());
  Json list = Json::array();
  for (const BeliefCase& c : cases) {
    HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(c.manifest));
    HR_ASSIGN_OR_RETURN(const Simulation simulation, Predict(calibration, c.manifest, plan, c.options));
    Json phases = Json::object();
    for (size_t p = 0; p < kPhases; ++p) {
      phases[std::string(PhaseName(static_cast<Phase>(p)))] = simulation.by_phase[p];
    }
    list.push_back({{"case", c.name}, {"simulated_seconds", simulation.seconds}, {"by_phase", std::move(phases)}});
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
  app.add_option("--predict", options.calibration, "predicts all cases instead, from this document of calibrate");
  app.add_option("--generations", options.generations, "measured")->check(CLI::Range(1, 200))->capture_default_str();
  app.add_option("--warmup", options.warmup, "generations before")->check(CLI::Range(0, 50))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto document = options.list                  ? headrace::bench::List()
                        : options.calibration.empty() ? headrace::bench::Run(options)
                                                      : headrace::bench::PredictAll(options.calibration);
  if (!document.ok()) {
    std::cerr << "belief_bench: " << document.status().message() << "\n";
    return 1;
  }
  std::cout << document->dump(2) << "\n";
}
