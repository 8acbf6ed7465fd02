#include "planner/cluster/route_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

std::string DescribeItem(const Cluster& cluster, const ClusterAnswers& answers, const ItemId& item) {
  const ClusterUnit& unit = cluster.units[item.unit];
  const UnitInstance& instance = unit.instances[item.instance];
  const int tensor = answers.DescribeCell(item.unit, item.cell).tensor;
  return absl::StrCat("unit \"", unit.unit.name, "\", instance ", item.instance, " (layer ", instance.layer,
                      ", expert ", instance.expert, "), cell ", item.cell, " of \"",
                      tensor >= 0 && tensor < static_cast<int>(unit.manifest.tensors.size())
                          ? unit.manifest.tensors[tensor].name
                          : absl::StrCat("tensor ", tensor),
                      "\"");
}

absl::Status InvalidItem(const Cluster& cluster, const ClusterAnswers& answers, const ItemId& item,
                         const std::string& what) {
  return Error(ErrorCode::kPlanInvalid, absl::StrCat(DescribeItem(cluster, answers, item), ": ", what));
}

RouteCheck::RouteCheck(const Cluster& cluster, const ClusterAnswers& answers)
    : cluster_(cluster),
      answers_(answers),
      wants_(cluster.destination.ranks, 0),
      has_(cluster.destination.ranks, 0),
      entered_(cluster.destination.ranks / cluster.destination.ranks_per_domain + 1, 0) {}

void RouteCheck::Want(int32_t unit, int32_t group, const std::vector<int>& shards) {
  if (unit == unit_ && group == group_ && shards == shards_) return;
  unit_ = unit, group_ = group, shards_ = shards;
  ++want_number_;
  wanting_ = 0;
  for (int s : shards) {
    for (int32_t rank : cluster_.units[unit].destination_groups[group].shards[s]) wants_[rank] = want_number_;
    wanting_ += cluster_.units[unit].destination_groups[group].shards[s].size();
  }
}

absl::Status RouteCheck::Check(const ItemId& item, const CellAnswer& cell, const std::vector<StripeRoute>& stripes) {
  const UnitInstance& instance = cluster_.units[item.unit].instances[item.instance];
  Want(item.unit, instance.destination_group, cell.goes_to);
  Index end = 0;
  for (const StripeRoute& stripe : stripes) {
    if (stripe.offset != end || stripe.bytes <= 0 || stripe.bytes > cell.bytes - end) {
      return InvalidItem(cluster_, answers_, item,
                         absl::StrCat("a stripe has bytes ", stripe.offset, " to ", stripe.offset, " + ", stripe.bytes,
                                      " of ", cell.bytes, "; it should begin at ", end));
    }
    end += stripe.bytes;
    if (absl::Status status = CheckStripe(item, cell, stripe); !status.ok()) return status;
  }
  if (end == cell.bytes) return absl::OkStatus();
  return InvalidItem(cluster_, answers_, item, absl::StrCat("of ", cell.bytes, " bytes only ", end, " are sent"));
}

bool RouteCheck::IsLikeTheLast(const StripeRoute& stripe) const {
  return right_want_number_ == want_number_ && right_sender_ == stripe.sender && right_legs_ == stripe.legs;
}

absl::Status RouteCheck::CheckStripe(const ItemId& item, const CellAnswer& cell, const StripeRoute& stripe) {
  auto invalid = [&](const std::string& what) {
    return InvalidItem(cluster_, answers_, item, absl::StrCat("stripe at ", stripe.offset, ": ", what));
  };
  const ClusterUnit& unit = cluster_.units[item.unit];
  const RankGroup& holders = unit.source_groups[unit.instances[item.instance].source_group];
  if (std::find(cell.source_shards.begin(), cell.source_shards.end(), stripe.source_shard) ==
      cell.source_shards.end()) {
    return invalid(absl::StrCat("source shard ", stripe.source_shard, " does not hold the cell"));
  }
  const std::vector<int32_t>& ranks = holders.shards[stripe.source_shard];
  if (!std::binary_search(ranks.begin(), ranks.end(), stripe.sender)) {
    return invalid(absl::StrCat("sender ", stripe.sender, " does not hold shard ", stripe.source_shard,
                                " of source group ", unit.instances[item.instance].source_group));
  }
  if (IsLikeTheLast(stripe)) return absl::OkStatus();
  ++number_;
  const int32_t first_node = cluster_.source.ranks;
  const int32_t per_domain = cluster_.destination.ranks_per_domain;
  bool sent = false;
  for (const Leg& leg : stripe.legs) {
    const int32_t to = leg.to - first_node, from = leg.from - first_node;
    if (to < 0 || to >= cluster_.destination.ranks || wants_[to] != want_number_) {
      return invalid(absl::StrCat("it goes to node ", leg.to, ", which does not want it"));
    }
    if (has_[to] == number_) return invalid(absl::StrCat("receiver ", to, " gets it twice"));
    has_[to] = number_;
    if (from < 0) {
      if (leg.from != stripe.sender) {
        return invalid(absl::StrCat("receiver ", to, " gets it from node ", leg.from, ", not sender ", stripe.sender));
      }
      if (sent) return invalid(absl::StrCat("sender ", stripe.sender, " sends it twice"));
      sent = true;
    } else if (from >= cluster_.destination.ranks || from == to || has_[from] != number_) {
      return invalid(absl::StrCat("receiver ", to, " gets it from node ", leg.from, ", which has not got it yet"));
    }
    if (from < 0 || from / per_domain != to / per_domain) {
      int64_t& entered = entered_[to / per_domain];
      if (entered == number_) return invalid(absl::StrCat("receiver ", to, "'s domain is entered a second time"));
      entered = number_;
    }
  }
  if (stripe.legs.size() == wanting_) {
    right_want_number_ = want_number_, right_sender_ = stripe.sender, right_legs_ = stripe.legs;
    return absl::OkStatus();
  }
  for (int32_t rank = 0; rank < cluster_.destination.ranks; ++rank) {
    if (wants_[rank] == want_number_ && has_[rank] != number_) {
      return invalid(absl::StrCat("receiver ", rank, " wants it and does not get it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace headrace
