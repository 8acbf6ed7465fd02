#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/checks.h"

namespace headrace::simulation {

void ObserveServed(Job& job, int engine, const Version& version) {
  Served& last = job.served[{engine, version.incarnation}];
  // Nobody knows any more what an engine served all of whose processes are new, and the coordinator too.
  std::vector<uint64_t> lives;
  bool is_new =
      last.lives.size() == job.engines[engine].workers.size() && last.coordinators != job.counters.coordinators;
  for (const auto& seat : job.engines[engine].workers) {
    is_new = is_new && seat->life != last.lives[lives.size()];
    lives.push_back(seat->life);
  }
  if (version.generation < last.generation && !is_new)
    job.world.Violate("monotonic", absl::StrCat("engine ", engine, " serves generation ", version.generation, " of \"",
                                                version.incarnation, "\" after generation ", last.generation));
  last = {version.generation, job.counters.coordinators, std::move(lives)};
}

}  // namespace headrace::simulation
