#ifndef HEADRACE_PLANNER_CLUSTER_CONSUMERS_H_
#define HEADRACE_PLANNER_CLUSTER_CONSUMERS_H_

// The destination ranks that want the same bytes, and the tree through which these reach them.
//
//   consumers 1 3 | 5 7 of two NVLink domains       sender -> 3 -> 7      the entries 3 and 7: between domains
//   first domain 0, place 1 of each domain                    3 -> 1 , 7 -> 5   within
//
// Bytes enter each domain once, at one of its consumers: the *entry*. The entries are a chain, which begins at any
// domain and goes round; within a domain the consumers are a chain that begins at the entry and goes round. So each
// rank passes bytes on at most once over the network and at most once within its domain.

#include <cstdint>
#include <vector>

#include "planner/manifest.h"

namespace headrace {

// The consumers of one domain: ranks [first, first + size) of ConsumerSet::ranks.
struct ConsumerDomain {
  int32_t first = 0;
  int32_t size = 0;
};

// Where a consumer stands in the tree of some bytes. Destination ranks; -1: the sender, or nobody.
struct TreePlace {
  int32_t from = -1;
  int32_t next_domain = -1;  // the entry of the next domain
  int32_t next_inside = -1;  // the next rank of the domain
};

class ConsumerSet {
 public:
  // `ranks` ascending, all different, not empty.
  ConsumerSet(std::vector<int32_t> ranks, int32_t ranks_per_domain);

  const std::vector<int32_t>& ranks() const { return ranks_; }
  const std::vector<ConsumerDomain>& domains() const { return domains_; }

  // All that goes to this set lies on one line of bytes, in the order in which it was added; returns where the bytes
  // begin.
  Index AddBytes(Index bytes);
  Index bytes() const { return bytes_; }

  // After the last AddBytes: which ranks are entries, by place on the line. A domain of n consumers cuts the line into
  // n equal parts, one for each of its consumers; all domains' borders together cut it into sections.
  void PlaceEntries();
  // Ascending, inside of the line; of section s the first byte is borders()[s - 1].
  const std::vector<Index>& borders() const { return borders_; }
  int32_t Entry(int domain, int section) const {
    return ranks_[domains_[domain].first + entries_[section * sizes_ + size_number_[domain]]];
  }

  // Of the rank at `index` of ranks(), in domain `domain`, for bytes of a section whose chain begins at `first_domain`.
  TreePlace PlaceOf(int32_t index, int domain, int first_domain, int section) const;
  int DomainOf(int32_t index) const;

 private:
  std::vector<int32_t> ranks_;
  std::vector<ConsumerDomain> domains_;
  std::vector<int32_t> size_number_;  // by domain: which of the different sizes it has
  std::vector<int32_t> different_sizes_;
  Index bytes_ = 0;
  size_t sizes_ = 0;  // how many different ones
  std::vector<Index> borders_;
  std::vector<int32_t> entries_;  // by section, then size: place of the entry in a domain of that size
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CONSUMERS_H_
