#include "loader/session/publications.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/status.h"

namespace headrace {
namespace {

constexpr size_t kMaxNamedTensors = 8;

std::string NamesOf(const std::set<int>& publishers) {
  return absl::StrCat("publisher rank ", absl::StrJoin(publishers, ", "));
}

}  // namespace

void Publications::Start(const std::map<int, proto::Planned>& publishers, const std::vector<MemberKey>& receivers,
                         int slots) {
  for (const auto& [rank, planned] : publishers) {
    Publisher& publisher = publishers_[rank];
    publisher.slots.assign(slots, 0);
    publisher.last = planned.last_published();
    publisher.replicas = planned.replicas_size();
    for (int i = 0; i < planned.replicas_size(); ++i) {
      Replicated& replicated = replicas_[planned.replicas(i).id()];
      replicated.tensor = planned.replicas(i).tensor();
      replicated.sums.push_back({rank, i});
    }
    for (const proto::Held& held : planned.held()) {
      if (held.slot() < 0 || held.slot() >= slots || held.generation() == 0) continue;
      if (held.sums_size() != publisher.replicas) continue;
      publisher.slots[held.slot()] = held.generation();
      publisher.last = std::max(publisher.last, held.generation());
      incomplete_[held.generation()][rank] = {held.slot(), {held.sums().begin(), held.sums().end()}};
    }
  }
  std::vector<uint64_t> held;
  for (const auto& [generation, _] : incomplete_) held.push_back(generation);
  for (uint64_t generation : held) Complete(generation);
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
  const Parts& parts = incomplete_.at(generation);
  if (parts.size() < publishers_.size()) return false;
  if (const absl::Status differ = CompareReplicas(generation, parts); !differ.ok()) {
    GiveUp(generation, parts, differ);
    incomplete_.erase(generation);
    return false;
  }
  newest_slots_.clear();
  for (const auto& [rank, part] : parts) newest_slots_[rank] = part.slot;
  newest_ = generation;
  // An older generation that lacks a publisher can never be completed: each publisher's numbers grow.
  incomplete_.erase(incomplete_.begin(), incomplete_.upper_bound(generation));
  return true;
}

absl::Status Publications::CompareReplicas(uint64_t generation, const Parts& parts) const {
  std::map<std::string, std::vector<std::string>> tensors;  // where each differs, in words
  ErrorSubject subject;
  for (const auto& [id, replicated] : replicas_) {
    const auto sum_of = [&](const std::pair<int, int>& of) { return parts.at(of.first).sums[of.second]; };
    if (std::all_of(replicated.sums.begin(), replicated.sums.end(),
                    [&](const auto& of) { return sum_of(of) == sum_of(replicated.sums[0]); }))
      continue;
    std::map<uint64_t, std::set<int>> publishers;  // by their sum
    for (const auto& of : replicated.sums) publishers[sum_of(of)].insert(of.first);
    std::vector<std::set<int>> sides;
    for (auto& [_, side] : publishers) sides.push_back(std::move(side));
    std::sort(sides.begin(), sides.end());
    // The fewest are the likeliest to be wrong.
    const std::set<int>& fewest =
        *std::min_element(sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    if (tensors.empty())
      subject = {replicated.tensor, "", *fewest.begin(), NameOf(MemberKey::Publisher(*fewest.begin()))};
    std::vector<std::string> names;
    for (const std::set<int>& side : sides) names.push_back(NamesOf(side));
    std::vector<std::string>& places = tensors[replicated.tensor];
    const std::string place = absl::StrJoin(names, " and of ");
    if (places.size() < kMaxNamedTensors && std::find(places.begin(), places.end(), place) == places.end())
      places.push_back(place);
  }
  if (tensors.empty()) return absl::OkStatus();
  std::vector<std::string> found;
  for (const auto& [tensor, places] : tensors) {
    if (found.size() == kMaxNamedTensors) break;
    found.push_back(absl::StrCat("tensor \"", tensor, "\" of ", absl::StrJoin(places, ", and of ")));
  }
  const size_t more = tensors.size() - found.size();
  return About(Error(ErrorCode::kReplicaDivergence,
                     absl::StrCat("generation ", generation,
                                  " was given up: replicas hold different bytes: ", absl::StrJoin(found, "; "),
                                  more > 0 ? absl::StrCat("; and ", more, " more tensors") : "",
                                  ". Bring the trainer's replicas together and publish again")),
               subject);
}

void Publications::GiveUp(uint64_t generation, const Parts& parts, const absl::Status& why) {
  void_.push_back({generation, why});
  for (const auto& [rank, part] : parts) publishers_.at(rank).slots[part.slot] = 0;
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
  if (published.sums_size() != publisher.replicas)
    return Error(ErrorCode::kMalformed,
                 absl::StrCat("publisher rank ", rank, " published generation ", generation, " with ",
                              published.sums_size(), " sums of ", publisher.replicas, " replicas"));
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
  incomplete_[generation][rank] = {published.slot(), {published.sums().begin(), published.sums().end()}};
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
    const auto& [generation, parts] = entry;
    const bool is_void = std::any_of(publishers_.begin(), publishers_.end(),
                                     [&, generation = generation, &parts = parts](const auto& p) {
                                       return p.second.last >= generation && !parts.contains(p.first);
                                     });
    if (is_void && !parts.empty()) GiveUp(generation, parts, absl::OkStatus());
    return is_void;
  });
}

std::vector<Publications::Void> Publications::TakeVoid() { return std::exchange(void_, {}); }

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
  const Parts& parts = incomplete_.begin()->second;
  for (const auto& [rank, _] : publishers_)
    if (!parts.contains(rank)) lagging.push_back(MemberKey::Publisher(rank));
  return lagging;
}

}  // namespace headrace
