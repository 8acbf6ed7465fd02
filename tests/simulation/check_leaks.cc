#include "absl/strings/str_cat.h"
#include "planner/status.h"
#include "tests/simulation/checks.h"

namespace headrace::simulation {

void CheckLeaks(Job& job) {
  const MemoryUsage left = job.fabric.Usage();
  const auto none = [&](const char* what, int64_t count) {
    if (count != 0) job.world.Violate("leaks", absl::StrCat(count, " ", what, " are left when everybody is gone"));
  };
  none("endpoints", left.endpoints);
  none("regions", left.regions);
  none("region bytes", left.region_bytes);
  none("mappings", left.mappings);
  none("registrations", left.registrations);
  none("pending operations", left.pending);
  none("channels of the fabric", left.channels);
  for (const auto& channel : job.channels) none("control streams", channel.expired() ? 0 : 1);
}

void CountVerdict(const absl::Status& verdict, Counters* counters) {
  counters->unverified += HasCode(verdict, ErrorCode::kVerificationFailed);
  counters->changed += HasCode(verdict, ErrorCode::kGenerationChanged);
  counters->moved += HasCode(verdict, ErrorCode::kDestinationMoved);
  counters->deadlines += HasCode(verdict, ErrorCode::kDeadline);
  counters->peers_lost += HasCode(verdict, ErrorCode::kPeerLost);
}

}  // namespace headrace::simulation
