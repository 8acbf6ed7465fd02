#include "planner/cost/simulate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/cost/engine.h"
#include "planner/cost/timeline.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr double kPicosecondsPerSecond = 1e12;

// Of a simulation, so that what is counted stays below 2^63 picoseconds, rounding up included.
constexpr double kLongestPicoseconds = 9e18;

double Seconds(Picoseconds time) { return static_cast<double>(time) / kPicosecondsPerSecond; }

absl::Status CheckNumber(absl::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Error(ErrorCode::kInvalidOption, absl::StrCat("cost model: ", name, " is ", value, "; give a number >= 0"));
}

absl::Status CheckWire(absl::string_view name, const WireCost& wire) {
  for (const auto& [field, value] :
       {std::pair{"bytes_per_second", wire.bytes_per_second},
        std::pair{"latency_ns", static_cast<double>(wire.latency_ns)},
        std::pair{"message_ns", static_cast<double>(wire.message_ns)},
        std::pair{"sender_ns_per_byte", wire.sender_ns_per_byte},
        std::pair{"sender_ns_per_message", static_cast<double>(wire.sender_ns_per_message)},
        std::pair{"receiver_ns_per_byte", wire.receiver_ns_per_byte},
        std::pair{"receiver_ns_per_message", static_cast<double>(wire.receiver_ns_per_message)}}) {
    HR_RETURN_IF_ERROR(CheckNumber(absl::StrCat(name, ".", field), value));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const CostModel& model) {
  HR_RETURN_IF_ERROR(CheckWire("nvlink", model.nvlink));
  HR_RETURN_IF_ERROR(CheckWire("nic", model.nic));
  for (const auto& [name, copy] :
       {std::pair{"pack", model.pack}, std::pair{"unpack", model.unpack}, std::pair{"direct", model.direct},
        std::pair{"snapshot", model.snapshot}, std::pair{"commit", model.commit}}) {
    HR_RETURN_IF_ERROR(CheckNumber(absl::StrCat(name, ".bytes_per_second"), copy.bytes_per_second));
    HR_RETURN_IF_ERROR(CheckNumber(absl::StrCat(name, ".ns_per_copy"), copy.ns_per_copy));
  }
  HR_RETURN_IF_ERROR(CheckNumber("fixed_ns", static_cast<double>(model.fixed_ns)));
  HR_RETURN_IF_ERROR(CheckNumber("rank_ns", static_cast<double>(model.rank_ns)));
  HR_RETURN_IF_ERROR(CheckNumber("group_ns", static_cast<double>(model.group_ns)));
  HR_RETURN_IF_ERROR(CheckNumber("cores", static_cast<double>(model.cores)));
  HR_RETURN_IF_ERROR(CheckNumber("memory_bytes_per_second", model.memory_bytes_per_second));
  if (model.memory_bytes_per_second > 0 && model.cores == 0) {
    return Error(ErrorCode::kInvalidOption, "cost model: memory_bytes_per_second is set without cores; set both");
  }
  if (!(model.spine_share > 0 && model.spine_share <= 1)) {
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("cost model: spine_share is ", model.spine_share, "; give a number above 0, at most 1"));
  }
  if (model.chunk_bytes < 1 || model.window < 1) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("cost model: chunk_bytes is ", model.chunk_bytes,
                                                         " and window ", model.window, "; both must be 1 or more"));
  }
  return absl::OkStatus();
}

