#include "planner/cluster/sender_lines.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "planner/balance.h"

namespace headrace {
namespace {

// Candidates of one rail, those before `next` have nothing left.
struct RailSenders {
  std::vector<int32_t> candidates;
  size_t next = 0;
  Index bytes = 0;
};

struct Stretch {
  Index begin = 0;
  Index end = 0;
  int32_t candidate = 0;
};

}  // namespace

RailRoom::RailRoom(const ConsumerSet& set, const SideShape& shape) {
  std::map<int32_t, __int128> rooms;  // times the set's ranks
  for (size_t d = 0; d < set.domains().size(); ++d) {
    const ConsumerDomain& domain = set.domains()[d];
    const bool equal = set.SharesEqually(static_cast<int>(d));
    const std::vector<Index> shares = equal ? std::vector<Index>() : set.Shares(static_cast<int>(d));
    for (int32_t n = 0; n < domain.size; ++n) {
      rooms[RailOf(shape, set.ranks()[domain.first + n])] +=
          equal ? __int128{set.bytes()} : static_cast<__int128>(shares[n]) * domain.size;
    }
  }
  for (const auto& [rail, room] : rooms) {
    rails_.push_back({rail, static_cast<Index>(room / static_cast<__int128>(set.ranks().size()))});
  }
}

void RailRoom::Take(int32_t rail, Index bytes) {
  const auto it =
      std::lower_bound(rails_.begin(), rails_.end(), rail, [](const Entry& e, int32_t r) { return e.rail < r; });
  if (it != rails_.end() && it->rail == rail) it->bytes = std::max<Index>(0, it->bytes - bytes);
}

std::vector<SenderStretch> PlaceSenders(const std::vector<LinePart>& parts, const std::vector<Index>& shares,
                                        const std::vector<int32_t>& rails) {
  std::vector<Index> left = shares;
  std::map<int32_t, RailSenders> senders;
  for (size_t c = 0; c < shares.size(); ++c) {
    RailSenders& rail = senders[rails[c]];
    rail.candidates.push_back(static_cast<int32_t>(c));
    rail.bytes += shares[c];
  }
  std::vector<Stretch> sent;
  std::vector<LinePart> rest;
  // Sends what it can of [begin, end) from candidates of the rail; returns where that ends.
  const auto send = [&](RailSenders& rail, LinePart* part, Index most) {
    while (most > 0) {
      const int32_t c = rail.candidates[rail.next];
      const Index bytes = std::min(most, left[c]);
      if (bytes > 0) sent.push_back({part->begin, part->begin + bytes, c});
      part->begin += bytes;
      part->bytes -= bytes;
      left[c] -= bytes;
      rail.bytes -= bytes;
      most -= bytes;
      rail.next += left[c] == 0;
    }
  };

  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parts[a].room->rails().size() < parts[b].room->rails().size(); });
  if (senders.size() == 1) rest = parts;  // no choice
  for (const size_t p : order) {
    if (senders.size() == 1) break;
    LinePart part = parts[p];
    while (part.bytes > 0) {
      int32_t best = -1;
      Index most = 0;
      for (const RailRoom::Entry& entry : part.room->rails()) {
        const auto it = senders.find(entry.rail);
        if (it == senders.end()) continue;
        const Index bytes = std::min(entry.bytes, it->second.bytes);
        if (bytes > most) best = entry.rail, most = bytes;
      }
      // A stripe is not shorter than that.
      if (most < std::min(part.bytes, kMinStripeBytes)) break;
      most = std::min(most, part.bytes);
      send(senders[best], &part, most);
      part.room->Take(best, most);
    }
    if (part.bytes > 0) rest.push_back(part);
  }
  std::sort(rest.begin(), rest.end(), [](const LinePart& a, const LinePart& b) { return a.begin < b.begin; });
  size_t next = 0;
  for (LinePart part : rest) {
    while (part.bytes > 0) {
      while (left[next] == 0) ++next;
      RailSenders& rail = senders[rails[next]];
      const Index bytes = std::min(part.bytes, left[next]);
      // Those before it on its rail have nothing left, since candidates are gone through in order.
      send(rail, &part, bytes);
      part.room->Take(rails[next], bytes);
    }
  }
  std::sort(sent.begin(), sent.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  std::vector<SenderStretch> out;
  for (const Stretch& s : sent) {
    if (out.empty() || out.back().candidate != s.candidate) out.push_back({s.begin, s.candidate});
  }
  return out;
}

}  // namespace headrace
