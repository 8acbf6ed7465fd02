#include "planner/balance.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"

namespace headrace {

std::vector<int> ChooseSources(absl::Span<const Demand> demands) {
  absl::flat_hash_map<int64_t, Index> load;
  std::vector<int> chosen(demands.size(), 0);
  std::vector<size_t> open;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].ranks.size() == 1) {
      Index& sent = load[demands[i].ranks[0]];
      sent = SaturatedSum(sent, demands[i].bytes);
    } else {
      open.push_back(i);
    }
  }
  std::stable_sort(open.begin(), open.end(), [&](size_t a, size_t b) { return demands[a].bytes > demands[b].bytes; });
  for (size_t i : open) {
    const std::vector<int64_t>& ranks = demands[i].ranks;
    int best = 0;
    for (int c = 1; c < static_cast<int>(ranks.size()); ++c) {
      const Index a = load[ranks[c]], b = load[ranks[best]];
      if (a < b || (a == b && ranks[c] < ranks[best])) best = c;
    }
    chosen[i] = best;
    Index& sent = load[ranks[best]];
    sent = SaturatedSum(sent, demands[i].bytes);
  }
  return chosen;
}

}  // namespace headrace
