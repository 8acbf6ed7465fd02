#include "absl/strings/str_cat.h"
#include "tests/simulation/checks.h"

namespace headrace::simulation {

void CheckRequestStep(Job& job, int engine, const Version& version) {
  ++job.counters.request_steps;
  for (const auto& seat : job.engines[engine].workers) {
    const std::string difference = seat->live->Difference(job.Wanted(*seat, version));
    if (difference.empty()) continue;
    job.world.Violate("mixed", absl::StrCat(NameOf(seat->key), " computes in a request of generation ",
                                            version.generation, " of \"", version.incarnation, "\" with ", difference));
  }
}

}  // namespace headrace::simulation
