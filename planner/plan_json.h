#ifndef HEADRACE_PLANNER_PLAN_JSON_H_
#define HEADRACE_PLANNER_PLAN_JSON_H_

// What programs are told about a plan: the figures of Measure and the digest, as the command and the bindings print
// them.

#include <nlohmann/json.hpp>

#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

// {"tensors", "copies", "streams", "needed_bytes", "wire_bytes", "reshard_bytes", "broadcast_bytes", "host_wire_bytes",
//  "distinct_host_bytes", "direct_bytes", "loader_bytes", "zero_bytes", "busiest_sender_bytes", "sender_max_over_mean",
//  "digest": hex}
nlohmann::ordered_json FiguresToJson(const Manifest& manifest, const Plan& plan);

// One entry per stream: {"source": rank, "chain": [ranks], "parts": count, "bytes", "transfer"}.
nlohmann::ordered_json StreamsToJson(const Plan& plan);

// One entry per tensor: {"tensor", "transfer", "install", "reason"}.
nlohmann::ordered_json DecisionsToJson(const Manifest& manifest, const Plan& plan);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_PLAN_JSON_H_
