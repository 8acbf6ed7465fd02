#include "planner/plan_json.h"

#include "absl/strings/escaping.h"
#include "planner/digest.h"

namespace headrace {

nlohmann::ordered_json FiguresToJson(const Manifest& manifest, const Plan& plan) {
  const PlanFigures f = Measure(manifest, plan);
  return {{"tensors", f.tensors},
          {"copies", f.copies},
          {"needed_bytes", f.needed_bytes},
          {"wire_bytes", f.wire_bytes},
          {"reshard_bytes", f.reshard_bytes},
          {"broadcast_bytes", f.broadcast_bytes},
          {"direct_bytes", f.direct_bytes},
          {"loader_bytes", f.loader_bytes},
          {"zero_bytes", f.zero_bytes},
          {"sender_max_over_mean", f.sender_max_over_mean},
          {"digest", absl::BytesToHexString(PlanDigest(manifest, plan))}};
}

}  // namespace headrace
