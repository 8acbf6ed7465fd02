// Measures on this machine what the time model (planner/cost/machine.h) has to know of it, in half a minute, and prints
// one JSON document; bench/README.md lists the fields, belief_model.h makes a model of them.
//
// Everything is measured on lanes (calibration_lanes.h) and on generations of a few KiB, never on a refit that is to be
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
#include "bench/calibration_lanes.h"
#include "bench/refit_job.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

struct Options {
  int passes = 1;
  int repetitions = 2;  // of each pass
  Index mib = 64;       // of a lane's slot: more than caches hold
  uint64_t generations = 20;
};

constexpr Index kWhole = Index{16} << 20;
constexpr int64_t kChunkBytes = 256 << 10;
constexpr int64_t kSmallChunkBytes = 32 << 10;
constexpr int kTimes = 2;  // that a step is done for one sample

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Nanoseconds a byte, by what they are of.
using Samples = std::map<std::string, std::vector<double>>;

Json Medians(const Samples& samples) {
  Json out = Json::object();
  for (const auto& [name, values] : samples) out[name] = Median(values);
  return out;
}

// Copies of `run` bytes. One trainer, and a worker that wants half of each row, so that the runs it reads are `run`
// bytes apart; or (`dense`) two trainers with half of each row, whose runs lie one behind the other, and a worker that
// wants all, which the runs that it writes are apart.
Matrices RunsOf(Index run, Index bytes, bool dense) {
  Matrices m{.count = bytes / kWhole, .trainers = 1, .workers = 1};
  const bool whole = run == kWhole;
  m.columns = whole ? 2048 : run;  // a half of it is run / 2 elements of 2 bytes
  m.rows = kWhole / 2 / m.columns;
  if (whole) return m;
  (dense ? m.trainers : m.workers) = 2;
  (dense ? m.trainer_axis : m.worker_axis) = 1;
  return m;
}

// Every trainer has something for every worker, in long runs.
Matrices CrowdOf(Index trainers, Index workers, Index bytes) {
  return {.count = bytes / kWhole,
          .rows = 64,
          .columns = kWhole / 2 / 64,
          .trainers = trainers,
          .workers = workers,
          .worker_axis = 1};
}

struct Step {
  LaneStep step;
  const char* name;
};

