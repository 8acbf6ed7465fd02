// What the simulator says of the refits that others have published. Times of two kinds of numbers, and nothing is
// measured here: their algorithms, fitted to half of their rows and checked on the other half, and Headrace's plan
// beside the lower bound, at line rates. Prints one JSON document; bench/README.md lists the fields.
//
// The rule by which rows are halved: the rows of one method in the order of their ids; the first, third, fifth, ... are
// fitted, the others are checked.

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "planner/cluster/build_cluster.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/cluster/cluster_traffic.h"
#include "planner/cluster/layout_json.h"
#include "planner/cost/algorithms.h"
#include "planner/cost/bounds.h"
#include "planner/cost/fit.h"
#include "planner/cost/gpu_machine.h"
#include "planner/cost/simulate.h"
#include "planner/models/hardware.h"
#include "planner/models/records.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

using Json = nlohmann::ordered_json;

enum class Method { kBroadcast, kM2n, kPython, kXfer, kM2nBenchmark, kUnknown };

std::string MethodName(Method method) {
  switch (method) {
    case Method::kBroadcast:
      return "gather and broadcast";
    case Method::kM2n:
      return "m2n ring for FFN projections, broadcast for the rest";
    case Method::kPython:
      return "stripes and all-gathers for FFN projections, broadcast for the rest";
    case Method::kXfer:
      return "stripes and all-gathers for everything";
    case Method::kM2nBenchmark:
      return "m2n's own benchmark";
    case Method::kUnknown:
      break;
  }
  return "not modelled";
}

Method MethodOf(const std::string& method) {
  if (method == "gather-and-broadcast" || method == "NCCL broadcast") return Method::kBroadcast;
  if (absl::StrContains(method, "Python fallback")) return Method::kPython;
  if (absl::StrContains(method, "NCCL M2N Reshard")) return Method::kM2n;
  if (absl::StrContains(method, "nccl xfer")) return Method::kXfer;
  if (absl::StartsWith(method, "M2N")) return Method::kM2nBenchmark;
  return Method::kUnknown;
}

// Rounds, one after the other: seconds at line rates, and what each costs besides: tensors of the busiest rank, or in
// m2n's benchmark, whose experts are stacked beforehand, operations.
struct Cost {
  double wire_seconds = 0;
  double operations = 0;
};

struct Row {
  std::string id;
  std::string refused;  // why there is no simulation
  std::optional<JobLayout> layout;
  Method method = Method::kUnknown;
  bool simulated = false;
  bool fitted = false;  // else checked
  Cost bulk;            // by point-to-point transfers
  Cost broadcast;       // by gather and broadcast
  double bulk_share = 0;
  std::optional<LowerBounds> bounds;
  std::optional<Simulation> headrace;  // at line rates
};

absl::StatusOr<Cost> CostOf(const absl::StatusOr<std::vector<Round>>& rounds, const CostModel& machine,
                            const SimulateOptions& options, bool stacked = false) {
  HR_RETURN_IF_ERROR(rounds.status());
  Cost cost;
  for (const Round& round : *rounds) {
    HR_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(round.traffic, machine, options));
    cost.wire_seconds += simulation.transfer_seconds;
    cost.operations += static_cast<double>(stacked ? round.operations : round.rank_tensors);
  }
  return cost;
}

