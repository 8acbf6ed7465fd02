#include "loader/session/publications.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {

void Publications::Start(const std::vector<MemberKey>& receivers, int slots) {
  for (const MemberKey& receiver : receivers) released_[receiver] = 0;
  for (Publisher& publisher : publishers_) publisher.slots.assign(slots, 0);
}

absl::StatusOr<std::optional<proto::Announced>> Publications::Publish(int rank, const proto::Published& published) {
  Publisher& publisher = publishers_[rank];
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
  publisher.last = held = generation;
  std::map<int, int>& slots = incomplete_[generation];
  slots[rank] = published.slot();
  if (slots.size() < publishers_.size()) return std::nullopt;
  proto::Announced announced;
  announced.set_generation(generation);
  for (const auto& [_, slot] : slots) announced.add_slots(slot);
  last_announced_ = generation;
  // An older generation that lacks a publisher can never be completed: each publisher's numbers grow.
  incomplete_.erase(incomplete_.begin(), incomplete_.upper_bound(generation));
  return announced;
}

absl::Status Publications::Release(const MemberKey& receiver, uint64_t generation) {
  if (generation == 0 || generation > last_announced_)
    return Error(ErrorCode::kMalformed, absl::StrCat(NameOf(receiver), " released generation ", generation,
                                                     ", but the newest announced is ", last_announced_));
  uint64_t& released = released_[receiver];
  released = std::max(released, generation);
  return absl::OkStatus();
}

std::vector<MemberKey> Publications::Lagging() const {
  std::vector<MemberKey> lagging;
  if (incomplete_.empty()) return lagging;
  const std::map<int, int>& slots = incomplete_.begin()->second;
  for (int rank = 0; rank < static_cast<int>(publishers_.size()); ++rank)
    if (!slots.contains(rank)) lagging.push_back(MemberKey::Publisher(rank));
  return lagging;
}

}  // namespace headrace
