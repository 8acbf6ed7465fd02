#include "planner/plan_json.h"

#include "absl/strings/escaping.h"
#include "planner/digest.h"

namespace headrace {

nlohmann::ordered_json FiguresToJson(const Manifest& manifest, const Plan& plan) {
  const PlanFigures f = Measure(manifest, plan);
  return {{"tensors", f.tensors},
          {"copies", f.copies},
          {"streams", f.streams},
          {"needed_bytes", f.needed_bytes},
          {"wire_bytes", f.wire_bytes},
          {"reshard_bytes", f.reshard_bytes},
          {"broadcast_bytes", f.broadcast_bytes},
          {"host_wire_bytes", f.host_wire_bytes},
          {"distinct_host_bytes", f.distinct_host_bytes},
          {"direct_bytes", f.direct_bytes},
          {"loader_bytes", f.loader_bytes},
          {"zero_bytes", f.zero_bytes},
          {"busiest_sender_bytes", f.busiest_sender_bytes},
          {"sender_max_over_mean", f.sender_max_over_mean},
          {"digest", absl::BytesToHexString(PlanDigest(manifest, plan))}};
}

nlohmann::ordered_json StreamsToJson(const Plan& plan) {
  auto streams = nlohmann::ordered_json::array();
  for (const Stream& s : plan.streams) {
    streams.push_back({{"source", s.source_rank},
                       {"chain", s.chain},
                       {"parts", s.parts.size()},
                       {"bytes", s.bytes()},
                       {"transfer", TransferName(plan.decisions[s.parts[0].tensor].transfer)}});
  }
  return streams;
}

nlohmann::ordered_json DecisionsToJson(const Manifest& manifest, const Plan& plan) {
  auto decisions = nlohmann::ordered_json::array();
  for (size_t t = 0; t < plan.decisions.size(); ++t) {
    const Decision& d = plan.decisions[t];
    decisions.push_back({{"tensor", manifest.tensors[t].name},
                         {"transfer", TransferName(d.transfer)},
                         {"install", InstallName(d.install)},
                         {"reason", d.reason}});
  }
  return decisions;
}

}  // namespace headrace
