#include "absl/strings/str_cat.h"
#include "tests/simulation/checks.h"

namespace headrace::simulation {

void CheckCommitted(Job& job, const WorkerSeat& seat, const Version& version) {
  const std::string difference = seat.live->Difference(job.Wanted(seat, version));
  if (difference.empty()) return;
  job.world.Violate("bytes", absl::StrCat(NameOf(seat.key), " committed generation ", version.generation, " of \"",
                                          version.incarnation, "\", but ", difference));
}

void CheckServedBytes(Job& job) {
  for (const auto& engine : job.engines)
    for (const auto& seat : engine.workers)
      if (const auto version = seat->Serving(); seat->up && version) CheckCommitted(job, *seat, *version);
}

}  // namespace headrace::simulation
