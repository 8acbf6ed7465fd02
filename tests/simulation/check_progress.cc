#include "absl/strings/str_cat.h"
#include "planner/status.h"
#include "tests/simulation/checks.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/member_process.h"

namespace headrace::simulation {
namespace {

// A process may have nothing to do for ever.
bool IsIdle(const std::string& wait) {
  return wait == "a plan to be made" || wait == "a stream to be needed" || wait == "an order to send" ||
         wait == "a trained step";
}

std::string Scene(Job& job) {
  std::string scene;
  if (job.coordinator != nullptr)
    absl::StrAppend(&scene, "; the coordinator (phase ", static_cast<int>(job.coordinator->coordinator().phase()),
                    ", epoch ", job.coordinator->coordinator().epoch(),
                    ") waits for: ", job.coordinator->coordinator().WaitingFor(), " ",
                    job.coordinator->coordinator().status().ToString());
  for (Seat* seat : job.Seats()) {
    absl::StrAppend(&scene, "\n  ", NameOf(seat->key), ": ");
    if (seat->process() == nullptr) {
      absl::StrAppend(&scene, seat->up ? "no session; the last one: " : "down", seat->up ? seat->ended.ToString() : "");
      continue;
    }
    const MemberSession& session = seat->process()->session();
    absl::StrAppend(&scene, "phase ", static_cast<int>(session.phase()), ", epoch ", session.epoch(), ", ",
                    session.status().ToString());
    for (const auto& [ns, what] : seat->process()->Waits())
      if (!IsIdle(what)) absl::StrAppend(&scene, "; for ", ns / kMillisecond, " ms waits for ", what);
  }
  return scene;
}

}  // namespace

void CheckProgress(Job& job, uint64_t goal) {
  const std::string who = job.WhoLacks(goal);
  if (who.empty()) return;
  job.world.Violate("progress", absl::StrCat("since the faults were over, generation ", goal, " of \"",
                                             job.incarnation(), "\" was not committed by ", who, Scene(job)));
}

void CheckWaits(Job& job) {
  const SessionTimeouts& t = job.options.timeouts;
  const int64_t longest = 4 * (t.join_ns + t.plan_ns + t.decision_ns + t.commit_ns + t.rejoin_ns +
                               4 * t.heartbeat_timeout_ns + job.options.max_stall_ns);
  for (Seat* seat : job.Seats()) {
    if (seat->process() == nullptr) continue;
    for (const auto& [ns, what] : seat->process()->Waits())
      if (ns > longest && !IsIdle(what))
        job.world.Violate("progress", absl::StrCat(NameOf(seat->key), " has waited for ", what, " for ",
                                                   ns / kMillisecond, " ms", Scene(job)));
  }
}

void CheckReleased(Job& job, const Seat& seat, int busy_slots) {
  if (busy_slots == 0) return;
  job.world.Violate(
      "leaks", absl::StrCat(NameOf(seat.key), " leaves, and ", busy_slots, " of its slots are leased", Scene(job)));
}

}  // namespace headrace::simulation
