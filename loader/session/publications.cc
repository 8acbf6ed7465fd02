#include "loader/session/publications.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {

void Publications::Start(const std::map<int, proto::Planned>& publishers, const std::vector<MemberKey>& receivers,
                         int slots) {
  for (const auto& [rank, planned] : publishers) {
    Publisher& publisher = publishers_[rank];
    publisher.slots.assign(slots, 0);
    publisher.last = planned.last_published();
    for (const proto::Held& held : planned.held()) {
      if (held.slot() < 0 || held.slot() >= slots || held.generation() == 0) continue;
      publisher.slots[held.slot()] = held.generation();
      publisher.last = std::max(publisher.last, held.generation());
      incomplete_[held.generation()][rank] = held.slot();
    }
  }
  const std::map<uint64_t, std::map<int, int>> held = incomplete_;
  for (const auto& [generation, _] : held) Complete(generation);
  // Nobody waits for anything else.
  for (auto& [rank, publisher] : publishers_) {
    for (uint64_t& generation : publisher.slots) {
      if (generation == 0 || generation == newest_ || generation == publisher.last) continue;
      if (const auto old = incomplete_.find(generation); old != incomplete_.end()) old->second.erase(rank);
      generation = 0;
    }
  }
  FindVoid();
  for (const MemberKey& receiver : receivers) released_[receiver] = newest_ == 0 ? 0 : newest_ - 1;
}

bool Publications::Complete(uint64_t generation) {
  const std::map<int, int>& slots = incomplete_.at(generation);
  if (slots.size() < publishers_.size()) return false;
  newest_slots_ = slots;
  newest_ = generation;
  // An older generation that lacks a publisher can never be completed: each publisher's numbers grow.
  incomplete_.erase(incomplete_.begin(), incomplete_.upper_bound(generation));
  return true;
}

absl::StatusOr<bool> Publications::Publish(int rank, const proto::Published& published) {
  Publisher& publisher = publishers_.at(rank);
  const uint64_t generation = published.generation();
  if (generation <= publisher.last)
    return Error(ErrorCode::kGenerationNotGrowing,
                 absl::StrCat("publisher rank ", rank, " published generation ", generation, " after generation ",
                              publisher.last, "; within an incarnation generations must grow"));
  if (published.slot() < 0 || published.slot() >= static_cast<int>(publisher.slots.size()))
    return Error(ErrorCode::kOutOfBounds, absl::StrCat("publisher rank ", rank, " published in slot ", published.slot(),
                                                       " of ", publisher.slots.size()));
  uint64_t& held = publisher.slots[published.slot()];
  std::vector<std::string> holders;
  for (const auto& [receiver, released] : released_)
    if (released < held) holders.push_back(NameOf(receiver));
  if (!holders.empty())
    return Error(
        ErrorCode::kGenerationChanged,
        absl::StrCat("publisher rank ", rank, " wrote generation ", generation, " over generation ", held, " in slot ",
                     published.slot(), ", which is still leased by ", absl::StrJoin(holders, ", ")));
  // What was overwritten can never be completed.
  if (const auto old = incomplete_.find(held); old != incomplete_.end()) old->second.erase(rank);
  publisher.last = held = generation;
  incomplete_[generation][rank] = published.slot();
  const bool complete = Complete(generation);
  FindVoid();
  return complete;
}

bool Publications::Withdraw(int rank, uint64_t generation) {
  for (uint64_t& held : publishers_.at(rank).slots)
    if (held == generation) held = 0;
  const auto incomplete = incomplete_.find(generation);
  if (incomplete == incomplete_.end()) return generation <= newest_;
  incomplete->second.erase(rank);
  FindVoid();
  return false;
}

void Publications::FindVoid() {
  std::erase_if(incomplete_, [&](const auto& entry) {
    const auto& [generation, slots] = entry;
    const bool is_void = std::any_of(publishers_.begin(), publishers_.end(),
                                     [&, generation = generation, &slots = slots](const auto& p) {
                                       return p.second.last >= generation && !slots.contains(p.first);
                                     });
    if (!is_void) return false;
    if (!slots.empty()) void_.push_back(generation);
    for (const auto& [rank, slot] : slots) publishers_.at(rank).slots[slot] = 0;
    return true;
  });
}

std::vector<uint64_t> Publications::TakeVoid() { return std::exchange(void_, {}); }

proto::Announced Publications::Announcement() const {
  proto::Announced announced;
  announced.set_generation(newest_);
  for (const auto& [rank, slot] : newest_slots_) {
    proto::Announced::Slot* of = announced.add_slots();
    of->set_publisher(rank);
    of->set_slot(slot);
  }
  return announced;
}

absl::Status Publications::Release(const MemberKey& receiver, uint64_t generation) {
  if (generation == 0 || generation > newest_)
    return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(receiver), " released generation ", generation,
                                                     ", but the newest announced is ", newest_));
  uint64_t& released = released_[receiver];
  released = std::max(released, generation);
  return absl::OkStatus();
}

std::vector<MemberKey> Publications::Lagging() const {
  std::vector<MemberKey> lagging;
  if (incomplete_.empty()) return lagging;
  const std::map<int, int>& slots = incomplete_.begin()->second;
  for (const auto& [rank, _] : publishers_)
    if (!slots.contains(rank)) lagging.push_back(MemberKey::Publisher(rank));
  return lagging;
}

}  // namespace headrace
