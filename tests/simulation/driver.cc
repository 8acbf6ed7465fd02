#include "tests/simulation/driver.h"

#include "absl/strings/str_cat.h"
#include "tests/simulation/checks.h"
#include "tests/simulation/worker.h"

namespace headrace::simulation {

Driver::Driver(Job* job, int engine)
    : Process(&job->world, absl::StrCat("engine ", engine)), job_(*job), engine_(engine) {}

std::optional<Version> Driver::Serving() const {
  std::optional<Version> version;
  for (const auto& seat : job_.engines[engine_].workers) {
    if (!seat->up) return std::nullopt;
    const std::optional<Version> its = seat->Serving();
    if (job_.options.bug == PlantedBug::kServeAlone) {
      if (its && (!version || version->generation < its->generation)) version = its;
      continue;
    }
    if (!its || (version && !(*its == *version))) return std::nullopt;
    version = its;
  }
  return version;
}

uint64_t Driver::Lives() const {
  uint64_t lives = 0;
  for (const auto& seat : job_.engines[engine_].workers) lives += seat->life + (seat->up ? 0 : 1);
  return lives;
}

Task Driver::Run() {
  while (true) {
    co_await Sleep(world().Draw(kMillisecond, job_.options.request_period_ns));
    const std::optional<Version> version = Serving();
    if (!version || (!pausing_.empty() && job_.options.bug != PlantedBug::kServeAlone)) continue;
    const uint64_t lives = Lives();
    ++job_.counters.requests;
    ObserveServed(job_, engine_, *version);
    busy_ = true;
    for (int64_t steps = world().Draw(1, 4); steps > 0; --steps) {
      CheckRequestStep(job_, engine_, *version);
      co_await Sleep(world().Draw(50 * kMicrosecond, 20 * kMillisecond));
      // With a worker its engine's requests die.
      if (Lives() != lives) break;
    }
    if (Lives() == lives) CheckRequestStep(job_, engine_, *version);
    busy_ = false;
    for (const auto& seat : job_.engines[engine_].workers)
      if (seat->worker != nullptr) seat->worker->Poke();
  }
}

}  // namespace headrace::simulation
