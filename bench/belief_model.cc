#include "bench/belief_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/cost/plan_traffic.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

// Below this two processes do not hinder each other: medians differ by as much.
constexpr double kNoise = 1.05;

absl::StatusOr<double> Number(const Json& object, const std::string& name) {
  const auto field = object.find(name);
  if (field != object.end() && field->is_number() && field->get<double>() >= 0) return field->get<double>();
  return Error(ErrorCode::kMalformed, absl::StrCat("calibration: no number \"", name, "\"; run calibrate again"));
}

absl::StatusOr<const Json*> List(const Json& object, const std::string& name) {
  const auto field = object.find(name);
  if (field != object.end() && field->is_array() && !field->empty()) return &*field;
  return Error(ErrorCode::kMalformed, absl::StrCat("calibration: no list \"", name, "\"; run calibrate again"));
}

// `suffix` is that of the fields: of one lane alone, or of two at once.
absl::StatusOr<ProcessCosts> ParseCosts(const Json& list, bool mapped, const std::string& suffix) {
  ProcessCosts costs;
  using Field = std::pair<const char*, RunCosts*>;
  std::vector<Field> fields = {{"snapshot", &costs.snapshot}};
  if (mapped) {
    fields.insert(fields.end(), {Field{"commit", &costs.commit}, Field{"direct", &costs.direct},
                                 Field{"direct_shadow", &costs.direct_shadow}});
  } else {
    fields.insert(fields.end(),
                  {Field{"commit", &costs.commit}, Field{"pack", &costs.pack}, Field{"unpack", &costs.unpack}});
  }
  double sender = 0, receiver = 0, receiver_shadow = 0;
  for (const Json& entry : list) {
    HR_ASSIGN_OR_RETURN(const double run, Number(entry, "run_bytes"));
    for (const auto& [name, table] : fields) {
      HR_ASSIGN_OR_RETURN(const double cost, Number(entry, name + suffix));
      table->Add(static_cast<Index>(run), cost);
    }
    if (mapped) continue;
    HR_ASSIGN_OR_RETURN(const double pack, Number(entry, "pack" + suffix));
    HR_ASSIGN_OR_RETURN(const double unpack, Number(entry, "unpack" + suffix));
    HR_ASSIGN_OR_RETURN(const double trainer, Number(entry, "transfer" + suffix + ".trainer"));
    HR_ASSIGN_OR_RETURN(const double worker, Number(entry, "transfer" + suffix + ".worker"));
    HR_ASSIGN_OR_RETURN(const double worker_shadow, Number(entry, "transfer_shadow" + suffix + ".worker"));
    sender += trainer - pack;
    receiver += worker - unpack;
    receiver_shadow += worker_shadow - unpack;
  }
  // The wire does not know of runs: what is left is the same for all of them.
  const double count = static_cast<double>(list.size());
  costs.sender_ns_per_byte = std::max(0.0, sender / count);
  costs.receiver_ns_per_byte = std::max(0.0, receiver / count);
  costs.receiver_ns_per_byte_shadow = std::max(0.0, receiver_shadow / count);
  return costs;
}

// fixed + ranks * rank: the line of least squares through the generations of a few KiB.
absl::Status ParseTiny(const Json& list, TransportCosts* costs) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Json& entry : list) {
    HR_ASSIGN_OR_RETURN(const double trainers, Number(entry, "trainers"));
    HR_ASSIGN_OR_RETURN(const double workers, Number(entry, "workers"));
    HR_ASSIGN_OR_RETURN(const double seconds, Number(entry, "seconds"));
    const double ranks = trainers + workers;
    n += 1;
    x += ranks;
    y += seconds;
    xx += ranks * ranks;
    xy += ranks * seconds;
  }
  const double spread = n * xx - x * x;
  const double slope = spread > 0 ? std::max(0.0, (n * xy - x * y) / spread) : 0;
  costs->rank_ns = std::llround(slope * 1e9);
  costs->fixed_ns = std::llround(std::max(0.0, (y - slope * x) / n) * 1e9);
  return absl::OkStatus();
}

