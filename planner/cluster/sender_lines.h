#ifndef HEADRACE_PLANNER_CLUSTER_SENDER_LINES_H_
#define HEADRACE_PLANNER_CLUSTER_SENDER_LINES_H_

// Which part of a load's line each of its candidates sends, when it is settled how much: those parts that are wanted on
// its own rail.
//
//   line   |--- for ranks on rail 0 ---|--- for ranks on rail 1 ---|     candidates on rails 1, 0 with equal shares
//   sent   |         candidate 1       |        candidate 0        |
//
// A set of consumers has room for as many bytes of each rail as its ranks on that rail are entries for; a part goes, in
// as few stretches as that allows, to candidates on rails that still have room, and the sets with the fewest rails
// choose first. What is left over goes to whoever has shares left. So this is one pass over the parts, and not always
// the most that could stay on a rail: sets that share candidates do not trade with each other.

#include <cstdint>
#include <vector>

#include "planner/cluster/consumers.h"
#include "planner/manifest.h"

namespace headrace {

// How many bytes of each rail can still meet an entry of that rail: the mean over the domains of the set, each of which
// weighs as many as it has ranks.
class RailRoom {
 public:
  // All bytes of the set have been added, and its shares set.
  RailRoom(const ConsumerSet& set, const SideShape& shape);

  struct Entry {
    int32_t rail = 0;
    Index bytes = 0;
  };
  const std::vector<Entry>& rails() const { return rails_; }  // ascending
  void Take(int32_t rail, Index bytes);

 private:
  std::vector<Entry> rails_;
};

// A part of a load's line that goes to one set of consumers.
struct LinePart {
  Index begin = 0;
  Index bytes = 0;
  RailRoom* room = nullptr;
};

struct SenderStretch {
  Index begin = 0;
  int32_t candidate = 0;
};

// `parts` tile the line, in its order; `shares` and `rails` are by candidate, and the shares add up to the line.
// Returns stretches by place, of which neighbours differ in their candidate. Takes what the senders bring from the
// parts' room.
std::vector<SenderStretch> PlaceSenders(const std::vector<LinePart>& parts, const std::vector<Index>& shares,
                                        const std::vector<int32_t>& rails);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_CLUSTER_SENDER_LINES_H_
