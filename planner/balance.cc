#include "planner/balance.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "planner/fair_shares.h"

namespace headrace {
namespace {

// The smallest stripe of a demand.
Index Unit(const Demand& d) { return (kMinStripeBytes + d.grain - 1) / d.grain * d.grain; }

bool Divisible(const Demand& d) { return d.bytes / 2 >= Unit(d); }

// What cannot be handed out in parts.
Index Atom(const Demand& d) { return Divisible(d) ? Unit(d) : d.bytes; }

// a - b for b >= 0, but not less than -2^61: sums over a whole job may exceed 64 bits.
Index Minus(Index a, Index b) {
  constexpr Index kLeast = -(Index{1} << 61);
  Index difference;
  return __builtin_sub_overflow(a, b, &difference) || difference < kLeast ? kLeast : difference;
}

// Demands with the same candidate ranks.
struct Class {
  std::vector<int> ranks;       // indices of ranks, ascending
  std::vector<size_t> demands;  // in their order
  Index bytes = 0;
  Index largest_atom = 0;
};

class Sharing {
 public:
  explicit Sharing(absl::Span<const Demand> demands) : demands_(demands), stripes_(demands.size()) {
    for (const Demand& d : demands) {
      for (int64_t r : d.ranks) {
        if (index_.try_emplace(r, 0).second) ranks_.push_back(r);
      }
    }
    std::sort(ranks_.begin(), ranks_.end());
    for (size_t r = 0; r < ranks_.size(); ++r) index_[ranks_[r]] = static_cast<int>(r);
  }

  std::vector<Stripes> Run() && {
    MakeClasses();
    // Of sums near 64 bits and beyond, as no real job has them, shares are found in coarser units, and nothing is cut.
    Index unit = 1;
    for (Index total = 0; const Class& c : classes_) {
      total = SaturatedSum(total, c.bytes);
      if (total > kMostBytes) unit = Index{1} << 24;
    }
    std::vector<SharedLoad> loads;
    for (const Class& c : classes_) loads.push_back({std::max<Index>(c.bytes / unit, 1), c.ranks});
    const std::vector<std::vector<Index>> fair = FairShares(loads, static_cast<int>(ranks_.size()));
    std::vector<size_t> order(classes_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return classes_[a].largest_atom > classes_[b].largest_atom; });
    ahead_.assign(ranks_.size(), 0);
    for (size_t c : order) {
      std::vector<Index> due = fair[c];
      for (Index& bytes : due) bytes *= unit;
      HandOut(classes_[c], std::move(due), unit == 1);
    }
    return std::move(stripes_);
  }

 private:
  static constexpr Index kMostBytes = Index{1} << 61;

  // Demands with one candidate need no choice, but load their rank: their stripes are made here.
  void MakeClasses() {
    absl::flat_hash_map<std::vector<int>, size_t> known;
    std::vector<int> alone(ranks_.size(), -1);  // the class of each rank's demands that nobody else can send
    std::vector<int> ranks;
    for (size_t i = 0; i < demands_.size(); ++i) {
      const Demand& d = demands_[i];
      if (d.bytes == 0) {
        stripes_[i] = {{0, 0}};
        continue;
      }
      if (d.ranks.size() == 1) {
        const int rank = index_.at(d.ranks[0]);
        if (alone[rank] < 0) {
          alone[rank] = static_cast<int>(classes_.size());
          classes_.push_back({{rank}, {}, 0, 0});
        }
        stripes_[i] = {{0, d.bytes}};
        Class& c = classes_[alone[rank]];
        c.bytes = SaturatedSum(c.bytes, d.bytes);
        continue;
      }
      ranks.clear();
      for (int64_t r : d.ranks) ranks.push_back(index_.at(r));
      std::sort(ranks.begin(), ranks.end());
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      const auto [it, fresh] = known.try_emplace(ranks, classes_.size());
      if (fresh) classes_.push_back({ranks, {}, 0, 0});
      Class& c = classes_[it->second];
      c.demands.push_back(i);
      c.bytes = SaturatedSum(c.bytes, d.bytes);
      c.largest_atom = std::max(c.largest_atom, Atom(d));
    }
  }

  void Give(size_t demand, int rank, Index bytes) {
    const std::vector<int64_t>& ranks = demands_[demand].ranks;
    const auto chosen = std::find(ranks.begin(), ranks.end(), ranks_[rank]);
    stripes_[demand].push_back({static_cast<int>(chosen - ranks.begin()), bytes});
  }

  // Hands out the demands of a class, of which rank c.ranks[k] is due `due[k]` bytes, and less where it is ahead.
  void HandOut(const Class& c, std::vector<Index> due, bool cut) {
    if (c.demands.empty()) return;  // one candidate
    for (size_t k = 0; k < due.size(); ++k) due[k] = due[k] - ahead_[c.ranks[k]];
    std::vector<size_t> order = c.demands;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return demands_[a].bytes > demands_[b].bytes; });
    for (size_t d : order) {
      const Demand& demand = demands_[d];
      const Index unit = Unit(demand);
      for (Index left = demand.bytes; left > 0;) {
        const size_t k = std::max_element(due.begin(), due.end()) - due.begin();
        Index take = left;
        if (cut && left / 2 >= unit && due[k] <= left - unit / 2) {
          // To the nearest grain, and so that neither this stripe nor the rest is too small.
          const Index wanted = (std::max<Index>(due[k], 0) + demand.grain / 2) / demand.grain * demand.grain;
          take = std::clamp(wanted, unit, left - unit);
        }
        Give(d, c.ranks[k], take);
        due[k] = Minus(due[k], take);
        left -= take;
      }
    }
    for (size_t k = 0; k < due.size(); ++k) ahead_[c.ranks[k]] = -due[k];
  }

  const absl::Span<const Demand> demands_;
  std::vector<Stripes> stripes_;
  std::vector<int64_t> ranks_;  // all candidates, ascending
  absl::flat_hash_map<int64_t, int> index_;
  std::vector<Class> classes_;
  std::vector<Index> ahead_;  // what each rank got more than its due so far
};

}  // namespace

std::vector<Stripes> ShareOut(absl::Span<const Demand> demands) { return Sharing(demands).Run(); }

}  // namespace headrace
