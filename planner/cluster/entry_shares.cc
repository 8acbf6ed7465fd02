#include "planner/cluster/entry_shares.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "planner/fair_shares.h"

namespace headrace {
namespace {

// One set's consumers in a domain.
struct Visit {
  ConsumerSet* set = nullptr;
  int domain = 0;  // of the set

  absl::Span<const int32_t> ranks() const {
    const ConsumerDomain& d = set->domains()[domain];
    return absl::MakeConstSpan(set->ranks()).subspan(d.first, d.size);
  }
};

// A rank that stands for all that it shares sets with.
int32_t Find(std::vector<int32_t>& parent, int32_t rank) {
  while (parent[rank] != rank) rank = parent[rank] = parent[parent[rank]];
  return rank;
}

bool NearlyAs(Index more, Index less) { return more - less <= less / 100; }

// The visits of ranks that are apart from all others of their domain, which begins at `first`.
void ShareOut(const std::vector<Visit>& visits, int32_t first, int32_t ranks) {
  std::vector<int> place(ranks, -1);  // among the ranks that are visited, by rank of the domain
  for (const Visit& v : visits) {
    for (const int32_t rank : v.ranks()) place[rank - first] = 0;
  }
  int count = 0;
  for (int& p : place) {
    if (p == 0) p = count++;
  }
  std::vector<Index> equal(count, 0);
  std::vector<SharedLoad> loads;
  for (const Visit& v : visits) {
    SharedLoad& load = loads.emplace_back();
    load.bytes = v.set->bytes();
    const std::vector<Index> shares = v.set->Shares(v.domain);
    for (size_t n = 0; n < shares.size(); ++n) {
      load.candidates.push_back(place[v.ranks()[n] - first]);
      equal[load.candidates.back()] += shares[n];
    }
  }
  const auto [fewest, most] = std::minmax_element(equal.begin(), equal.end());
  if (NearlyAs(*most, *fewest)) return;  // no way has less than the mean
  std::vector<std::vector<Index>> fair = FairShares(loads, count);
  std::vector<Index> level(count, 0);
  for (size_t l = 0; l < loads.size(); ++l) {
    for (size_t n = 0; n < fair[l].size(); ++n) level[loads[l].candidates[n]] += fair[l][n];
  }
  if (NearlyAs(*most, *std::max_element(level.begin(), level.end()))) return;
  for (size_t l = 0; l < loads.size(); ++l) {
    if (fair[l].size() > 1) visits[l].set->SetShares(visits[l].domain, std::move(fair[l]));
  }
}

}  // namespace

void ShareEntries(const SideShape& shape, std::vector<ConsumerSet>* sets) {
  std::vector<int32_t> parent(shape.ranks);
  std::iota(parent.begin(), parent.end(), 0);
  std::vector<Visit> visits;
  for (ConsumerSet& set : *sets) {
    for (size_t d = 0; d < set.domains().size(); ++d) {
      const Visit& visit = visits.emplace_back(&set, static_cast<int>(d));
      for (const int32_t rank : visit.ranks()) parent[Find(parent, rank)] = Find(parent, visit.ranks()[0]);
    }
  }
  std::map<int32_t, std::vector<Visit>> apart;
  for (const Visit& visit : visits) apart[Find(parent, visit.ranks()[0])].push_back(visit);
  for (const auto& [rank, of] : apart) {
    const int32_t first = rank / shape.ranks_per_domain * shape.ranks_per_domain;
    ShareOut(of, first, std::min(shape.ranks_per_domain, shape.ranks - first));
  }
}

}  // namespace headrace
