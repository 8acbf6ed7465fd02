#include "planner/cluster/message_groups.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "planner/status.h"

namespace headrace {
namespace {

struct Placed {
  Index round = 0;
  int32_t legs = 0;
  GroupMessage message;
};

PairMessages Group(int32_t peer, std::vector<Placed> placed, const RankPlan& rank) {
  // Passages are in the order of the plan, which both ends have.
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.round, a.legs) < std::pair(b.round, b.legs);
  });
  PairMessages out;
  out.peer = peer;
  for (const Placed& p : placed) {
    const Index bytes = rank.passages[p.message.passage].bytes;
    const bool fits =
        !out.groups.empty() && std::tie(out.groups.back().round, out.groups.back().legs) == std::tie(p.round, p.legs) &&
        out.groups.back().count < kMaxGroupOperations && out.groups.back().bytes + bytes <= kMaxGroupBytes;
    if (!fits) out.groups.push_back({p.round, p.legs, static_cast<uint32_t>(out.messages.size()), 0, 0});
    ++out.groups.back().count;
    out.groups.back().bytes += bytes;
    out.messages.push_back(p.message);
  }
  return out;
}

}  // namespace

Index RoundsOf(const ClusterPlan& plan) {
  Index most = 0;
  for (const Index bytes : plan.sent()) most = std::max(most, bytes);
  return std::max<Index>(1, (most + kRoundBytes - 1) / kRoundBytes);
}

std::vector<PairMessages> GroupMessages(const RankPlan& rank, Index rounds) {
  std::map<int32_t, std::vector<Placed>> pairs;
  for (size_t n = 0; n < rank.passages.size(); ++n) {
    const Passage& p = rank.passages[n];
    const Index round = std::min(rounds - 1, static_cast<Index>(static_cast<__int128>(p.order) * rounds / kOrderEnd));
    const auto index = static_cast<uint32_t>(n);
    if (p.from >= 0) pairs[p.from].push_back({round, p.legs, {index, false}});
    for (const int32_t next : {p.next_domain, p.next_inside}) {
      if (next >= 0) pairs[next].push_back({round, p.legs + 1, {index, true}});
    }
  }
  std::vector<PairMessages> out;
  for (auto& [peer, placed] : pairs) out.push_back(Group(peer, std::move(placed), rank));
  return out;
}

absl::StatusOr<Index> CountGroups(const ClusterPlan& plan, int32_t node) {
  const int32_t senders = plan.cluster().source.ranks;
  HR_ASSIGN_OR_RETURN(const RankPlan rank,
                      node < senders ? SenderPlan(plan, node) : ReceiverPlan(plan, node - senders));
  Index groups = 0;
  for (const PairMessages& pair : GroupMessages(rank, RoundsOf(plan))) groups += static_cast<Index>(pair.groups.size());
  return groups;
}

}  // namespace headrace
