#ifndef HEADRACE_PLANNER_COST_TIMELINE_H_
#define HEADRACE_PLANNER_COST_TIMELINE_H_

// When ports are at work, in a bounded number of intervals. Internal to the simulator.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// Busy intervals of numbered tracks. Intervals of a track come in order and do not overlap. Where there are more than
// `max_intervals` of them, those with short pauses between them become one: of each track that was used at least one
// remains.
class Timeline {
 public:
  struct Interval {
    int64_t begin = 0;
    int64_t end = 0;  // > begin
  };

  Timeline(size_t tracks, size_t max_intervals) : tracks_(tracks), max_intervals_(max_intervals) {}

  // An empty interval is none.
  void Add(size_t track, int64_t begin, int64_t end);
  const std::vector<Interval>& track(size_t i) const { return tracks_[i]; }

 private:
  void Thin();

  std::vector<std::vector<Interval>> tracks_;
  size_t max_intervals_;
  size_t count_ = 0;
  size_t used_tracks_ = 0;
  int64_t pause_ = 0;  // shorter and equal ones are closed
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_TIMELINE_H_
