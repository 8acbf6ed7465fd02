// Measures on this machine what the time model (planner/cost/machine.h) has to know of it, in half a minute, and prints
// one JSON document; bench/README.md lists the fields, belief_model.h makes a model of them.
//
// Everything is measured on lanes (calibration_lane.h) and on generations of a few KiB, never on a refit that is to be
// predicted. CPU-seconds where work is timed, since they do not count what others do; repetitions in turns, medians.

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "bench/belief_cases.h"
#include "bench/busy.h"
#include "bench/calibration_lane.h"
#include "bench/refit_job.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

struct Options {
  int passes = 2;
  int repetitions = 2;  // of each pass
  Index mib = 64;       // of a lane's slot: more than caches hold
  uint64_t generations = 20;
};

constexpr Index kWhole = Index{16} << 20;
constexpr int64_t kChunkBytes = 256 << 10;
constexpr int64_t kSmallChunkBytes = 32 << 10;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One trainer that offers matrices; a worker's copies are of `run` bytes. Below kWhole there is a second worker with
// the other half of each row, so that runs are `run` bytes apart.
absl::StatusOr<Manifest> RunsManifest(Index run, Index bytes) {
  Matrices m{.count = bytes / kWhole, .trainers = 1};
  const bool whole = run == kWhole;
  m.columns = whole ? 2048 : run;  // a worker's half: run / 2 elements of 2 bytes
  m.rows = kWhole / 2 / m.columns;
  m.workers = whole ? 1 : 2;
  m.worker_axis = whole ? 0 : 1;
  return MatricesManifest(m);
}

struct StepOf {
  const char* transport;
  LaneStep step;
  const char* name;
};

constexpr StepOf kSteps[] = {
    {"host", LaneStep::kSnapshot, "snapshot"},
    {"host", LaneStep::kReceive, "direct"},
    {"host", LaneStep::kReceiveShadow, "direct_shadow"},
    {"host", LaneStep::kCommit, "commit"},
    {"ucx", LaneStep::kSnapshot, "snapshot"},
    {"ucx", LaneStep::kPack, "pack"},
    {"ucx", LaneStep::kUnpack, "unpack"},
    {"ucx", LaneStep::kReceive, "transfer"},
    {"ucx", LaneStep::kReceiveShadow, "transfer_shadow"},
    {"ucx", LaneStep::kCommit, "commit"},
};

// Samples by what they are of: "cpu" of all steps, of transfers of two-sided transports "trainer_cpu" and "worker_cpu",
// and "seconds"; nanoseconds a byte.
using Samples = std::map<std::string, std::vector<double>>;

absl::Status MeasureStep(const StepOf& step, const std::vector<CalibrationLane>& lanes, size_t count, double snapshot,
                         double moved, Samples* samples) {
  constexpr int kTimes = 2;
  for (size_t i = 0; i < count; ++i) lanes[i].Begin(step.step, kTimes);
  for (size_t i = 0; i < count; ++i) {
    HR_ASSIGN_OR_RETURN(const LaneTimes times, lanes[i].End(step.step, kTimes));
    const double scale = 1e9 / (step.step == LaneStep::kSnapshot ? snapshot : moved);
    const std::string key = absl::StrCat(step.name, count == 1 ? "" : "_at_once");
    (*samples)[key].push_back((times.trainer_cpu + times.worker_cpu) * scale);
    if (std::string(step.transport) == "host" || step.name[0] != 't') continue;
    (*samples)[key + ".trainer"].push_back(times.trainer_cpu * scale);
    (*samples)[key + ".worker"].push_back(times.worker_cpu * scale);
    (*samples)[key + ".seconds"].push_back(times.seconds * scale);
  }
  return absl::OkStatus();
}

absl::Status MeasureRuns(const Options& options, const std::string& transport, Index run, int64_t chunk_bytes,
                         Samples* samples) {
  HR_ASSIGN_OR_RETURN(const Manifest manifest, RunsManifest(run, options.mib << 20));
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
  std::vector<CalibrationLane> lanes;
  for (int i = 0; i < 2; ++i) {
    HR_ASSIGN_OR_RETURN(CalibrationLane lane, CalibrationLane::Fork(manifest, plan, transport, chunk_bytes));
    lanes.push_back(std::move(lane));
  }
  for (const CalibrationLane& lane : lanes) HR_RETURN_IF_ERROR(lane.Connect());
  const double snapshot = static_cast<double>(options.mib << 20), moved = run == kWhole ? snapshot : snapshot / 2;
  for (int i = 0; i < options.repetitions; ++i) {
    for (const StepOf& step : kSteps) {
      if (step.transport != transport) continue;
      for (size_t count : {size_t{1}, size_t{2}}) {
        HR_RETURN_IF_ERROR(MeasureStep(step, lanes, count, snapshot, moved, samples));
      }
    }
  }
  return absl::OkStatus();
}

