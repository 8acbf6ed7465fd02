#include "planner/cluster/consumers.h"

#include <algorithm>
#include <utility>

namespace headrace {

ConsumerSet::ConsumerSet(std::vector<int32_t> ranks, int32_t ranks_per_domain) : ranks_(std::move(ranks)) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (i == 0 || ranks_[i] / ranks_per_domain != ranks_[i - 1] / ranks_per_domain) {
      domains_.push_back({static_cast<int32_t>(i), 0});
    }
    ++domains_.back().size;
  }
  for (const ConsumerDomain& d : domains_) different_sizes_.push_back(d.size);
  std::sort(different_sizes_.begin(), different_sizes_.end());
  different_sizes_.erase(std::unique(different_sizes_.begin(), different_sizes_.end()), different_sizes_.end());
  sizes_ = different_sizes_.size();
  for (const ConsumerDomain& d : domains_) {
    const auto it = std::lower_bound(different_sizes_.begin(), different_sizes_.end(), d.size);
    size_number_.push_back(static_cast<int32_t>(it - different_sizes_.begin()));
  }
}

Index ConsumerSet::AddBytes(Index bytes) {
  const Index begin = bytes_;
  bytes_ += bytes;
  return begin;
}

void ConsumerSet::PlaceEntries() {
  std::vector<std::pair<Index, size_t>> cuts;  // place, size that is cut there
  for (size_t s = 0; s < sizes_; ++s) {
    const Index size = different_sizes_[s];
    for (Index part = 1; part < size; ++part) {
      cuts.emplace_back(static_cast<Index>(static_cast<__int128>(bytes_) * part / size), s);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<int32_t> place(sizes_, 0);
  entries_ = place;
  for (const auto& [border, size] : cuts) {
    borders_.push_back(border);
    ++place[size];
    entries_.insert(entries_.end(), place.begin(), place.end());
  }
}

int ConsumerSet::DomainOf(int32_t index) const {
  const auto it = std::upper_bound(domains_.begin(), domains_.end(), index,
                                   [](int32_t i, const ConsumerDomain& d) { return i < d.first; });
  return static_cast<int>(it - domains_.begin()) - 1;
}

TreePlace ConsumerSet::PlaceOf(int32_t index, int domain, int first_domain, int section) const {
  const ConsumerDomain& d = domains_[domain];
  const int32_t entry = d.first + entries_[section * sizes_ + size_number_[domain]];
  auto beside = [&](int32_t step) { return ranks_[d.first + (index - d.first + step + d.size) % d.size]; };
  TreePlace place;
  const int count = static_cast<int>(domains_.size());
  if (index == entry) {
    if (domain != first_domain) place.from = Entry((domain + count - 1) % count, section);
    if ((domain + 1) % count != first_domain) place.next_domain = Entry((domain + 1) % count, section);
  } else {
    place.from = beside(-1);
  }
  if (d.size > 1 && beside(1) != ranks_[entry]) place.next_inside = beside(1);
  return place;
}

}  // namespace headrace