// What messages cost besides their bytes, from the same bytes in chunks of two sizes.
absl::Status ParseMessages(const Json& part, TransportCosts* costs) {
  HR_ASSIGN_OR_RETURN(const double small_bytes, Number(part, "small_chunk_bytes"));
  const auto small = part.find("small_chunks_ns_per_byte");
  if (small == part.end()) return Error(ErrorCode::kMalformed, "calibration: no small_chunks_ns_per_byte");
  HR_ASSIGN_OR_RETURN(const Json* list, List(part, "ns_per_byte"));
  const double more = 1 / small_bytes - 1 / static_cast<double>(costs->chunk_bytes);  // messages a byte
  for (const auto& [side, ns] :
       {std::pair{".trainer", &costs->sender_ns_per_message}, std::pair{".worker", &costs->receiver_ns_per_message}}) {
    HR_ASSIGN_OR_RETURN(const double in_small, Number(*small, absl::StrCat("transfer", side)));
    HR_ASSIGN_OR_RETURN(const double in_large, Number(list->back(), absl::StrCat("transfer", side)));
    *ns = more > 0 ? std::llround(std::max(0.0, in_small - in_large) / more) : 0;
  }
  // What was measured by the byte has those of the large chunks in it.
  const double chunk = static_cast<double>(costs->chunk_bytes);
  for (ProcessCosts* of : {&costs->alone, &costs->crowded}) {
    const double sender = static_cast<double>(costs->sender_ns_per_message) / chunk;
    const double receiver = static_cast<double>(costs->receiver_ns_per_message) / chunk;
    of->sender_ns_per_byte = std::max(0.0, of->sender_ns_per_byte - sender);
    of->receiver_ns_per_byte = std::max(0.0, of->receiver_ns_per_byte - receiver);
    of->receiver_ns_per_byte_shadow = std::max(0.0, of->receiver_ns_per_byte_shadow - receiver);
  }
  return absl::OkStatus();
}

CopyCost CostOf(const RunBytes& runs, const RunCosts& costs) {
  double bytes = 0, ns = 0;
  for (const auto& [run, of_run] : runs) {
    bytes += static_cast<double>(of_run);
    ns += static_cast<double>(of_run) * costs.NsPerByte(run);
  }
  return {.bytes_per_second = ns > 0 ? bytes / ns * 1e9 : 0};
}

}  // namespace

double RunCosts::NsPerByte(Index run_bytes) const {
  const auto above = costs_.lower_bound(run_bytes);
  if (above == costs_.end()) return costs_.rbegin()->second;
  if (above == costs_.begin() || above->first == run_bytes) return above->second;
  const auto below = std::prev(above);
  const auto log = [](Index bytes) { return std::log2(static_cast<double>(bytes)); };
  const double along = (log(run_bytes) - log(below->first)) / (log(above->first) - log(below->first));
  return below->second + along * (above->second - below->second);
}

absl::StatusOr<Calibration> ParseCalibration(const Json& document) {
  Calibration calibration;
  HR_ASSIGN_OR_RETURN(const double cores, Number(document, "cores"));
  calibration.cores = static_cast<Index>(cores);
  for (const char* name : {"host", "ucx"}) {
    const auto part = document.find(name);
    if (part == document.end()) return Error(ErrorCode::kMalformed, absl::StrCat("calibration: no \"", name, "\""));
    TransportCosts costs;
    costs.mapped = std::string(name) == "host";
    HR_ASSIGN_OR_RETURN(const double chunk, Number(*part, "chunk_bytes"));
    costs.chunk_bytes = static_cast<Index>(chunk);
    HR_ASSIGN_OR_RETURN(const Json* list, List(*part, "ns_per_byte"));
    HR_ASSIGN_OR_RETURN(costs.alone, ParseCosts(*list, costs.mapped, ""));
    HR_ASSIGN_OR_RETURN(costs.crowded, ParseCosts(*list, costs.mapped, "_at_once"));
    if (!costs.mapped) HR_RETURN_IF_ERROR(ParseMessages(*part, &costs));
    HR_ASSIGN_OR_RETURN(const Json* tiny, List(*part, "tiny"));
    HR_RETURN_IF_ERROR(ParseTiny(*tiny, &costs));
    if (costs.mapped) {
      HR_ASSIGN_OR_RETURN(const double one, Number(list->back(), "direct"));
      HR_ASSIGN_OR_RETURN(const double two, Number(list->back(), "direct_at_once"));
      if (two > kNoise * one) calibration.memory_bytes_per_second = 2e9 / two;
    }
    calibration.costs[name] = std::move(costs);
  }
  return calibration;
}