absl::Status Measure(const SimulateOptions& options, Row* row) {
  const JobLayout& layout = *row->layout;
  HR_ASSIGN_OR_RETURN(const Model model, ModelNamed(layout.model));
  HR_ASSIGN_OR_RETURN(const Hardware hardware, HardwareNamed(layout.gpu));
  HR_ASSIGN_OR_RETURN(const Cluster cluster, BuildCluster(model, layout));
  const CostModel machine = GpuCostModel(hardware);
  HR_ASSIGN_OR_RETURN(row->bounds, FindLowerBounds(cluster, machine));
  HR_ASSIGN_OR_RETURN(const Index bulk, PartBytes(cluster, TensorPart::kBulk));
  HR_ASSIGN_OR_RETURN(const Index all, PartBytes(cluster, TensorPart::kAll));
  row->bulk_share = static_cast<double>(bulk) / static_cast<double>(all);
  HR_ASSIGN_OR_RETURN(const ClusterPlan plan, PlanCluster(cluster, Policy::kAuto));
  HR_ASSIGN_OR_RETURN(row->headrace, Simulate(PlanTraffic(plan), machine, options));
  switch (row->method) {
    case Method::kBroadcast: {
      HR_ASSIGN_OR_RETURN(row->broadcast, CostOf(GatherBroadcast(cluster, TensorPart::kAll), machine, options));
      break;
    }
    case Method::kM2n:
    case Method::kPython: {
      const ReshardWay way = row->method == Method::kM2n ? ReshardWay::kRing : ReshardWay::kStriped;
      HR_ASSIGN_OR_RETURN(row->bulk,
                          CostOf(Reshard(cluster, {.way = way, .part = TensorPart::kBulk}), machine, options));
      HR_ASSIGN_OR_RETURN(row->broadcast, CostOf(GatherBroadcast(cluster, TensorPart::kMisc), machine, options));
      break;
    }
    case Method::kXfer: {
      HR_ASSIGN_OR_RETURN(row->bulk, CostOf(Reshard(cluster, {.way = ReshardWay::kStriped}), machine, options));
      break;
    }
    case Method::kM2nBenchmark: {
      // All stages at a time. That kinds of tensors are timed one after the other is left out.
      const bool ring = absl::StrContains(layout.method, "ring");
      HR_ASSIGN_OR_RETURN(row->bulk, CostOf(Reshard(cluster, {.way = ring ? ReshardWay::kRing : ReshardWay::kDirect,
                                                              .node_aware = ring,
                                                              .streams = cluster.source.ranks}),
                                            machine, options, true));
      break;
    }
    case Method::kUnknown:
      return absl::OkStatus();
  }
  row->simulated = layout.seconds_min.has_value();
  return absl::OkStatus();
}