absl::Status CheckTraffic(const Traffic& traffic) {
  const int32_t nodes = static_cast<int32_t>(traffic.host.size());
  if (traffic.domain.size() != traffic.host.size() || traffic.source_ranks < 0 || traffic.source_ranks > nodes) {
    return Error(ErrorCode::kMalformed,
                 absl::StrCat("traffic: ", traffic.host.size(), " hosts, ", traffic.domain.size(), " domains, ",
                              traffic.source_ranks, " source ranks; give each node a host and a domain"));
  }
  if (!traffic.rail.empty() && traffic.rail.size() != traffic.host.size()) {
    return Error(ErrorCode::kMalformed, absl::StrCat("traffic: ", traffic.rail.size(), " rails for ", nodes,
                                                     " nodes; give each node one, or none"));
  }
  for (size_t f = 0; f < traffic.flows.size(); ++f) {
    const Flow& flow = traffic.flows[f];
    const auto malformed = [f](const auto&... parts) {
      return Error(ErrorCode::kMalformed, absl::StrCat("traffic: flow ", f, parts...));
    };
    if (flow.bytes < 0 || flow.copies < 0) return malformed(" has ", flow.bytes, " bytes, ", flow.copies, " copies");
    for (size_t h = 0; h < flow.hops.size(); ++h) {
      const Hop& hop = flow.hops[h];
      if (hop.from < 0 || hop.from >= nodes || hop.to < 0 || hop.to >= nodes || hop.from == hop.to) {
        return malformed(", hop ", h, " goes from node ", hop.from, " to ", hop.to, " of ", nodes);
      }
      if (hop.group < -1) return malformed(", hop ", h, " is in group ", hop.group, "; give -1, or one from 0 on");
      if (hop.after < 0 ? hop.from >= traffic.source_ranks
                        : hop.after >= static_cast<int32_t>(h) || flow.hops[hop.after].to != hop.from) {
        return malformed(", hop ", h, " begins at node ", hop.from, ", which does not have the bytes");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const Traffic& traffic, const SimulateOptions& options) {
  const size_t sources = static_cast<size_t>(traffic.source_ranks);
  const size_t destinations = traffic.host.size() - sources;
  const auto wrong = [](absl::string_view name, absl::string_view what) {
    return Error(ErrorCode::kInvalidOption, absl::StrCat("simulate: ", name, " ", what));
  };
  if (!options.snapshot_bytes.empty() && options.snapshot_bytes.size() != sources) {
    return wrong("snapshot_bytes", "must have one number for each source rank");
  }
  if (!options.commit_bytes.empty() && options.commit_bytes.size() != destinations) {
    return wrong("commit_bytes", "must have one number for each destination rank");
  }
  for (const std::vector<Index>* bytes : {&options.snapshot_bytes, &options.commit_bytes}) {
    if (std::any_of(bytes->begin(), bytes->end(), [](Index b) { return b < 0; })) {
      return wrong(bytes == &options.snapshot_bytes ? "snapshot_bytes" : "commit_bytes", "has a negative number");
    }
  }
  if (options.max_chunks < 1) return wrong("max_chunks", "must be 1 or more");
  for (int32_t node : options.timeline_nodes) {
    if (node < 0 || static_cast<size_t>(node) >= traffic.host.size()) {
      return wrong("timeline_nodes", absl::StrCat("has node ", node, ", which does not exist"));
    }
  }
  return absl::OkStatus();
}

Index CountChunks(const Traffic& traffic, Index chunk_bytes) {
  Index chunks = 0;
  for (const Flow& flow : traffic.flows) {
    chunks += (flow.bytes + chunk_bytes - 1) / chunk_bytes * static_cast<Index>(flow.hops.size());
  }
  return chunks;
}

// Picoseconds that everything takes one after the other. No schedule takes longer, as something is always at work, and
// no clock of a port or a worker runs further ahead.
double SerialPicoseconds(const Traffic& traffic, const CostModel& model, const SimulateOptions& options,
                         Index chunk_bytes) {
  const auto transmitting = [](double bytes, double bytes_per_second) {
    return bytes_per_second > 0 ? bytes / bytes_per_second * kPicosecondsPerSecond : 0;
  };
  // Workers that share a memory are held up by it for no longer than their bytes take.
  const auto copying = [&](const CopyCost& cost, double bytes, double copies) {
    return transmitting(bytes, cost.bytes_per_second) + cost.ns_per_copy * copies * 1e3 +
           transmitting(bytes, model.memory_bytes_per_second);
  };
  const double spine = model.spine_share * static_cast<double>(traffic.host.size()) * model.nic.bytes_per_second;
  double time = 1e3 * (static_cast<double>(model.fixed_ns) +
                       static_cast<double>(model.rank_ns) * static_cast<double>(traffic.host.size()));
  for (const Index bytes : options.snapshot_bytes) time += copying(model.snapshot, static_cast<double>(bytes), 1);
  for (const Index bytes : options.commit_bytes) time += copying(model.commit, static_cast<double>(bytes), 1);
  for (const Flow& flow : traffic.flows) {
    const double bytes = static_cast<double>(flow.bytes);
    const double copies = static_cast<double>(flow.copies);
    const double messages = std::ceil(bytes / static_cast<double>(model.chunk_bytes));
    const double chunks = std::ceil(bytes / static_cast<double>(chunk_bytes));
    for (const Hop& hop : flow.hops) {
      const bool nvlink = traffic.domain[hop.from] == traffic.domain[hop.to];
      const WireCost& wire = nvlink ? model.nvlink : model.nic;
      time += transmitting(bytes, wire.bytes_per_second);
      if (!nvlink && model.spine_share < 1 && !traffic.rail.empty()) time += transmitting(bytes, spine);
      time += 1e3 * bytes * (wire.sender_ns_per_byte + wire.receiver_ns_per_byte);
      time += 1e3 * messages *
              (static_cast<double>(wire.message_ns) + static_cast<double>(wire.sender_ns_per_message) +
               static_cast<double>(wire.receiver_ns_per_message));
      time += 1e3 * chunks * static_cast<double>(wire.latency_ns);
      if (hop.group >= 0) time += 1e3 * static_cast<double>(model.group_ns);
      // Sent out of and received into memory, too.
      time += 2 * transmitting(bytes, model.memory_bytes_per_second);
      if (hop.after < 0 && !wire.mapped) time += copying(model.pack, bytes, copies);
      time += copying(wire.mapped ? model.direct : model.unpack, bytes, copies);
    }
  }
  return time;
}

}  // namespace

absl::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kSnapshot:
      return "snapshot";
    case Phase::kPack:
      return "pack";
    case Phase::kNic:
      return "nic";
    case Phase::kNvlink:
      return "nvlink";
    case Phase::kUnpack:
      return "unpack";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kCommit:
      return "commit";
  }
  return "";
}

