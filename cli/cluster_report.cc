#include "cli/cluster_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report.h"
#include "planner/broadcast_policy.h"

namespace headrace {
namespace {

constexpr int64_t kRows = 64, kColumns = 64, kBars = 256;
constexpr int32_t kShownRanks = 12;  // of each side, in the timeline

std::string Times(double ratio) { return absl::StrFormat("%.3f x mean", ratio); }

double CrossRailShare(const ClusterFigures& f) {
  return f.domain_wire_bytes == 0 ? 0
                                  : static_cast<double>(f.cross_rail_bytes) / static_cast<double>(f.domain_wire_bytes);
}

TrafficMatrix MatrixOf(const Cluster& cluster, const Traffic& traffic) {
  const int64_t sources = cluster.source.ranks, destinations = cluster.destination.ranks;
  const int64_t row = GroupSize(sources, kRows), column = GroupSize(destinations, kColumns);
  TrafficMatrix matrix{GroupLabels("rank", sources, row), GroupLabels("rank", destinations, column), {}};
  matrix.bytes.resize(matrix.rows.size() * matrix.columns.size());
  for (const Flow& flow : traffic.flows) {
    for (const Hop& hop : flow.hops) {
      if (hop.after >= 0) continue;
      matrix.bytes[hop.from / row * static_cast<int64_t>(matrix.columns.size()) + (hop.to - sources) / column] +=
          flow.bytes;
    }
  }
  return matrix;
}

Bars SenderBars(const Cluster& cluster, const std::vector<Index>& sent) {
  const int64_t ranks = cluster.source.ranks, group = GroupSize(ranks, kBars);
  Bars bars{"Sent by trainer ranks", GroupLabels("rank", ranks, group), {"to engine ranks"}, {}};
  bars.bytes.resize(bars.labels.size());
  for (int64_t r = 0; r < ranks; ++r) bars.bytes[r / group] += sent[r];
  return bars;
}

// By where the bytes come from.
Bars ReceiverBars(const Cluster& cluster, const Traffic& traffic) {
  const int64_t sources = cluster.source.ranks, ranks = cluster.destination.ranks, group = GroupSize(ranks, kBars);
  Bars bars{"Received by engine ranks",
            GroupLabels("rank", ranks, group),
            {"from trainers", "from other domains", "within the domain"},
            {}};
  bars.bytes.resize(bars.labels.size() * 3);
  for (const Flow& flow : traffic.flows) {
    for (const Hop& hop : flow.hops) {
      const int part = hop.from < sources ? 0 : traffic.domain[hop.from] != traffic.domain[hop.to] ? 1 : 2;
      bars.bytes[(hop.to - sources) / group * 3 + part] += flow.bytes;
    }
  }
  return bars;
}

Timeline TimelineOf(const Cluster& cluster, const Simulation& simulation) {
  Timeline timeline;
  timeline.seconds = simulation.seconds;
  for (size_t port = 0; port < kPorts; ++port) timeline.kinds.emplace_back(PortName(static_cast<Port>(port)));
  int32_t node = -1;
  int kind = -1;
  for (const BusyInterval& busy : simulation.timeline) {
    if (busy.node != node) {
      timeline.lanes.push_back(busy.node < cluster.source.ranks
                                   ? absl::StrCat("trainer ", busy.node)
                                   : absl::StrCat("engine ", busy.node - cluster.source.ranks));
    } else if (static_cast<int>(busy.port) != kind) {
      timeline.lanes.emplace_back();
    }
    node = busy.node;
    kind = static_cast<int>(busy.port);
    timeline.intervals.push_back(
        {static_cast<int>(timeline.lanes.size()) - 1, kind, busy.begin_seconds, busy.end_seconds});
  }
  return timeline;
}

}  // namespace

nlohmann::ordered_json PlannedJobToJson(const PlannedJob& planned) {
  const ClusterFigures& f = planned.figures;
  return {{"model", planned.job.cluster.model},
          {"layout", planned.job.cluster.layout},
          {"policy", PolicyName(planned.plan->policy())},
          {"source_ranks", planned.job.cluster.source.ranks},
          {"destination_ranks", planned.job.cluster.destination.ranks},
          {"tensors", f.tensors},
          {"copies", f.copies},
          {"needed_bytes", f.needed_bytes},
          {"wire_bytes", f.wire_bytes},
          {"domain_needed_bytes", f.domain_needed_bytes},
          {"domain_wire_bytes", f.domain_wire_bytes},
          {"cross_rail_bytes", f.cross_rail_bytes},
          {"cross_rail_share", CrossRailShare(f)},
          {"busiest_sender_bytes", f.busiest_sender_bytes},
          {"sender_max_over_mean", f.sender_max_over_mean},
          {"stage_sender_max_over_mean", f.worst_stage_max_over_mean},
          {"receiver_max_over_mean", f.receiver_max_over_mean},
          {"busiest_receiver_copies", f.busiest_receiver_copies},
          {"operations_max", f.operations_max},
          {"groups_max", planned.groups_max},
          {"cluster_seconds", planned.cluster_seconds},
          {"plan_seconds", planned.plan_seconds},
          {"proof_seconds", planned.proof_seconds},
          {"receiver_seconds", planned.receiver_seconds},
          {"receiver_copies", planned.receiver_copies},
          {"manifest_bytes", planned.manifest_bytes},
          {"peak_bytes", planned.peak_bytes},
          {"digest", absl::BytesToHexString(ClusterDigest(*planned.plan))},
          {"notes", planned.job.notes}};
}

std::vector<std::vector<std::string>> PlannedJobTable(const PlannedJob& planned) {
  const ClusterFigures& f = planned.figures;
  return {
      {"model", planned.job.cluster.model},
      {"layout", planned.job.cluster.layout},
      {"trainer", TrainerText(planned.job.layout)},
      {"engines", EngineText(planned.job.layout)},
      {"policy", std::string(PolicyName(planned.plan->policy()))},
      {"tensors", absl::StrCat(f.tensors)},
      {"copies", absl::StrCat(f.copies)},
      {"needed", HumanBytes(f.needed_bytes)},
      {"on the wire", HumanBytes(f.wire_bytes)},
      {"into domains",
       absl::StrCat(HumanBytes(f.domain_wire_bytes), " for ", HumanBytes(f.domain_needed_bytes), " distinct")},
      {"across rails", absl::StrFormat("%s, %.1f %% of it", HumanBytes(f.cross_rail_bytes), 100 * CrossRailShare(f))},
      {"busiest sender", absl::StrCat(HumanBytes(f.busiest_sender_bytes), ", ", Times(f.sender_max_over_mean), ", ",
                                      Times(f.worst_stage_max_over_mean), " of its stage at most")},
      {"busiest receiver", Times(f.receiver_max_over_mean)},
      {"most operations", absl::StrCat(f.operations_max, " of one rank, over NCCL in ", planned.groups_max, " groups")},
      {"planned in", absl::StrCat(HumanSeconds(planned.plan_seconds), ", proven in ",
                                  HumanSeconds(planned.proof_seconds), ", ", HumanBytes(planned.peak_bytes))},
      {"one receiver's part",
       absl::StrCat(planned.receiver_copies, " copies in ", HumanSeconds(planned.receiver_seconds),
                    "; its layout travels as ", HumanBytes(planned.manifest_bytes))},
      {"digest", absl::BytesToHexString(ClusterDigest(*planned.plan))}};
}

std::vector<std::vector<std::string>> TransferTable(const ClusterPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"unit", "instances", "tensors of one", "bytes of one", "transfer"}};
  for (const ClusterUnit& unit : plan.cluster().units) {
    std::vector<std::string> broadcast;
    Index bytes = 0;
    for (const TensorSpec& tensor : unit.manifest.tensors) {
      Index elements = 1;
      for (const Index extent : tensor.shape) elements *= extent;
      bytes += DtypeBytes(elements, tensor.dtype);
      const std::string kind = plan.policy() == Policy::kHybrid ? BroadcastKind(tensor.name) : "";
      if (!kind.empty()) broadcast.push_back(kind);
    }
    const size_t resharded = unit.manifest.tensors.size() - broadcast.size();
    std::string transfer;
    if (resharded > 0) absl::StrAppend(&transfer, resharded, " reshard: each byte to who wants it");
    if (!broadcast.empty()) {
      absl::StrAppend(&transfer, transfer.empty() ? "" : "; ", broadcast.size(),
                      " broadcast by the policy: ", absl::StrJoin(broadcast, ", "));
    }
    rows.push_back({unit.unit.name, absl::StrCat(unit.instances.size()), absl::StrCat(unit.manifest.tensors.size()),
                    HumanBytes(bytes), transfer});
  }
  return rows;
}

