#include "cli/plan_command.h"

#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report.h"
#include "planner/digest.h"
#include "planner/manifest_json.h"
#include "planner/plan.h"
#include "planner/plan_json.h"
#include "planner/status.h"

namespace headrace {
namespace {

absl::Status PlanFile(const PlanCommand& command) {
  PlanOptions options;
  HR_ASSIGN_OR_RETURN(options.policy, ParsePolicy(command.policy));
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(command.file));
  HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  std::optional<ProgressBar> progress(std::in_place, "plan", !command.json);
  progress->Update(0, "planning and proving");
  const auto begin = std::chrono::steady_clock::now();
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest, options));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  progress.reset();
  if (command.json) {
    nlohmann::ordered_json document = {{"outcome", "planned"}, {"policy", PolicyName(options.policy)}};
    document.update(FiguresToJson(manifest, plan));
    document["stream_list"] = StreamsToJson(plan);
    document["decisions"] = DecisionsToJson(manifest, plan);
    document["plan_seconds"] = seconds;
    PrintJson(document);
    return absl::OkStatus();
  }
  const PlanFigures f = Measure(manifest, plan);
  std::vector<std::vector<std::string>> edges = {{"from", "to", "by", "copies", "bytes"}};
  for (const Edge& e : plan.edges) {
    Index bytes = 0;
    for (size_t i = e.first; i < e.first + e.count; ++i) bytes += plan.copies[i].bytes();
    edges.push_back({absl::StrCat("source ", e.source_rank), absl::StrCat("destination ", e.destination_rank),
                     e.stream < 0 ? "itself" : absl::StrCat("stream ", e.stream), absl::StrCat(e.count),
                     HumanBytes(bytes)});
  }
  std::vector<std::vector<std::string>> streams = {{"stream", "from", "through destinations", "parts", "bytes"}};
  for (size_t s = 0; s < plan.streams.size(); ++s) {
    const Stream& stream = plan.streams[s];
    streams.push_back({absl::StrCat(s), absl::StrCat("source ", stream.source_rank), absl::StrJoin(stream.chain, " "),
                       absl::StrCat(stream.parts.size()), HumanBytes(stream.bytes())});
  }
  // Tensors with the same decision are one line.
  std::map<std::string, size_t> decided;
  for (const Decision& d : plan.decisions) {
    ++decided[absl::StrCat(TransferName(d.transfer), ", ", InstallName(d.install), ": ", d.reason)];
  }
  std::vector<std::vector<std::string>> decisions = {{"tensors", "transfer, install: reason"}};
  for (const auto& [decision, count] : decided) decisions.push_back({absl::StrCat(count), decision});
  std::cout << "The plan is proven: every destination byte is written exactly once, by the right element.\n\n"
            << Table({{"tensors", absl::StrCat(f.tensors)},
                      {"copies", absl::StrCat(f.copies)},
                      {"policy", std::string(PolicyName(options.policy))},
                      {"streams", absl::StrCat(f.streams)},
                      {"needed", HumanBytes(f.needed_bytes)},
                      {"on the wire", HumanBytes(f.wire_bytes)},
                      {"transfer", absl::StrCat(HumanBytes(f.reshard_bytes), " reshard, ",
                                                HumanBytes(f.broadcast_bytes), " broadcast")},
                      {"between hosts", absl::StrCat(HumanBytes(f.host_wire_bytes), " for ",
                                                     HumanBytes(f.distinct_host_bytes), " distinct")},
                      {"install",
                       absl::StrCat(HumanBytes(f.direct_bytes), " direct, ", HumanBytes(f.loader_bytes), " loader")},
                      {"zero fills", HumanBytes(f.zero_bytes)},
                      {"busiest sender", absl::StrFormat("%.3f x mean", f.sender_max_over_mean)},
                      {"planned in", HumanSeconds(seconds)},
                      {"digest", absl::BytesToHexString(PlanDigest(manifest, plan))}});
  if (!plan.decisions.empty()) std::cout << "\n" << Table(decisions);
  if (!plan.streams.empty()) std::cout << "\n" << Table(streams);
  if (!plan.edges.empty()) std::cout << "\n" << Table(edges);
  return absl::OkStatus();
}

}  // namespace

int Run(const PlanCommand& command) {
  absl::Status status = PlanFile(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

}  // namespace headrace
