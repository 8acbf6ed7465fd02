// How long planning takes, in CPU-seconds of one thread: validation, intersection and the coverage proof of the whole
// job, which is what every member does when it joins. Prints one JSON document; bench/README.md lists the fields.

#include <time.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "planner/coverage.h"
#include "planner/layout/llama_layout.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Case {
  std::string name;
  LlamaConfig model;
  // Trainer: Megatron TP x DP, or FSDP over `fsdp` ranks where that is not 0.
  Index tp = 1, dp = 1, fsdp = 0;
  Dtype master = Dtype::kBF16;  // FSDP
  std::vector<Index> engines;   // the TP of each
  Index vocab_rows = 0;         // of the engines
};

LlamaConfig SmolLm2() { return {576, 1536, 30, 9, 3, 64, 49152, /*tied=*/true, false, false, Dtype::kBF16}; }
LlamaConfig Llama70B(Index layers) {
  return {8192, 28672, layers, 64, 8, 128, 128256, /*tied=*/false, false, false, Dtype::kBF16};
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {"smollm2 megatron tp2 dp3 to tp3 and tp1", SmolLm2(), 2, 3, 0, Dtype::kBF16, {3, 1}, 49344},
      {"smollm2 fsdp5 fp32 to tp3 and tp1", SmolLm2(), 1, 1, 5, Dtype::kF32, {3, 1}, 49344},
  };
  for (Index layers : {10, 20, 40, 80, 160}) {
    cases.push_back({absl::StrCat("llama-70b shapes, ", layers, " layers, fsdp32 to tp8"),
                     Llama70B(layers),
                     1,
                     1,
                     32,
                     Dtype::kBF16,
                     {8},
                     128256});
  }
  return cases;
}

absl::StatusOr<Manifest> ManifestOf(const Case& c) {
  Manifest manifest;
  HR_ASSIGN_OR_RETURN(manifest.tensors, LlamaTensors(c.model));
  const Index trainers = c.fsdp > 0 ? c.fsdp : c.tp * c.dp;
  for (Index rank = 0; rank < trainers; ++rank) {
    HR_ASSIGN_OR_RETURN(std::vector<Buffer> buffers,
                        c.fsdp > 0 ? FsdpTrainerBuffers(c.model, c.fsdp, rank, c.master)
                                   : MegatronTrainerBuffers(c.model, c.tp, c.dp, rank, c.model.vocab));
    for (Buffer& b : buffers) manifest.source.push_back(std::move(b));
    manifest.topology.source.push_back({rank, "", "", ""});
  }
  int64_t first = 0;
  for (size_t e = 0; e < c.engines.size(); ++e) {
    for (Index rank = 0; rank < c.engines[e]; ++rank) {
      HR_ASSIGN_OR_RETURN(std::vector<Buffer> buffers, EngineBuffers(c.model, c.engines[e], rank, c.vocab_rows));
      for (Buffer& b : buffers) {
        b.rank = first + rank;
        manifest.destination.push_back(std::move(b));
      }
      manifest.topology.destination.push_back({first + rank, "", "", absl::StrCat("engine", e)});
    }
    first += c.engines[e];
  }
  return manifest;
}

double ThreadCpuSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double Median(std::vector<double> samples) {
  std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
  return samples[samples.size() / 2];
}

absl::StatusOr<Json> Measured(const Case& c, int repetitions) {
  std::vector<double> expand, build, prove;
  PlanFigures figures;
  Index buffers = 0;
  for (int i = 0; i < repetitions; ++i) {
    const double begin = ThreadCpuSeconds();
    HR_ASSIGN_OR_RETURN(const Manifest manifest, ManifestOf(c));
    const double expanded = ThreadCpuSeconds();
    HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest));
    const double built = ThreadCpuSeconds();
    HR_RETURN_IF_ERROR(ProveCoverage(manifest, plan));
    prove.push_back(ThreadCpuSeconds() - built);
    build.push_back(built - expanded);
    expand.push_back(expanded - begin);
    figures = Measure(manifest, plan);
    buffers = static_cast<Index>(manifest.source.size() + manifest.destination.size());
  }
  return Json{{"case", c.name},
              {"tensors", figures.tensors},
              {"buffers", buffers},
              {"copies", figures.copies},
              {"needed_bytes", figures.needed_bytes},
              {"expand_seconds", Median(expand)},
              {"plan_seconds", Median(build)},
              {"of_it_proof_seconds", Median(prove)}};
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  int repetitions = 5;
  CLI::App app("The CPU-seconds of planning.");
  app.add_option("--repetitions", repetitions, "of each case; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  auto cases = headrace::bench::Json::array();
  for (const auto& c : headrace::bench::Cases()) {
    auto measured = headrace::bench::Measured(c, repetitions);
    if (!measured.ok()) {
      std::cerr << "plan_bench: " << c.name << ": " << measured.status().message() << "\n";
      return 1;
    }
    cases.push_back(*std::move(measured));
  }
  std::cout << headrace::bench::Json{{"cases", std::move(cases)}}.dump(2) << "\n";
}