PlanPage PageOf(const PlannedJob& planned, const Traffic& traffic, const Simulation* simulation) {
  PlanPage page;
  page.title = absl::StrCat(planned.job.cluster.model, ", ", planned.job.cluster.layout);
  page.notes = planned.job.notes;
  page.figures = PlannedJobTable(planned);
  page.transfers = TransferTable(*planned.plan);
  page.traffic = MatrixOf(planned.job.cluster, traffic);
  page.bars = {SenderBars(planned.job.cluster, planned.plan->sent()), ReceiverBars(planned.job.cluster, traffic)};
  if (simulation != nullptr) {
    page.notes.push_back("Times are simulated by Headrace's time model, not measured.");
    page.timeline = TimelineOf(planned.job.cluster, *simulation);
  }
  return page;
}

std::vector<int32_t> ShownNodes(const Cluster& cluster) {
  std::vector<int32_t> nodes;
  for (const auto& [first, ranks] :
       {std::pair(0, cluster.source.ranks), {cluster.source.ranks, cluster.destination.ranks}}) {
    const int32_t shown = std::min(ranks, kShownRanks);
    for (int32_t i = 0; i < shown; ++i) nodes.push_back(first + static_cast<int32_t>(int64_t{i} * ranks / shown));
  }
  return nodes;
}

}  // namespace headrace
