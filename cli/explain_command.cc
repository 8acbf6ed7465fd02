#include "cli/explain_command.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report.h"
#include "planner/box.h"
#include "planner/broadcast_policy.h"
#include "planner/cluster/cluster_plan.h"
#include "planner/manifest_json.h"
#include "planner/plan.h"
#include "planner/status.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Unknown(const std::string& tensor, absl::string_view where) {
  return About(Error(ErrorCode::kUnknownTensor,
                     absl::StrCat("no tensor \"", tensor, "\" in ", where, "; give its whole checkpoint name")),
               {.tensor = tensor});
}

bool IsDraft(const Model& model, const std::string& tensor) {
  for (const ModelUnit& unit : model.units) {
    if (!unit.draft) continue;
    for (const UnitTensor& t : unit.tensors) {
      for (Index e = 0; e < std::max(unit.experts, Index{1}); ++e) {
        if (InstanceName(t.name, -1, e) == tensor) return true;
      }
    }
  }
  return false;
}

// "0, 8, 16, .. (32 ranks)".
std::string RanksText(const std::vector<int32_t>& ranks) {
  constexpr size_t kShown = 4;
  if (ranks.size() <= kShown + 1) return absl::StrJoin(ranks, ", ");
  return absl::StrCat(absl::StrJoin(ranks.begin(), ranks.begin() + kShown, ", "), ", .. (", ranks.size(), " ranks)");
}

// The ranks at which a stripe enters a domain, in the order of the chain.
std::vector<int32_t> Entries(const Cluster& cluster, const StripeRoute& route) {
  auto domain = [&](int32_t node) {
    return node < cluster.source.ranks ? -1 : (node - cluster.source.ranks) / cluster.destination.ranks_per_domain;
  };
  std::vector<int32_t> entries;
  for (const Leg& leg : route.legs) {
    if (domain(leg.from) != domain(leg.to)) entries.push_back(leg.to - cluster.source.ranks);
  }
  return entries;
}

struct Explained {
  Json json;
  std::vector<std::vector<std::string>> rows;
};

// One cell of an instance.
void ExplainCell(const ClusterPlan& plan, const ItemId& item, Explained* out) {
  const Cluster& cluster = plan.cluster();
  const ClusterUnit& unit = cluster.units[item.unit];
  const UnitInstance& instance = unit.instances[item.instance];
  const UnitCell& cell = plan.unit_plan(item.unit).cells()[item.cell];
  auto named = [&](const std::string& name) { return InstanceName(name, instance.layer, instance.expert); };
  std::vector<StripeRoute> routes;
  plan.Route(item, &routes);
  for (const StripeRoute& route : routes) {
    std::vector<Copy> copies;
    plan.AppendCopies(item.unit, item.cell, route.source_shard, route.offset, route.bytes, &copies);
    const std::vector<int32_t> entries = Entries(cluster, route);
    const std::string from_buffer = copies.empty() ? "" : named(unit.manifest.source[copies[0].source].name);
    Json stripe = {{"box", ToString(cell.box)},
                   {"offset", route.offset},
                   {"bytes", route.bytes},
                   {"from", {{"rank", route.sender}, {"buffer", from_buffer}}},
                   {"enters_domains_at", entries}};
    if (instance.expert >= 0) stripe["expert"] = instance.expert;
    // By the buffer that it lands in: copies, and where the first one begins.
    struct Landing {
      Index offset = 0;
      int copies = 0;
      Index bytes = 0;
    };
    std::map<int, Landing> landings;
    for (const Copy& copy : copies) {
      auto [it, fresh] = landings.try_emplace(copy.destination, Landing{copy.destination_offset});
      it->second.offset = std::min(it->second.offset, copy.destination_offset);
      ++it->second.copies;
      it->second.bytes += copy.bytes();
    }
    const std::string part =
        absl::StrCat(ToString(cell.box), route.bytes < cell.bytes ? absl::StrCat(", from byte ", route.offset) : "");
    std::string source = absl::StrCat("trainer ", route.sender, ": ", from_buffer);
    std::string way = RanksText(entries);
    for (const auto& [destination, landing] : landings) {
      const Buffer& buffer = unit.manifest.destination[destination];
      const std::vector<int32_t>& ranks = unit.destination_groups[instance.destination_group].shards[buffer.rank];
      Index offset = landing.offset;
      if (unit.destination_stacked)
        offset += DestinationPlace(unit, instance, buffer.rank) * SpanBytes(buffer, buffer.dtype);
      stripe["lands"].push_back({{"ranks", ranks},
                                 {"buffer", named(buffer.name)},
                                 {"first_byte", offset},
                                 {"copies", landing.copies},
                                 {"bytes", landing.bytes}});
      out->rows.push_back({part, HumanBytes(route.bytes), source, way, RanksText(ranks),
                           absl::StrCat(named(buffer.name), ", from byte ", offset),
                           absl::StrCat(landing.copies, landing.copies == 1 ? " copy" : " copies")});
    }
    out->json["parts"].push_back(std::move(stripe));
  }
}