// Does the steps in turns, between the trainers and the first `workers` of the matrices.
absl::Status Measure(int repetitions, const Matrices& matrices, int workers, const std::string& transport,
                     int64_t chunk_bytes, const std::vector<Step>& steps, Samples* samples) {
  HR_ASSIGN_OR_RETURN(const Manifest manifest, MatricesManifest(matrices));
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
  HR_ASSIGN_OR_RETURN(const CalibrationLanes lanes,
                      CalibrationLanes::Fork(manifest, plan, workers, transport, chunk_bytes));
  HR_RETURN_IF_ERROR(lanes.Connect());
  const double offered = static_cast<double>(matrices.count * matrices.rows * matrices.columns * 2);
  const double moved = offered * workers / static_cast<double>(matrices.workers);
  for (int i = 0; i < repetitions; ++i) {
    for (const Step& step : steps) {
      lanes.Begin(step.step, kTimes);
      HR_ASSIGN_OR_RETURN(const LaneTimes times, lanes.End(step.step, kTimes));
      const double scale = 1e9 / (step.step == LaneStep::kSnapshot ? offered : moved);
      const bool sends = transport != "host" && times.trainer_cpu > 0 && times.worker_cpu > 0;
      if (!sends) (*samples)[step.name].push_back((times.trainer_cpu + times.worker_cpu) * scale);
      if (!sends) continue;
      (*samples)[absl::StrCat(step.name, ".trainer")].push_back(times.trainer_cpu * scale);
      (*samples)[absl::StrCat(step.name, ".worker")].push_back(times.worker_cpu * scale);
      (*samples)[absl::StrCat(step.name, ".seconds")].push_back(times.seconds * scale);
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
                            HR_RETURN_IF_ERROR(job->Chill());
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

// What is known of a transport.
struct Part {
  std::map<Index, Samples> runs, dense_runs;
  std::map<std::pair<Index, Index>, Samples> crowds;            // by trainers and workers
  std::map<std::pair<Index, Index>, std::vector<double>> tiny;  // likewise; seconds
  Samples whole, small_chunks;                                  // of one pair, two-sided
};

absl::Status MeasureTransport(const Options& options, const std::string& transport, Part* part) {
  const bool host = transport == "host";
  const Index bytes = options.mib << 20;
  const std::vector<Step> steps = host ? std::vector<Step>{{LaneStep::kSnapshot, "snapshot"},
                                                           {LaneStep::kReceive, "direct"},
                                                           {LaneStep::kReceiveShadow, "direct_shadow"},
                                                           {LaneStep::kCommit, "commit"}}
                                       : std::vector<Step>{{LaneStep::kSnapshot, "snapshot"},
                                                           {LaneStep::kPack, "pack"},
                                                           {LaneStep::kUnpack, "unpack"},
                                                           {LaneStep::kCommit, "commit"}};
  for (Index run : {Index{64}, Index{256}, Index{1024}, Index{4096}, Index{16384}, Index{65536}, kWhole}) {
    HR_RETURN_IF_ERROR(Measure(options.repetitions, RunsOf(run, bytes, /*dense=*/false), 1, transport, kChunkBytes,
                               steps, &part->runs[run]));
    if (run == kWhole) continue;
    HR_RETURN_IF_ERROR(Measure(options.repetitions, RunsOf(run, bytes, /*dense=*/true), 1, transport, kChunkBytes,
                               steps, &part->dense_runs[run]));
  }
  const std::vector<Step> transfer = {{LaneStep::kReceive, host ? "direct" : "transfer"}};
  const std::vector<Index> trainers = host ? std::vector<Index>{1, 2} : std::vector<Index>{1, 2, 4, 8};
  const std::vector<Index> workers = host ? std::vector<Index>{1, 2} : std::vector<Index>{1, 2};
  // Whether two hinder each other is a small difference; a copy out of mapped memory is quickly made.
  const int repetitions = host ? 4 * options.repetitions : options.repetitions;
  for (Index t : trainers) {
    for (Index w : workers) {
      HR_RETURN_IF_ERROR(Measure(repetitions, CrowdOf(t, w, host ? bytes : 2 * w * bytes), static_cast<int>(w),
                                 transport, kChunkBytes, transfer, &part->crowds[{t, w}]));
    }
  }
  if (!host) {
    const std::vector<Step> both = {{LaneStep::kReceive, "transfer"}, {LaneStep::kReceiveShadow, "transfer_shadow"}};
    const Matrices whole = RunsOf(kWhole, 2 * bytes, /*dense=*/false);
    HR_RETURN_IF_ERROR(Measure(options.repetitions, whole, 1, transport, kChunkBytes, both, &part->whole));
    HR_RETURN_IF_ERROR(Measure(options.repetitions, whole, 1, transport, kSmallChunkBytes, both, &part->small_chunks));
  }
  for (const auto& [t, w] : {std::pair<Index, Index>{1, 1}, {2, 2}, {4, 2}, {2, 4}, {8, 1}}) {
    HR_ASSIGN_OR_RETURN(const double seconds,
                        MeasureFixed({.shadow = false, .transport = transport}, t, w, options.generations));
    part->tiny[{t, w}].push_back(seconds);
  }
  return absl::OkStatus();
}

Json Report(const Part& part) {
  Json out{{"chunk_bytes", kChunkBytes}, {"staging_bytes", kStagingBytes}};
  for (const auto& [name, runs] : {std::pair{"runs", &part.runs}, std::pair{"dense_runs", &part.dense_runs}}) {
    for (const auto& [run, samples] : *runs) {
      Json entry{{"run_bytes", run}};
      entry.update(Medians(samples));
      out[name].push_back(std::move(entry));
    }
  }
  for (const auto& [ranks, samples] : part.crowds) {
    Json entry{{"trainers", ranks.first}, {"workers", ranks.second}};
    entry.update(Medians(samples));
    out["crowds"].push_back(std::move(entry));
  }
  for (const auto& [ranks, seconds] : part.tiny) {
    out["tiny"].push_back({{"trainers", ranks.first}, {"workers", ranks.second}, {"seconds", Median(seconds)}});
  }
  if (part.whole.empty()) return out;
  out["whole"] = Medians(part.whole);
  out["small_chunk_bytes"] = kSmallChunkBytes;
  out["small_chunks"] = Medians(part.small_chunks);
  return out;
}

absl::StatusOr<Json> Run(const Options& options) {
  const double begin = MonotonicSeconds(), busy = BusySeconds();
  std::map<std::string, Part> parts;
  for (int pass = 0; pass < options.passes; ++pass) {
    for (const char* transport : {"host", "ucx"}) {
      HR_RETURN_IF_ERROR(MeasureTransport(options, transport, &parts[transport]));
    }
  }
  Json document{{"format", 1}, {"cores", sysconf(_SC_NPROCESSORS_ONLN)}};
  for (const auto& [transport, part] : parts) document[transport] = Report(part);
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