// Median wall seconds of a generation of a few KiB. In a process of its own, since a job starts threads.
absl::StatusOr<double> MeasureFixed(const RefitOptions& refit, Index trainers, Index workers, uint64_t generations) {
  HR_ASSIGN_OR_RETURN(const Manifest manifest,
                      MatricesManifest({.rows = 64, .columns = 64, .trainers = trainers, .workers = workers}));
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
  HR_ASSIGN_OR_RETURN(const ForkedProcess process,
                      ForkedProcess::Fork("a tiny refit", [&]() -> absl::StatusOr<ForkedProcess::Obey> {
                        return [&](const std::string&, const Json&) -> absl::StatusOr<Json> {
                          HR_ASSIGN_OR_RETURN(const auto job, RefitJob::Start(manifest, plan, refit));
                          std::vector<double> seconds;
                          constexpr uint64_t kWarmup = 3;
                          for (uint64_t g = 1; g <= kWarmup + generations; ++g) {
                            HR_ASSIGN_OR_RETURN(const Json sample, job->Generation(g));
                            if (g > kWarmup) seconds.push_back(sample["seconds"]);
                          }
                          HR_RETURN_IF_ERROR(job->Close());
                          return Json{{"seconds", Median(std::move(seconds))}};
                        };
                      }));
  HR_ASSIGN_OR_RETURN(const Json answer, process.Do({{"do", "run"}}));
  return answer["seconds"].get<double>();
}

absl::StatusOr<Json> Run(const Options& options) {
  const double begin = MonotonicSeconds(), busy = BusySeconds();
  const std::vector<Index> runs = {64, 256, 1024, 4096, 16384, 65536, kWhole};
  std::map<std::pair<std::string, Index>, Samples> samples;
  std::map<std::string, Samples> small_chunks;
  std::map<std::tuple<std::string, Index, Index>, std::vector<double>> tiny;
  for (int pass = 0; pass < options.passes; ++pass) {
    for (const char* transport : {"host", "ucx"}) {
      for (Index run : runs) {
        HR_RETURN_IF_ERROR(MeasureRuns(options, transport, run, kChunkBytes, &samples[{transport, run}]));
      }
      for (const auto& [trainers, workers] : {std::pair<Index, Index>{1, 1}, {2, 2}, {4, 2}, {2, 4}, {8, 1}}) {
        HR_ASSIGN_OR_RETURN(const double seconds, MeasureFixed({.shadow = false, .transport = transport}, trainers,
                                                               workers, options.generations));
        tiny[{transport, trainers, workers}].push_back(seconds);
      }
    }
    HR_RETURN_IF_ERROR(MeasureRuns(options, "ucx", kWhole, kSmallChunkBytes, &small_chunks["ucx"]));
  }
  const auto medians = [](const Samples& of) {
    Json out = Json::object();
    for (const auto& [name, values] : of) out[name] = Median(values);
    return out;
  };
  Json document{{"format", 1}, {"cores", sysconf(_SC_NPROCESSORS_ONLN)}};
  for (const char* transport : {"host", "ucx"}) {
    Json& part = document[transport];
    part["chunk_bytes"] = kChunkBytes;
    for (Index run : runs) {
      Json entry{{"run_bytes", run}};
      entry.update(medians(samples.at({transport, run})));
      part["ns_per_byte"].push_back(std::move(entry));
    }
    for (const auto& [job, seconds] : tiny) {
      if (std::get<0>(job) != transport) continue;
      part["tiny"].push_back({{"trainers", std::get<1>(job)},
                              {"workers", std::get<2>(job)},
                              {"seconds", *std::min_element(seconds.begin(), seconds.end())}});
    }
  }
  document["ucx"]["small_chunk_bytes"] = kSmallChunkBytes;
  document["ucx"]["small_chunks_ns_per_byte"] = medians(small_chunks.at("ucx"));
  const double seconds = MonotonicSeconds() - begin;
  document["seconds"] = seconds;
  // All processes have ended and been waited for.
  document["foreign_cores"] = std::max(0.0, BusySeconds() - busy - TreeCpuSeconds()) / seconds;
  return document;
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::Options options;
  CLI::App app("Measures what the time model has to know of this machine.");
  app.add_option("--passes", options.passes, "over everything")->check(CLI::Range(1, 20))->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "in a pass")->check(CLI::Range(1, 100))->capture_default_str();
  app.add_option("--mib", options.mib, "of weights at a time; a multiple of 16")
      ->check(CLI::Range(16, 1024))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto document = headrace::bench::Run(options);
  if (!document.ok()) {
    std::cerr << "calibrate: " << document.status().message() << "\n";
    return 1;
  }
  std::cout << document->dump(2) << "\n";
}