absl::string_view PortName(Port port) {
  switch (port) {
    case Port::kWorker:
      return "worker";
    case Port::kNicSend:
      return "nic_send";
    case Port::kNicReceive:
      return "nic_receive";
    case Port::kNvlinkSend:
      return "nvlink_send";
    case Port::kNvlinkReceive:
      return "nvlink_receive";
  }
  return "";
}

absl::StatusOr<Simulation> Simulate(const Traffic& traffic, const CostModel& model, const SimulateOptions& options) {
  HR_RETURN_IF_ERROR(CheckModel(model));
  HR_RETURN_IF_ERROR(CheckTraffic(traffic));
  HR_RETURN_IF_ERROR(CheckOptions(traffic, options));

  Simulation result;
  Index largest = 0;
  for (const Flow& flow : traffic.flows) largest = std::max(largest, flow.bytes);
  result.chunk_bytes = model.chunk_bytes;
  result.messages = CountChunks(traffic, model.chunk_bytes);
  result.chunks = result.messages;
  while (result.chunks > options.max_chunks && result.chunk_bytes < largest) {
    result.chunk_bytes *= 2;
    result.chunks = CountChunks(traffic, result.chunk_bytes);
  }

  const double serial = SerialPicoseconds(traffic, model, options, result.chunk_bytes);
  if (!(serial < kLongestPicoseconds)) {
    return Error(ErrorCode::kOutOfBounds,
                 absl::StrCat("simulate: all work one after the other takes ", serial / kPicosecondsPerSecond,
                              " seconds, and at most ", kLongestPicoseconds / kPicosecondsPerSecond,
                              " can be counted; check the bytes, the cost model's rates and the spine's share"));
  }

  std::vector<int32_t> shown = options.timeline_nodes;
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  std::vector<int64_t> track(traffic.host.size(), -1);
  for (size_t i = 0; i < shown.size(); ++i) track[shown[i]] = static_cast<int64_t>(i * kPorts);
  Timeline timeline(shown.size() * kPorts, options.max_intervals);

  Engine engine(traffic, model, result.chunk_bytes, shown.empty() ? nullptr : &timeline, std::move(track));
  engine.Copy(Phase::kSnapshot, model.snapshot, options.snapshot_bytes, 0);
  engine.Transfer();
  if (engine.Stuck()) {
    return Error(
        ErrorCode::kMalformed,
        "traffic: groups of hops wait for each other in a circle; put what a relay passes on, and what it gets, "
        "into different groups");
  }
  result.transfer_seconds = Seconds(engine.now());
  engine.Copy(Phase::kCommit, model.commit, options.commit_bytes, traffic.source_ranks);
  engine.Spend(Phase::kCommit,
               NanosecondsTime(static_cast<double>(model.fixed_ns) +
                               static_cast<double>(model.rank_ns) * static_cast<double>(traffic.host.size())));
  result.seconds = Seconds(engine.now());
  for (size_t p = 0; p < kPhases; ++p) result.by_phase[p] = Seconds(engine.path().spent[p]);
  result.nodes = engine.nodes();
  for (size_t i = 0; i < shown.size(); ++i) {
    for (size_t p = 0; p < kPorts; ++p) {
      for (const Timeline::Interval& interval : timeline.track(i * kPorts + p)) {
        result.timeline.push_back({shown[i], static_cast<Port>(p), Seconds(interval.begin), Seconds(interval.end)});
      }
    }
  }
  return result;
}

}  // namespace headrace
