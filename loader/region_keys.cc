#include "loader/region_keys.h"

#include "absl/strings/str_cat.h"
#include "loader/slot.h"
#include "planner/status.h"

namespace headrace {

std::set<MemberKey> ReceiversOf(const EpochPlan& plan, int publisher) {
  std::set<MemberKey> receivers;
  for (const Edge& edge : plan.EdgesOf(MemberKey::Publisher(publisher))) {
    receivers.insert(plan.ReceiverOf(edge.destination_rank));
  }
  return receivers;
}

std::set<int> BuffersReadOf(const EpochPlan& plan, int publisher) {
  std::set<int> buffers;
  for (const Edge& edge : plan.EdgesOf(MemberKey::Publisher(publisher))) {
    for (size_t i = 0; i < edge.count; ++i) buffers.insert(plan.plan().copies[edge.first + i].source);
  }
  return buffers;
}

std::vector<std::string> ToList(const RegionKeys& keys) {
  std::vector<std::string> list = keys.slots;
  list.push_back(keys.sums);
  for (const auto& [_, key] : keys.rings) list.push_back(key);
  for (const auto& [_, key] : keys.memory) list.push_back(key);
  return list;
}

absl::StatusOr<RegionKeys> RegionKeysOf(const std::vector<std::string>& list, const EpochPlan& plan, int publisher,
                                        bool hold) {
  const size_t slots = hold ? 1 : kSnapshotSlots;
  const std::set<MemberKey> receivers = hold ? ReceiversOf(plan, publisher) : std::set<MemberKey>();
  const std::set<int> buffers = hold ? BuffersReadOf(plan, publisher) : std::set<int>();
  const size_t wanted = slots + 1 + receivers.size() + buffers.size();
  if (list.size() != wanted) {
    return Error(ErrorCode::kMalformed, absl::StrCat("publisher rank ", publisher, " gave ", list.size(),
                                                     " keys of its memory; the plan asks for ", wanted));
  }
  RegionKeys keys;
  auto next = list.begin();
  for (size_t i = 0; i < slots; ++i) keys.slots.push_back(*next++);
  keys.sums = *next++;
  for (const MemberKey& receiver : receivers) keys.rings[receiver] = *next++;
  for (const int buffer : buffers) keys.memory[buffer] = *next++;
  return keys;
}

}  // namespace headrace
