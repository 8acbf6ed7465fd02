#include "planner/cluster/consumers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace headrace {
namespace {

struct Part {
  Index begin = 0;
  Index end = 0;
  int32_t place = -1;  // of the entry among a domain's consumers
};

// Shares a line out to the consumers of one kind of domain.
class EntrySharing {
 public:
  EntrySharing(const std::vector<int32_t>& rails, std::vector<Index> shares, Index bytes) : room_(std::move(shares)) {
    for (size_t n = 0; n < rails.size(); ++n) places_[rails[n]].push_back(static_cast<int32_t>(n));
    open_.push_back({0, bytes});
  }

  // What is still open goes to those on the rail that is wanted for it, while they have room.
  void Prefer(absl::Span<const RailRun> wanted) {
    std::vector<Part> open;
    for (const Part& part : open_) {
      auto run = std::upper_bound(wanted.begin(), wanted.end(), part.begin,
                                  [](Index at, const RailRun& r) { return at < r.begin; }) -
                 1;
      for (Index at = part.begin; at < part.end; ++run) {
        const Index end = run + 1 == wanted.end() ? part.end : std::min(part.end, (run + 1)->begin);
        if (const auto places = places_.find(run->rail); places != places_.end()) at = Give(at, end, places->second);
        if (at < end) open.push_back({at, end});
        at = end;
      }
    }
    open_ = std::move(open);
  }

  // The rest goes to whoever has room. The parts, ascending.
  std::vector<Part> Finish() && {
    std::vector<int32_t> all(room_.size());
    for (size_t n = 0; n < all.size(); ++n) all[n] = static_cast<int32_t>(n);
    for (const Part& part : open_) Give(part.begin, part.end, all);
    std::sort(given_.begin(), given_.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    return std::move(given_);
  }

 private:
  // Returns where what could be given ends.
  Index Give(Index begin, Index end, const std::vector<int32_t>& places) {
    for (const int32_t place : places) {
      const Index bytes = std::min(room_[place], end - begin);
      if (bytes == 0) continue;
      room_[place] -= bytes;
      given_.push_back({begin, begin + bytes, place});
      begin += bytes;
    }
    return begin;
  }

  std::vector<Index> room_;                         // by place
  std::map<int32_t, std::vector<int32_t>> places_;  // by rail
  std::vector<Part> open_, given_;
};

}  // namespace

ConsumerSet::ConsumerSet(std::vector<int32_t> ranks, const SideShape& shape) : ranks_(std::move(ranks)) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (i == 0 || ranks_[i] / shape.ranks_per_domain != ranks_[i - 1] / shape.ranks_per_domain) {
      domains_.push_back({static_cast<int32_t>(i), 0});
      rails_.emplace_back();
    }
    ++domains_.back().size;
    rails_.back().push_back(RailOf(shape, ranks_[i]));
  }
}

Index ConsumerSet::AddBytes(Index bytes) {
  const Index begin = bytes_;
  bytes_ += bytes;
  return begin;
}

void ConsumerSet::SetShares(int domain, std::vector<Index> shares) {
  shares_.resize(domains_.size());
  shares_[domain] = std::move(shares);
}

std::vector<Index> ConsumerSet::Shares(int domain) const {
  if (!SharesEqually(domain)) return shares_[domain];
  const Index count = domains_[domain].size;
  const auto cut = [&](Index n) { return static_cast<Index>(static_cast<__int128>(bytes_) * n / count); };
  std::vector<Index> shares;
  for (Index n = 0; n < count; ++n) shares.push_back(cut(n + 1) - cut(n));
  return shares;
}

void ConsumerSet::PlaceEntries(absl::Span<const RailRun> senders) {
  using Kind = std::pair<std::vector<int32_t>, std::vector<Index>>;  // rails; shares, none where they are equal
  const auto kind_at = [&](size_t d) {
    return Kind(rails_[d], SharesEqually(static_cast<int>(d)) ? std::vector<Index>() : shares_[d]);
  };
  std::map<Kind, std::vector<size_t>> alike;  // domains
  for (size_t d = 0; d < domains_.size(); ++d) alike[kind_at(d)].push_back(d);
  std::vector<std::vector<size_t>> kinds;
  for (auto& [kind, of] : alike) kinds.push_back(std::move(of));
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  kinds_ = static_cast<int32_t>(kinds.size());
  kind_of_.resize(domains_.size());

  struct Change {
    Index at;
    size_t kind;
    int32_t place;
  };
  std::vector<Change> changes;
  std::vector<RailRun> first_kind;  // on which rails its domains are entered
  for (size_t k = 0; k < kinds.size(); ++k) {
    for (size_t d : kinds[k]) kind_of_[d] = static_cast<int32_t>(k);
    const size_t domain = kinds[k][0];
    EntrySharing sharing(rails_[domain], Shares(static_cast<int>(domain)), bytes_);
    sharing.Prefer(senders);
    if (k > 0) sharing.Prefer(first_kind);
    for (const Part& part : std::move(sharing).Finish()) {
      changes.push_back({part.begin, k, part.place});
      if (k == 0) first_kind.push_back({part.begin, rails_[domain][part.place]});
    }
  }
  std::sort(changes.begin(), changes.end(),
            [](const Change& a, const Change& b) { return std::pair(a.at, a.kind) < std::pair(b.at, b.kind); });
  std::map<std::vector<int32_t>, int32_t> numbers;
  std::vector<int32_t> places(kinds.size(), 0);
  for (size_t c = 0; c < changes.size();) {
    const Index at = changes[c].at;
    for (; c < changes.size() && changes[c].at == at; ++c) places[changes[c].kind] = changes[c].place;
    const auto [door, fresh] = numbers.try_emplace(places, static_cast<int32_t>(numbers.size()));
    if (fresh) entry_places_.insert(entry_places_.end(), places.begin(), places.end());
    if (!doors_.empty() && doors_.back() == door->second) continue;
    if (at > 0) borders_.push_back(at);
    doors_.push_back(door->second);
  }
}

int ConsumerSet::DomainOf(int32_t index) const {
  const auto it = std::upper_bound(domains_.begin(), domains_.end(), index,
                                   [](int32_t i, const ConsumerDomain& d) { return i < d.first; });
  return static_cast<int>(it - domains_.begin()) - 1;
}

TreePlace ConsumerSet::PlaceOf(int32_t index, int domain, int first_domain, int door) const {
  const ConsumerDomain& d = domains_[domain];
  const int32_t entry = d.first + entry_places_[door * kinds_ + kind_of_[domain]];
  auto beside = [&](int32_t step) { return ranks_[d.first + (index - d.first + step + d.size) % d.size]; };
  TreePlace place;
  const int count = static_cast<int>(domains_.size());
  if (index == entry) {
    if (domain != first_domain) place.from = Entry((domain + count - 1) % count, door);
    if ((domain + 1) % count != first_domain) place.next_domain = Entry((domain + 1) % count, door);
  } else {
    place.from = beside(-1);
  }
  place.legs = 1 + (domain - first_domain + count) % count + (index - entry + d.size) % d.size;
  if (d.size > 1 && beside(1) != ranks_[entry]) place.next_inside = beside(1);
  return place;
}

}  // namespace headrace
