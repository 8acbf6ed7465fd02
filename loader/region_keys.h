#ifndef HEADRACE_LOADER_REGION_KEYS_H_
#define HEADRACE_LOADER_REGION_KEYS_H_

// The keys that a publisher hands to the receivers of an epoch, on transports that map: one list in Planned and
// EpochReady, whose order both ends know from the plan.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loader/epoch_plan.h"
#include "loader/session/types.h"

namespace headrace {

struct RegionKeys {
  std::vector<std::string> slots;
  std::string sums;
  // Of a publisher that holds its weights:
  std::map<MemberKey, std::string> rings;  // of each receiver with which it shares an edge
  std::map<int, std::string> memory;       // of each buffer that copies read, by its index; empty: it cannot be read
};

// The receivers and the source buffers of a publisher's edges.
std::set<MemberKey> ReceiversOf(const EpochPlan& plan, int publisher);
std::set<int> BuffersReadOf(const EpochPlan& plan, int publisher);

std::vector<std::string> ToList(const RegionKeys& keys);
// kMalformed: as many keys as this epoch's plan asks for were not there; names the publisher.
absl::StatusOr<RegionKeys> RegionKeysOf(const std::vector<std::string>& list, const EpochPlan& plan, int publisher,
                                        bool hold);

}  // namespace headrace

#endif  // HEADRACE_LOADER_REGION_KEYS_H_
