#include "planner/cost/timeline.h"

#include <algorithm>

namespace headrace {

void Timeline::Add(size_t track, int64_t begin, int64_t end) {
  if (end <= begin) return;
  std::vector<Interval>& intervals = tracks_[track];
  if (!intervals.empty() && begin - intervals.back().end <= pause_) {
    intervals.back().end = std::max(intervals.back().end, end);
    return;
  }
  if (intervals.empty()) ++used_tracks_;
  intervals.push_back({begin, end});
  ++count_;
  while (count_ > std::max(max_intervals_, used_tracks_)) Thin();
}

void Timeline::Thin() {
  pause_ = std::max<int64_t>(1, pause_ * 2);
  count_ = 0;
  for (std::vector<Interval>& intervals : tracks_) {
    size_t kept = 0;
    for (const Interval& interval : intervals) {
      if (kept > 0 && interval.begin - intervals[kept - 1].end <= pause_) {
        intervals[kept - 1].end = interval.end;
      } else {
        intervals[kept++] = interval;
      }
    }
    intervals.resize(kept);
    count_ += kept;
  }
}

}  // namespace headrace
