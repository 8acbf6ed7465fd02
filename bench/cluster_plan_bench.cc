// How long plans of clusters take, and what they move: one line of JSON for each.
//
//   cluster_plan_bench LAYOUT...                         a published layout with its own model (layout_json.h)
//   cluster_plan_bench --layout FILE                     a layout in a file
//   cluster_plan_bench --policy hybrid --no-proof ...    before the layouts that it is for
//   cluster_plan_bench --growth                          one model on 8 to 8192 ranks a side; on 64, models of 400 to
//                                                        250,000 tensors
//
// Seconds are those of the processor that one run takes (there is one thread), so that other processes do not count;
// rank plans are the longest of the first, middle and last rank.

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/stopwatch.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/cluster_figures.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cluster/cluster_proof.h"
#include "planner/cluster/cluster_traffic.h"
#include "planner/cluster/layout_json.h"
#include "planner/cluster/rank_plan.h"
#include "planner/models/records.h"

namespace headrace {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << status << "\n";
  return 1;
}

int Run(const JobLayout& layout, Policy policy, bool prove) {
  const absl::StatusOr<Model> model = ModelNamed(layout.model);
  if (!model.ok()) return Fail(model.status());
  Stopwatch watch(CLOCK_PROCESS_CPUTIME_ID);
  const absl::StatusOr<Cluster> cluster = BuildCluster(*model, layout);
  if (!cluster.ok()) return Fail(cluster.status());
  const double cluster_seconds = watch.Lap();
  const absl::StatusOr<ClusterPlan> plan = PlanCluster(*cluster, policy);
  if (!plan.ok()) return Fail(plan.status());
  const double plan_seconds = watch.Lap();
  double receiver_seconds = 0, sender_seconds = 0;
  size_t receiver_copies = 0, sender_parts = 0;
  for (int32_t r : {0, cluster->destination.ranks / 2, cluster->destination.ranks - 1}) {
    watch.Lap();
    receiver_copies = std::max(receiver_copies, ReceiverPlan(*plan, r)->copies.size());
    receiver_seconds = std::max(receiver_seconds, watch.Lap());
  }
  for (int32_t r : {0, cluster->source.ranks / 2, cluster->source.ranks - 1}) {
    watch.Lap();
    sender_parts = std::max(sender_parts, SenderPlan(*plan, r)->copies.size());
    sender_seconds = std::max(sender_seconds, watch.Lap());
  }
  watch.Lap();
  const ClusterFigures f = MeasureCluster(*plan);
  const double figures_seconds = watch.Lap();
  const std::string digest = absl::BytesToHexString(ClusterDigest(*plan));
  const double digest_seconds = watch.Lap();
  size_t hops = 0, flows = 0;
  {
    const Traffic traffic = PlanTraffic(*plan);
    flows = traffic.flows.size();
    for (const Flow& flow : traffic.flows) hops += flow.hops.size();
  }
  const double traffic_seconds = watch.Lap();
  double proof_seconds = 0;
  if (prove) {
    if (absl::Status proof = ProveCluster(*cluster, *plan); !proof.ok()) return Fail(proof);
    proof_seconds = watch.Lap();
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::cout << absl::StrCat("{\"layout\": \"", layout.id, "\", \"model\": \"", layout.model, "\", \"policy\": \"",
                            PolicyName(policy), "\", \"ranks\": [", cluster->source.ranks, ", ",
                            cluster->destination.ranks, "], \"tensors\": ", f.tensors, ", \"copies\": ", f.copies);
  std::cout << absl::StrCat(", \"needed_bytes\": ", f.needed_bytes, ", \"wire_bytes\": ", f.wire_bytes,
                            ", \"domain_wire_bytes\": ", f.domain_wire_bytes,
                            ", \"domain_needed_bytes\": ", f.domain_needed_bytes,
                            ", \"sender_max_over_mean\": ", f.sender_max_over_mean,
                            ", \"worst_stage_max_over_mean\": ", f.worst_stage_max_over_mean,
                            ", \"receiver_max_over_mean\": ", f.receiver_max_over_mean,
                            ", \"busiest_receiver_copies\": ", f.busiest_receiver_copies);
  std::cout << absl::StrCat(", \"receiver_copies\": ", receiver_copies, ", \"sender_parts\": ", sender_parts,
                            ", \"aggregates\": ", plan->aggregates().size(), ", \"flows\": ", flows,
                            ", \"hops\": ", hops);
  std::cout << absl::StrCat(", \"cluster_seconds\": ", cluster_seconds, ", \"plan_seconds\": ", plan_seconds,
                            ", \"receiver_seconds\": ", receiver_seconds, ", \"sender_seconds\": ", sender_seconds,
                            ", \"figures_seconds\": ", figures_seconds, ", \"digest_seconds\": ", digest_seconds,
                            ", \"traffic_seconds\": ", traffic_seconds);
  if (prove) std::cout << absl::StrCat(", \"proof_seconds\": ", proof_seconds);
  std::cout << absl::StrCat(", \"peak_bytes\": ", int64_t{usage.ru_maxrss} * 1024, ", \"digest\": \"", digest, "\"}\n");
  return 0;
}

// A layout whose engine has TP 8, on as many ranks as the trainer.
std::string LayoutText(absl::string_view model, int ranks, absl::string_view train) {
  return absl::StrCat(R"({"id": "growth", "model": ")", model, R"(", "gpu": "H100", "train": {"gpus": )", ranks, ", ",
                      train, R"(}, "gen": {"gpus": )", ranks, R"(, "tp": 8}})");
}

int Growth(Policy policy, bool prove) {
  std::vector<std::string> layouts;
  for (int ranks : {8, 32, 128, 512, 2048, 8192}) {
    layouts.push_back(LayoutText("qwen3-30b-a3b", ranks, R"("tp": 4, "ep": 8)"));
  }
  for (absl::string_view model : {"qwen3-4b", "qwen3-30b-a3b", "deepseek-v3-bf16", "kimi-k2-bf16", "kimi-k3-bf16"}) {
    layouts.push_back(LayoutText(model, 64, R"("tp": 2)"));
  }
  for (const std::string& text : layouts) {
    const absl::StatusOr<JobLayout> layout = ParseLayout(text);
    if (!layout.ok()) return Fail(layout.status());
    if (const int code = Run(*layout, policy, prove); code != 0) return code;
  }
  return 0;
}

absl::StatusOr<JobLayout> LayoutInFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return ParseLayout(text.str());
}

int Main(int argc, char** argv) {
  Policy policy = Policy::kAuto;
  bool prove = true;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--no-proof") {
      prove = false;
    } else if (argument == "--policy" && i + 1 < argc) {
      const absl::StatusOr<Policy> parsed = ParsePolicy(argv[++i]);
      if (!parsed.ok()) return Fail(parsed.status());
      policy = *parsed;
    } else if (argument == "--growth") {
      if (const int code = Growth(policy, prove); code != 0) return code;
    } else {
      const absl::StatusOr<JobLayout> layout =
          argument == "--layout" && i + 1 < argc ? LayoutInFile(argv[++i]) : LayoutNamed(argument);
      if (!layout.ok()) return Fail(layout.status());
      if (const int code = Run(*layout, policy, prove); code != 0) return code;
    }
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::Main(argc, argv); }