RunBytes SnapshotRuns(const Plan& plan, int64_t rank) {
  RunBytes runs;
  std::set<std::tuple<int, Index, Index, Index, std::vector<std::pair<Index, Index>>>> boxes;
  for (const Edge& edge : plan.edges) {
    if (edge.source_rank != rank || edge.stream >= 0) continue;
    for (size_t i = 0; i < edge.count; ++i) {
      const Copy& copy = plan.copies[edge.first + i];
      std::vector<std::pair<Index, Index>> loops;
      for (const CopyLoop& loop : copy.loops) loops.emplace_back(loop.extent, loop.source_stride);
      if (!boxes.emplace(copy.source, copy.source_offset, copy.position, copy.run_bytes, std::move(loops)).second)
        continue;
      runs[copy.run_bytes] += copy.bytes();
    }
  }
  return runs;
}

RunBytes CopiedRuns(const Plan& plan) {
  RunBytes runs;
  for (const Edge& edge : plan.edges) {
    if (edge.stream >= 0) continue;
    for (size_t i = 0; i < edge.count; ++i) {
      const Copy& copy = plan.copies[edge.first + i];
      runs[copy.run_bytes] += copy.bytes();
    }
  }
  return runs;
}

absl::StatusOr<CostModel> CostModelOf(const Calibration& calibration, const Manifest& manifest, const Plan& plan,
                                      const RefitOptions& options) {
  const auto found = calibration.costs.find(options.transport);
  if (found == calibration.costs.end()) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("no calibration of transport \"", options.transport, "\""));
  }
  const TransportCosts& costs = found->second;
  const Topology& topology = manifest.topology;
  const bool crowded = static_cast<Index>(topology.source.size() + topology.destination.size()) > calibration.cores;
  const ProcessCosts& of = crowded ? costs.crowded : costs.alone;
  RunBytes snapshot;
  for (const Placement& p : topology.source) {
    for (const auto& [run, bytes] : SnapshotRuns(plan, p.rank)) snapshot[run] += bytes;
  }
  const RunBytes copied = CopiedRuns(plan);

  CostModel model;
  model.snapshot = CostOf(snapshot, of.snapshot);
  // Whole buffers, whatever was copied into them.
  model.commit = CostOf({{Index{1} << 40, 1}}, of.commit);
  WireCost wire;
  if (costs.mapped) {
    wire.mapped = true;
    model.direct = CostOf(copied, options.shadow ? of.direct_shadow : of.direct);
  } else {
    model.pack = CostOf(copied, of.pack);
    model.unpack = CostOf(copied, of.unpack);
    wire.sender_ns_per_byte = of.sender_ns_per_byte;
    wire.receiver_ns_per_byte = options.shadow ? of.receiver_ns_per_byte_shadow : of.receiver_ns_per_byte;
    wire.sender_ns_per_message = costs.sender_ns_per_message;
    wire.receiver_ns_per_message = costs.receiver_ns_per_message;
  }
  model.nvlink = model.nic = wire;
  model.chunk_bytes = costs.chunk_bytes;
  model.fixed_ns = costs.fixed_ns;
  model.rank_ns = costs.rank_ns;
  model.cores = calibration.cores;
  model.memory_bytes_per_second = calibration.memory_bytes_per_second;
  return model;
}

absl::StatusOr<Simulation> Predict(const Calibration& calibration, const Manifest& manifest, const Plan& plan,
                                   const RefitOptions& options) {
  HR_ASSIGN_OR_RETURN(const CostModel model, CostModelOf(calibration, manifest, plan, options));
  SimulateOptions simulate;
  for (const Placement& p : manifest.topology.source) {
    Index bytes = 0;
    for (const auto& [run, of_run] : SnapshotRuns(plan, p.rank)) bytes += of_run;
    simulate.snapshot_bytes.push_back(bytes);
  }
  if (options.shadow) {
    for (const Placement& p : manifest.topology.destination) {
      Index bytes = 0;
      for (const Edge& edge : plan.edges) {
        if (edge.destination_rank != p.rank) continue;
        for (size_t i = 0; i < edge.count; ++i) bytes += plan.copies[edge.first + i].bytes();
      }
      simulate.commit_bytes.push_back(bytes);
    }
  }
  return Simulate(TrafficOf(manifest, plan), model, simulate);
}

}  // namespace headrace::bench
