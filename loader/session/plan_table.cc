#include "loader/session/plan_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {

absl::Status PlanTable::Add(const MemberKey& from, const proto::Planned& planned) {
  if (Has(from)) return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " sent a second Planned"));
  std::map<Key, std::string> ends;
  for (const proto::Edge& edge : planned.edges()) {
    const MemberKey end = from.role == proto::PUBLISHER ? MemberKey::Publisher(edge.publisher())
                                                        : MemberKey::Receiver(edge.engine(), edge.worker());
    if (end != from)
      return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(from), " planned an edge of ", NameOf(end)));
    if (!ends.emplace(Key{edge.publisher(), edge.engine(), edge.worker()}, edge.digest()).second)
      return Error(ErrorCode::kMalformed,
                   absl::StrCat(NameOf(from), " planned the edge publisher rank ", edge.publisher(), " to engine ",
                                edge.engine(), " worker ", edge.worker(), " twice"));
  }
  planned_.insert(from);
  if (from.role == proto::PUBLISHER) {
    region_keys_[from.rank].assign(planned.region_keys().begin(), planned.region_keys().end());
  }
  (from.role == proto::PUBLISHER ? publisher_ends_ : receiver_ends_).merge(ends);
  return absl::OkStatus();
}

absl::Status PlanTable::Compare() const {
  auto p = publisher_ends_.begin();
  auto r = receiver_ends_.begin();
  while (p != publisher_ends_.end() || r != receiver_ends_.end()) {
    const bool p_end = p == publisher_ends_.end(), r_end = r == receiver_ends_.end();
    if (!p_end && !r_end && p->first == r->first && p->second == r->second) {
      ++p, ++r;
      continue;
    }
    const bool no_publisher = p_end || (!r_end && r->first < p->first);
    const bool no_receiver = !no_publisher && (r_end || p->first < r->first);
    const Key& key = no_publisher ? r->first : p->first;
    const char* how = no_publisher  ? "only the receiver planned it"
                      : no_receiver ? "only the publisher planned it"
                                    : "the two ends planned different copies";
    return Error(ErrorCode::kPlanMismatch,
                 absl::StrCat("edge publisher rank ", key.publisher, " to engine ", key.engine, " worker ", key.worker,
                              ": ", how, "; do both run the same version on the same manifest?"));
  }
  return absl::OkStatus();
}

std::vector<proto::Edge> PlanTable::Edges() const {
  std::vector<proto::Edge> edges;
  for (const auto& [key, digest] : publisher_ends_) {
    proto::Edge& edge = edges.emplace_back();
    edge.set_publisher(key.publisher);
    edge.set_engine(key.engine);
    edge.set_worker(key.worker);
    edge.set_digest(digest);
  }
  return edges;
}

}  // namespace headrace
