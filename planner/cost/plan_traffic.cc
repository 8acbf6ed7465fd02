#include "planner/cost/plan_traffic.h"

#include <map>
#include <set>
#include <string>
#include <utility>

namespace headrace {
namespace {

// Numbers names in the order in which they come.
int32_t NumberOf(std::map<std::string, int32_t>* numbers, const std::string& name) {
  return numbers->emplace(name, static_cast<int32_t>(numbers->size())).first->second;
}

}  // namespace

Traffic TrafficOf(const Manifest& manifest, const Plan& plan) {
  Traffic traffic;
  std::map<std::string, int32_t> hosts, domains;
  std::map<int64_t, int32_t> source, destination;  // nodes by rank
  const auto place = [&](const Placement& p, std::map<int64_t, int32_t>* nodes) {
    nodes->emplace(p.rank, static_cast<int32_t>(traffic.host.size()));
    traffic.host.push_back(NumberOf(&hosts, p.host));
    // A domain that is not named is the host, whatever other domains are called.
    traffic.domain.push_back(NumberOf(&domains, p.domain.empty() ? "host:" + p.host : "domain:" + p.domain));
  };
  for (const Placement& p : manifest.topology.source) place(p, &source);
  traffic.source_ranks = static_cast<int32_t>(traffic.host.size());
  for (const Placement& p : manifest.topology.destination) place(p, &destination);

  std::set<int> streams;
  for (const Edge& edge : plan.edges) {
    Flow flow;
    if (edge.stream < 0) {
      for (size_t i = 0; i < edge.count; ++i) flow.bytes += plan.copies[edge.first + i].bytes();
      flow.copies = static_cast<Index>(edge.count);
      flow.hops.push_back({source.at(edge.source_rank), destination.at(edge.destination_rank), -1});
    } else {
      if (!streams.insert(edge.stream).second) continue;
      const Stream& stream = plan.streams[edge.stream];
      flow.bytes = stream.bytes();
      flow.copies = static_cast<Index>(stream.parts.size());
      int32_t from = source.at(stream.source_rank);
      for (int64_t rank : stream.chain) {
        const int32_t to = destination.at(rank);
        flow.hops.push_back({from, to, static_cast<int32_t>(flow.hops.size()) - 1});
        from = to;
      }
    }
    traffic.flows.push_back(std::move(flow));
  }
  return traffic;
}

}  // namespace headrace
