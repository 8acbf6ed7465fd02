#include "bench/belief_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/cost/plan_traffic.h"
#include "planner/status.h"

namespace headrace::bench {
namespace {

// Below this two processes do not hinder each other: medians differ by as much.
constexpr double kNoise = 1.1;
// As long as any that was measured.
constexpr Index kLongRun = Index{1} << 40;

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

absl::StatusOr<const Json*> Object(const Json& object, const std::string& name) {
  const auto field = object.find(name);
  if (field != object.end() && field->is_object()) return &*field;
  return Error(ErrorCode::kMalformed, absl::StrCat("calibration: no object \"", name, "\"; run calibrate again"));
}

absl::Status ParseRuns(const Json& part, TransportCosts* costs) {
  using Field = std::pair<const char*, CopyCosts*>;
  std::vector<Field> fields = {{"snapshot", &costs->snapshot}, {"commit", &costs->commit}};
  const std::vector<Field> mapped = {{"direct", &costs->direct}, {"direct_shadow", &costs->direct_shadow}};
  const std::vector<Field> two_sided = {{"pack", &costs->pack}, {"unpack", &costs->unpack}};
  for (const Field& field : costs->mapped ? mapped : two_sided) fields.push_back(field);
  HR_ASSIGN_OR_RETURN(const Json* apart, List(part, "runs"));
  HR_ASSIGN_OR_RETURN(const Json* dense, List(part, "dense_runs"));
  for (const Json* list : {apart, dense}) {
    for (const Json& entry : *list) {
      HR_ASSIGN_OR_RETURN(const double run, Number(entry, "run_bytes"));
      for (const auto& [name, table] : fields) {
        HR_ASSIGN_OR_RETURN(const double cost, Number(entry, name));
        (list == apart ? table->apart : table->dense).Add(static_cast<Index>(run), cost);
        // The longest are whole buffers, which have no gaps.
        if (&entry == &apart->back()) table->dense.Add(static_cast<Index>(run), cost);
      }
    }
  }
  return absl::OkStatus();
}

// What the wire costs is what is left of transfers in long runs without copying and messages. After ParseMessages.
absl::Status ParseCrowds(const Json& list, TransportCosts* costs) {
  const double chunk = static_cast<double>(costs->chunk_bytes);
  for (const Json& entry : list) {
    HR_ASSIGN_OR_RETURN(const double trainers, Number(entry, "trainers"));
    HR_ASSIGN_OR_RETURN(const double workers, Number(entry, "workers"));
    HR_ASSIGN_OR_RETURN(const double sent, Number(entry, "transfer.trainer"));
    HR_ASSIGN_OR_RETURN(const double received, Number(entry, "transfer.worker"));
    const double pack = costs->pack.dense.NsPerByte(kLongRun);
    const double unpack = costs->unpack.dense.NsPerByte(kLongRun);
    const auto add = [&, t = static_cast<Index>(trainers), w = static_cast<Index>(workers)](
                         CrowdCosts* of, double ns, double copying, Index message_ns) {
      of->Add(t, w, std::max(0.0, ns - copying - static_cast<double>(message_ns) / chunk));
    };
    add(&costs->sender, sent, pack, costs->sender_ns_per_message);
    add(&costs->receiver, received, unpack, costs->receiver_ns_per_message);
  }
  return absl::OkStatus();
}

// Two that copy at once and each take longer for it share what the memory can do.
absl::StatusOr<double> MemoryLimit(const Json& list) {
  double one = 0, two = 0;
  for (const Json& entry : list) {
    HR_ASSIGN_OR_RETURN(const double trainers, Number(entry, "trainers"));
    HR_ASSIGN_OR_RETURN(const double workers, Number(entry, "workers"));
    HR_ASSIGN_OR_RETURN(const double direct, Number(entry, "direct"));
    if (trainers == 1 && workers == 1) one = direct;
    if (trainers == 2 && workers == 2) two = direct;
  }
  if (one == 0 || two == 0) {
    return Error(ErrorCode::kMalformed, "calibration: no crowds of one and of two pairs; run calibrate again");
  }
  return two > kNoise * one ? 2e9 / two : 0;
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

// What messages cost besides their bytes, from the same bytes in chunks of two sizes; what a shadow changes.
absl::Status ParseMessages(const Json& part, TransportCosts* costs) {
  HR_ASSIGN_OR_RETURN(const double small_bytes, Number(part, "small_chunk_bytes"));
  HR_ASSIGN_OR_RETURN(const Json* small, Object(part, "small_chunks"));
  HR_ASSIGN_OR_RETURN(const Json* whole, Object(part, "whole"));
  const double more = 1 / small_bytes - 1 / static_cast<double>(costs->chunk_bytes);  // messages a byte
  for (const auto& [side, ns] :
       {std::pair{".trainer", &costs->sender_ns_per_message}, std::pair{".worker", &costs->receiver_ns_per_message}}) {
    HR_ASSIGN_OR_RETURN(const double in_small, Number(*small, absl::StrCat("transfer", side)));
    HR_ASSIGN_OR_RETURN(const double in_large, Number(*whole, absl::StrCat("transfer", side)));
    *ns = more > 0 ? std::llround(std::max(0.0, in_small - in_large) / more) : 0;
  }
  HR_ASSIGN_OR_RETURN(const double live, Number(*whole, "transfer.worker"));
  HR_ASSIGN_OR_RETURN(const double shadow, Number(*whole, "transfer_shadow.worker"));
  costs->receiver_shadow_ns_per_byte = shadow - live;
  return absl::OkStatus();
}

CopyCost CostOf(const RunBytes& runs, const CopyCosts& costs) {
  double bytes = 0, ns = 0;
  for (const auto& [run, of_run] : runs) {
    bytes += static_cast<double>(of_run);
    ns += static_cast<double>(of_run) * (run.dense ? costs.dense : costs.apart).NsPerByte(run.run_bytes);
  }
  return {.bytes_per_second = ns > 0 ? bytes / ns * 1e9 : 0};
}

Runs RunsOf(const Copy& copy) {
  return {copy.run_bytes, copy.loops.empty() || copy.loops.back().source_stride == copy.run_bytes};
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

double CrowdCosts::NsPerByte(Index trainers, Index workers) const {
  // Where a number is on an axis that has `marks`: between which two of them, and how far along.
  const auto place = [](const std::set<Index>& marks, Index number) {
    const auto above = marks.lower_bound(number);
    if (above == marks.end()) return std::tuple(*marks.rbegin(), *marks.rbegin(), 0.0);
    if (above == marks.begin() || *above == number) return std::tuple(*above, *above, 0.0);
    const Index below = *std::prev(above);
    const auto log = [](Index n) { return std::log2(static_cast<double>(n)); };
    return std::tuple(below, *above, (log(number) - log(below)) / (log(*above) - log(below)));
  };
  std::set<Index> trainer_marks, worker_marks;
  for (const auto& [ranks, cost] : costs_) {
    trainer_marks.insert(ranks.first);
    worker_marks.insert(ranks.second);
  }
  const auto [t0, t1, along_t] = place(trainer_marks, trainers);
  const auto [w0, w1, along_w] = place(worker_marks, workers);
  const double few = costs_.at({t0, w0}) + along_w * (costs_.at({t0, w1}) - costs_.at({t0, w0}));
  const double many = costs_.at({t1, w0}) + along_w * (costs_.at({t1, w1}) - costs_.at({t1, w0}));
  return few + along_t * (many - few);
}

absl::StatusOr<Calibration> ParseCalibration(const Json& document) {
  Calibration calibration;
  HR_ASSIGN_OR_RETURN(const double cores, Number(document, "cores"));
  calibration.cores = static_cast<Index>(cores);
  for (const char* name : {"host", "ucx"}) {
    HR_ASSIGN_OR_RETURN(const Json* part, Object(document, name));
    TransportCosts costs;
    costs.mapped = std::string(name) == "host";
    HR_ASSIGN_OR_RETURN(const double chunk, Number(*part, "chunk_bytes"));
    costs.chunk_bytes = static_cast<Index>(chunk);
    HR_RETURN_IF_ERROR(ParseRuns(*part, &costs));
    HR_ASSIGN_OR_RETURN(const Json* crowds, List(*part, "crowds"));
    HR_ASSIGN_OR_RETURN(const double staging, Number(*part, "staging_bytes"));
    costs.staging_bytes = static_cast<Index>(staging);
    if (costs.mapped) {
      HR_ASSIGN_OR_RETURN(calibration.memory_bytes_per_second, MemoryLimit(*crowds));
    } else {
      HR_RETURN_IF_ERROR(ParseMessages(*part, &costs));
      HR_RETURN_IF_ERROR(ParseCrowds(*crowds, &costs));
    }
    HR_ASSIGN_OR_RETURN(const Json* tiny, List(*part, "tiny"));
    HR_RETURN_IF_ERROR(ParseTiny(*tiny, &costs));
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
      runs[RunsOf(copy)] += copy.bytes();
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
      runs[RunsOf(copy)] += copy.bytes();
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
  RunBytes snapshot;
  for (const Placement& p : topology.source) {
    for (const auto& [run, bytes] : SnapshotRuns(plan, p.rank)) snapshot[run] += bytes;
  }
  const RunBytes copied = CopiedRuns(plan);

  CostModel model;
  model.snapshot = CostOf(snapshot, costs.snapshot);
  // Whole buffers, whatever was copied into them.
  model.commit = CostOf({{{kLongRun, true}, 1}}, costs.commit);
  WireCost wire;
  if (costs.mapped) {
    wire.mapped = true;
    model.direct = CostOf(copied, options.shadow ? costs.direct_shadow : costs.direct);
  } else {
    model.pack = CostOf(copied, costs.pack);
    model.unpack = CostOf(copied, costs.unpack);
    const auto trainers = static_cast<Index>(topology.source.size());
    const auto workers = static_cast<Index>(topology.destination.size());
    wire.sender_ns_per_byte = costs.sender.NsPerByte(trainers, workers);
    const double shadow = options.shadow ? costs.receiver_shadow_ns_per_byte : 0;
    wire.receiver_ns_per_byte = std::max(0.0, costs.receiver.NsPerByte(trainers, workers) + shadow);
    // A sender packs ahead as far as its staging allows; its edges share that.
    std::map<int64_t, Index> edges;
    Index most = 1;
    for (const Edge& edge : plan.edges) most = std::max(most, ++edges[edge.source_rank]);
    model.window = std::max<Index>(1, costs.staging_bytes / costs.chunk_bytes / most);
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
