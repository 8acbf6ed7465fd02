#include "tests/simulation/simulation.h"

#include "absl/strings/str_cat.h"
#include "tests/simulation/checks.h"
#include "tests/simulation/faults.h"

namespace headrace::simulation {
namespace {

constexpr int64_t kLookEvery = 500 * kMillisecond;
constexpr int64_t kCloseWithin = 90 * kSecond;

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) {
  SimulationResult result;
  Job job(options);
  ScheduleFaults(&job);
  job.Begin();
  bool done = false, progress = false, last = false;
  uint64_t goal = 0;
  int64_t closing = 0;
  // Looks on until everything was proven.
  std::function<void()> look = [&] {
    const int64_t now = job.world.now();
    CheckFabricMemory(job);
    CheckWaits(job);
    if (now < options.faults_ns) {
      job.world.After(kLookEvery, look);
      return;
    }
    if (goal == 0) {
      job.Heal();
      goal = job.target + 1;
    }
    if (!progress && job.WhoLacks(goal).empty()) {
      progress = true;
      result.healed_ns = now - options.faults_ns;
      closing = now;
      CheckServedBytes(job);
      job.Leave(proto::RECEIVER);
    } else if (!progress && now >= options.faults_ns + options.heal_ns) {
      CheckProgress(job, goal);
    }
    if (progress && !last && job.Left(proto::RECEIVER)) {
      last = true;
      job.Leave(proto::PUBLISHER);
    }
    if (last && job.Left(proto::PUBLISHER)) done = true;
    if (progress && now > closing + kCloseWithin) job.world.Violate("progress", "not everybody could leave");
    job.world.After(kLookEvery, look);
  };
  job.world.After(kLookEvery, look);
  while (!done && job.world.Next()) {
  }
  result.events = job.world.events();
  result.virtual_ns = job.world.now();
  result.mark = job.world.mark();
  job.DestroyAll();
  // Streams whose last words are on their way.
  for (int64_t until = job.world.now() + 2 * options.max_delay_ns + options.max_stall_ns + kSecond;
       job.world.violation().empty() && job.world.now() < until;)
    if (!job.world.Next()) break;
  if (job.world.violation().empty()) CheckLeaks(job);
  result.counters = job.counters;
  if (!job.world.violation().empty()) result.violation = absl::StrCat(job.world.violation(), "\n", Describe(options));
  return result;
}

}  // namespace headrace::simulation
