#include "bench/refit_job.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using To = RefitProcesses::To;

// When the last one of some answers had come to each of its steps, from `begin` on.
Json LastAt(const std::vector<Json>& answers, size_t first, size_t end, double begin) {
  std::vector<double> last(3, 0);
  for (size_t i = first; i < end; ++i) {
    for (size_t k = 0; k < 3; ++k) last[k] = std::max(last[k], answers[i]["at"][k].get<double>() - begin);
  }
  return last;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RefitJob>> RefitJob::Start(const Manifest& manifest, const Plan& plan,
                                                          const RefitOptions& options) {
  HR_ASSIGN_OR_RETURN(RefitProcesses processes, RefitProcesses::Fork(manifest, plan, options));
  CoordinatorOptions coordinator;
  coordinator.job = "refit_bench";
  coordinator.incarnation = "refit_bench";
  coordinator.publishers = static_cast<int>(manifest.topology.source.size());
  coordinator.workers.clear();
  std::vector<std::string> engines;
  for (const Placement& p : manifest.topology.destination) {
    if (engines.empty() || engines.back() != p.engine) {
      engines.push_back(p.engine);
      coordinator.workers.push_back(0);
    }
    ++coordinator.workers.back();
  }
  coordinator.timeouts = PatientTimeouts();
  ControlServerOptions server;
  server.token = absl::StrCat("refit_bench-", getpid());  // guards nothing: the weights are noise
  std::unique_ptr<RefitJob> job(new RefitJob(std::move(processes), manifest.topology.source.size()));
  HR_ASSIGN_OR_RETURN(job->coordinator_, CoordinatorService::Start(coordinator, server));
  HR_RETURN_IF_ERROR(
      job->processes_
          .Order(To::kAll, {{"do", "join"}, {"coordinator", job->coordinator_->address()}, {"token", server.token}})
          .status());
  return job;
}

absl::StatusOr<Json> RefitJob::Generation(uint64_t generation) {
  HR_RETURN_IF_ERROR(processes_.Order(To::kPublishers, {{"do", "fill"}, {"generation", generation}}).status());
  const double begin = MonotonicSeconds(), cpu = ProcessCpuSeconds();
  HR_ASSIGN_OR_RETURN(const auto answers, processes_.Order(To::kAll, {{"do", "refit"}, {"generation", generation}}));
  const double seconds = MonotonicSeconds() - begin;
  double publishing = 0, receiving = 0;
  for (size_t i = 0; i < answers.size(); ++i) (i < publishers_ ? publishing : receiving) += answers[i].value("cpu", 0.);
  return Json{{"seconds", seconds},
              {"publishers_cpu", publishing},
              {"receivers_cpu", receiving},
              {"coordinator_cpu", ProcessCpuSeconds() - cpu},
              {"publishers_at", LastAt(answers, 0, publishers_, begin)},
              {"receivers_at", LastAt(answers, publishers_, answers.size(), begin)}};
}

absl::Status RefitJob::Chill() { return processes_.Order(To::kAll, {{"do", "chill"}}).status(); }

absl::Status RefitJob::Check(uint64_t generation) {
  HR_ASSIGN_OR_RETURN(const auto checks,
                      processes_.Order(To::kReceivers, {{"do", "check"}, {"generation", generation}}));
  for (const Json& check : checks) {
    if (check["wrong"] != 0) {
      return Error(ErrorCode::kInternal,
                   absl::StrCat(check["wrong"].dump(), " wrong words in generation ", generation));
    }
  }
  return absl::OkStatus();
}

absl::Status RefitJob::Close() { return processes_.Order(To::kAll, {{"do", "close"}}).status(); }

}  // namespace headrace::bench