std::vector<Row> Rows(const std::vector<std::string>& ids, const SimulateOptions& options) {
  std::vector<Row> rows;
  for (const std::string& id : ids) {
    Row row;
    row.id = id;
    absl::StatusOr<JobLayout> layout = LayoutNamed(id);
    if (!layout.ok()) {
      row.refused = std::string(layout.status().message());
    } else {
      row.layout = *std::move(layout);
      row.method = absl::StartsWith(id, "assumed") ? Method::kUnknown : MethodOf(row.layout->method);
      if (const absl::Status status = Measure(options, &row); !status.ok()) row.refused = std::string(status.message());
      std::cerr << id << " " << row.bulk.wire_seconds << " + " << row.broadcast.wire_seconds << "\n";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Why a simulated row should not be relied on; empty: nothing is known against it.
std::string Doubt(const Row& row) {
  std::string doubt;
  const auto add = [&doubt](absl::string_view reason) { absl::StrAppend(&doubt, doubt.empty() ? "" : "; ", reason); };
  if (row.method == Method::kXfer) add("what that branch did is not published: taken to be the later fallback");
  if (absl::StrContains(row.layout->wire, "FP8")) add("what quantized tensors and their scales cost is not modelled");
  if (!row.layout->note.empty()) add("the layout was completed, see note");
  return doubt;
}

double Published(const Row& row) { return (*row.layout->seconds_min + *row.layout->seconds_max) / 2; }

// The broadcast of a row that has both paths costs what broadcasts alone were found to cost.
double Predict(const std::map<Method, Fit>& fits, const Row& row) {
  double seconds = 0;
  if (row.broadcast.wire_seconds > 0) {
    seconds += FittedSeconds(fits.at(Method::kBroadcast), row.broadcast.wire_seconds, row.broadcast.operations);
  }
  if (row.method != Method::kBroadcast) {
    seconds += FittedSeconds(fits.at(row.method), row.bulk.wire_seconds, row.bulk.operations);
  }
  return seconds;
}

std::map<Method, Fit> FitRows(std::vector<Row>* rows) {
  std::map<Method, int> count;
  for (Row& row : *rows) {
    if (row.simulated) row.fitted = count[row.method]++ % 2 == 0;
  }
  std::map<Method, Fit> fits;
  for (Method method : {Method::kBroadcast, Method::kM2n, Method::kPython, Method::kXfer, Method::kM2nBenchmark}) {
    std::vector<FitSample> samples;
    for (const Row& row : *rows) {
      if (!row.simulated || row.method != method || !row.fitted) continue;
      if (method == Method::kBroadcast) {
        samples.push_back({row.broadcast.wire_seconds, row.broadcast.operations, Published(row)});
      } else {
        double seconds = Published(row);
        if (row.broadcast.wire_seconds > 0) {
          seconds -= FittedSeconds(fits.at(Method::kBroadcast), row.broadcast.wire_seconds, row.broadcast.operations);
        }
        if (seconds > 0) samples.push_back({row.bulk.wire_seconds, row.bulk.operations, seconds});
      }
    }
    fits[method] = FitSamples(samples);
  }
  return fits;
}

Json BoundJson(const LowerBounds& bounds) {
  return Json{{"seconds", bounds.seconds},
              {"leaving_seconds", bounds.leaving.seconds},
              {"leaving", bounds.leaving.of},
              {"leaving_directly_seconds", bounds.leaving_directly.seconds},
              {"entering_seconds", bounds.entering.seconds},
              {"entering", bounds.entering.of},
              {"copying_seconds", bounds.copying.seconds},
              {"distinct_bytes", bounds.distinct_bytes},
              {"needed_bytes", bounds.needed_bytes}};
}

Json RowJson(const Row& row, const std::map<Method, Fit>& fits) {
  Json json{{"id", row.id}};
  if (row.layout) {
    const JobLayout& layout = *row.layout;
    json["model"] = layout.model;
    json["gpu"] = layout.gpu;
    json["gpus"] = {layout.source.ranks, layout.destination.ranks};
    json["method"] = layout.method;
    json["modelled_as"] = MethodName(row.method);
    json["published_seconds"] = {layout.seconds_min ? Json(*layout.seconds_min) : Json(),
                                 layout.seconds_max ? Json(*layout.seconds_max) : Json()};
    if (layout.bulk_fraction) json["published_bulk_fraction"] = *layout.bulk_fraction;
    if (row.bulk_share > 0) json["bulk_fraction"] = row.bulk_share;
    if (!layout.note.empty()) json["note"] = layout.note;
  }
  if (row.simulated) {
    const double seconds = Predict(fits, row);
    json["line_rate_seconds"] = row.bulk.wire_seconds + row.broadcast.wire_seconds;
    json["operations"] = row.bulk.operations + row.broadcast.operations;
    json["simulated_seconds"] = seconds;
    json["error"] = seconds / Published(row) - 1;
    json["used"] = row.fitted ? "fitted" : "checked";
    if (const std::string doubt = Doubt(row); !doubt.empty()) json["unsure"] = doubt;
  } else {
    json["not_simulated"] = !row.refused.empty() ? row.refused
                            : row.method == Method::kUnknown
                                ? "the method is not one of the modelled ones, or the layout is assumed"
                                : "no time was published";
  }
  if (row.bounds) json["bound"] = BoundJson(*row.bounds);
  if (row.headrace) {
    Json& headrace = json["headrace"];
    headrace["line_rate_seconds"] = row.headrace->transfer_seconds;
    headrace["over_bound"] = row.headrace->transfer_seconds / row.bounds->seconds;
    for (size_t p = 0; p < kPhases; ++p) {
      headrace["by_phase"][std::string(PhaseName(static_cast<Phase>(p)))] = row.headrace->by_phase[p];
    }
    headrace["chunk_bytes"] = row.headrace->chunk_bytes;
    headrace["chunks"] = row.headrace->chunks;
    headrace["messages"] = row.headrace->messages;
  }
  return json;
}

Json ErrorsJson(const std::vector<Row>& rows, const std::map<Method, Fit>& fits) {
  Json methods = Json::array();
  for (const auto& [method, fit] : fits) {
    Json json{{"method", MethodName(method)},
              {"efficiency", 1 / fit.slowdown},
              {"operation_microseconds", fit.operation_seconds * 1e6}};
    for (bool fitted : {true, false}) {
      std::vector<double> errors;
      for (const Row& row : rows) {
        if (!row.simulated || row.method != method || row.fitted != fitted) continue;
        errors.push_back(std::abs(Predict(fits, row) / Published(row) - 1));
      }
      std::sort(errors.begin(), errors.end());
      Json& part = json[fitted ? "fitted" : "checked"];
      part["rows"] = errors.size();
      if (errors.empty()) continue;
      part["median_error"] = errors[errors.size() / 2];
      part["worst_error"] = errors.back();
    }
    methods.push_back(json);
  }
  return methods;
}

int Main(int argc, char** argv) {
  CLI::App app{"Published refits, simulated"};
  std::vector<std::string> ids;
  SimulateOptions options;
  app.add_option("--id", ids, "Only these layouts");
  app.add_option("--max-chunks", options.max_chunks, "Of one simulation");
  CLI11_PARSE(app, argc, argv);
  if (ids.empty()) ids = LayoutIds();
  std::sort(ids.begin(), ids.end());
  std::vector<Row> rows = Rows(ids, options);
  const std::map<Method, Fit> fits = FitRows(&rows);
  Json document{{"note", "simulated, not measured; published_seconds are other people's measurements"},
                {"methods", ErrorsJson(rows, fits)},
                {"rows", Json::array()}};
  for (const Row& row : rows) document["rows"].push_back(RowJson(row, fits));
  std::cout << document.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) { return headrace::bench::Main(argc, argv); }
