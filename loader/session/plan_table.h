#ifndef HEADRACE_LOADER_SESSION_PLAN_TABLE_H_
#define HEADRACE_LOADER_SESSION_PLAN_TABLE_H_

// The edges that both sides planned, and whether they agree.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "loader/session/types.h"

namespace headrace {

class PlanTable {
 public:
  // kMalformed: an edge that does not end at `from`, an edge twice, or a second call for `from`; nothing is kept then.
  // Ranks of the other end are not checked here.
  absl::Status Add(const MemberKey& from, const proto::Planned& planned);
  bool Has(const MemberKey& member) const { return planned_.contains(member); }
  // kPlanMismatch, naming the first edge of which one end is missing or the digests differ.
  absl::Status Compare() const;
  // The publishers' ends, sorted by (publisher, engine, worker).
  std::vector<proto::Edge> Edges() const;
  // What the publisher added to its Planned.
  const std::vector<std::string>& RegionKeys(int publisher) const { return region_keys_.at(publisher); }

 private:
  struct Key {
    int publisher, engine, worker;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::set<MemberKey> planned_;
  std::map<int, std::vector<std::string>> region_keys_;
  std::map<Key, std::string> publisher_ends_;
  std::map<Key, std::string> receiver_ends_;
};

}  // namespace headrace

#endif  // HEADRACE_LOADER_SESSION_PLAN_TABLE_H_