absl::StatusOr<Explained> ExplainInCluster(const ExplainCommand& command, Policy policy) {
  HR_ASSIGN_OR_RETURN(const Job job, LoadJob(command.job));
  HR_ASSIGN_OR_RETURN(const ClusterPlan plan, PlanCluster(job.cluster, policy));
  Explained out;
  out.rows.push_back({"part", "bytes", "from", "enters domains at", "lands on", "in", "by"});
  for (size_t u = 0; u < job.cluster.units.size(); ++u) {
    const ClusterUnit& unit = job.cluster.units[u];
    for (size_t t = 0; t < unit.manifest.tensors.size(); ++t) {
      const TensorSpec& tensor = unit.manifest.tensors[t];
      for (size_t i = 0; i < unit.instances.size(); ++i) {
        const UnitInstance& instance = unit.instances[i];
        if (InstanceName(tensor.name, instance.layer, instance.expert) != command.tensor) continue;
        out.json["unit"] = unit.unit.name;
        out.json["shape"] = tensor.shape;
        out.json["dtype"] = DtypeName(tensor.dtype);
        const std::string kind = policy == Policy::kHybrid ? BroadcastKind(tensor.name) : "";
        out.json["transfer"] = TransferName(kind.empty() ? TransferKind::kReshard : TransferKind::kBroadcast);
        out.json["reason"] =
            kind.empty() ? "each byte to who wants it" : absl::StrCat("broadcast by the policy: ", kind);
        for (int c = 0; c < plan.CellCount(static_cast<int>(u)); ++c) {
          if (plan.unit_plan(static_cast<int>(u)).cells()[c].tensor != static_cast<int>(t)) continue;
          ExplainCell(plan, {static_cast<int32_t>(u), static_cast<int32_t>(i), c}, &out);
        }
      }
    }
  }
  if (!out.json.is_null()) return out;
  if (IsDraft(job.model, command.tensor)) {
    return About(Error(ErrorCode::kUnknownTensor,
                       absl::StrCat("tensor \"", command.tensor, "\" of ", job.model.name,
                                    " is of a draft (multi-token prediction) layer, which plans of layouts leave out")),
                 {.tensor = command.tensor});
  }
  return Unknown(command.tensor, job.model.name);
}

absl::StatusOr<Explained> ExplainInManifest(const ExplainCommand& command, Policy policy) {
  HR_ASSIGN_OR_RETURN(const std::string text, ReadFile(command.file));
  HR_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(text));
  const auto tensor = std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                                   [&](const TensorSpec& t) { return t.name == command.tensor; });
  if (tensor == manifest.tensors.end()) return Unknown(command.tensor, command.file);
  HR_ASSIGN_OR_RETURN(const Plan plan, BuildPlan(manifest, {policy}));
  const auto index = static_cast<int>(tensor - manifest.tensors.begin());
  const Decision& decision = plan.decisions[index];
  Explained out;
  out.json = {{"shape", tensor->shape},
              {"dtype", DtypeName(tensor->dtype)},
              {"transfer", TransferName(decision.transfer)},
              {"install", InstallName(decision.install)},
              {"reason", decision.reason}};
  out.rows.push_back({"bytes of the tensor", "from", "by", "lands on", "in"});
  for (const Edge& edge : plan.edges) {
    for (size_t i = edge.first; i < edge.first + edge.count; ++i) {
      const Copy& copy = plan.copies[i];
      if (copy.tensor != index) continue;
      const Buffer& source = manifest.source[copy.source];
      const Buffer& destination = manifest.destination[copy.destination];
      out.json["copies"].push_back({{"bytes", copy.bytes()},
                                    {"first_byte", copy.position},
                                    {"from", {{"rank", source.rank}, {"buffer", source.name}}},
                                    {"stream", edge.stream},
                                    {"to", {{"rank", destination.rank}, {"buffer", destination.name}}},
                                    {"destination_offset", copy.destination_offset}});
      out.rows.push_back({absl::StrCat(HumanBytes(copy.bytes()), ", from byte ", copy.position),
                          absl::StrCat("source ", source.rank, ": ", source.name),
                          edge.stream < 0 ? "itself" : absl::StrCat("stream ", edge.stream),
                          absl::StrCat("destination ", destination.rank),
                          absl::StrCat(destination.name, ", from byte ", copy.destination_offset)});
    }
  }
  return out;
}

absl::Status Explain(const ExplainCommand& command) {
  HR_ASSIGN_OR_RETURN(const Policy policy, ParsePolicy(command.policy));
  HR_ASSIGN_OR_RETURN(const Explained explained,
                      command.file.empty() ? ExplainInCluster(command, policy) : ExplainInManifest(command, policy));
  if (command.json) {
    Json document = {{"outcome", "explained"}, {"tensor", command.tensor}, {"policy", PolicyName(policy)}};
    document.update(explained.json);
    PrintJson(document);
    return absl::OkStatus();
  }
  std::cout << command.tensor << ", " << explained.json["dtype"].get<std::string>() << " "
            << explained.json["shape"].dump();
  if (explained.json.contains("reason")) {
    std::cout << ", " << explained.json["transfer"].get<std::string>();
    if (explained.json.contains("install")) std::cout << ", " << explained.json["install"].get<std::string>();
    std::cout << ": " << explained.json["reason"].get<std::string>();
  }
  std::cout << "\n\n" << Table(explained.rows);
  return absl::OkStatus();
}

}  // namespace

int Run(const ExplainCommand& command) {
  const absl::Status status = Explain(command);
  return status.ok() ? kExitOk : ReportError(status, command.json);
}

}  // namespace headrace
