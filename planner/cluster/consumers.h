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
//
// A *door* says which consumer is the entry of each domain. All bytes of a section of the line use the same one. For
// how many bytes each consumer is the entry is settled before (entry_shares.h).

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/cluster/cluster.h"
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
  int32_t legs = 0;          // from the sender to here
};

// From there on a line's bytes come from senders on this rail.
struct RailRun {
  Index begin = 0;
  int32_t rail = 0;
};

class ConsumerSet {
 public:
  // `ranks` ascending, all different, not empty, of the side `shape`.
  ConsumerSet(std::vector<int32_t> ranks, const SideShape& shape);

  const std::vector<int32_t>& ranks() const { return ranks_; }
  const std::vector<ConsumerDomain>& domains() const { return domains_; }

  // All that goes to this set lies on one line of bytes, in the order in which it was added; returns where the bytes
  // begin.
  Index AddBytes(Index bytes);
  Index bytes() const { return bytes_; }

  // For how many bytes of the line each consumer of a domain is the entry, in their order: equal parts unless others
  // are set, which add up to bytes(). Set after the last AddBytes and before PlaceEntries.
  void SetShares(int domain, std::vector<Index> shares);
  std::vector<Index> Shares(int domain) const;
  bool SharesEqually(int domain) const { return shares_.empty() || shares_[domain].empty(); }

  // After the last AddBytes: which ranks are entries, by place on the line. Each consumer gets its share in as many
  // stretches as it takes to get, first, bytes from senders on its own rail, and then bytes that the domains which are
  // most alike enter on its rail. So in each domain as many bytes come from senders on their entry's rail as the shares
  // allow. `senders` tells whose rail the line's bytes are from: ascending, the first one from 0 on; not empty.
  // O((runs + consumers of a domain) x (different rails and shares that domains have)).
  void PlaceEntries(absl::Span<const RailRun> senders);

  // Where one section ends and the next begins. Ascending, inside of the line.
  const std::vector<Index>& borders() const { return borders_; }
  // By section, of which there is one more than borders.
  const std::vector<int32_t>& doors() const { return doors_; }
  // By door, then by kind of domain: the entry's place among the domain's consumers.
  const std::vector<int32_t>& entry_places() const { return entry_places_; }
  int32_t Entry(int domain, int door) const {
    return ranks_[domains_[domain].first + entry_places_[door * kinds_ + kind_of_[domain]]];
  }

  // Of the rank at `index` of ranks(), in domain `domain`, for bytes whose chain begins at `first_domain`.
  TreePlace PlaceOf(int32_t index, int domain, int first_domain, int door) const;
  int DomainOf(int32_t index) const;

 private:
  std::vector<int32_t> ranks_;
  std::vector<ConsumerDomain> domains_;
  std::vector<std::vector<int32_t>> rails_;  // by domain, of its consumers
  std::vector<std::vector<Index>> shares_;   // by domain, those that are set
  Index bytes_ = 0;
  int32_t kinds_ = 0;             // domains of one kind have the same rails and shares
  std::vector<int32_t> kind_of_;  // by domain; the kind of the most domains first
  std::vector<Index> borders_;
  std::vector<int32_t> doors_;
  std::vector<int32_t> entry_places_;
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_CONSUMERS_H_
