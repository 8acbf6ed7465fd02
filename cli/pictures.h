#ifndef HEADRACE_CLI_PICTURES_H_
#define HEADRACE_CLI_PICTURES_H_

// A page about a plan of a cluster that opens offline: one HTML file with its pictures (SVG) and tables in it, no
// script and nothing that is loaded from elsewhere.
//
// Pure functions of the data. Everything that a picture says in colour or length is also there in words: cells, bars
// and intervals have titles that a pointer shows.

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// Bytes from groups of source ranks (rows) to groups of destination ranks (columns).
struct TrafficMatrix {
  std::vector<std::string> rows;  // labels: "ranks 0 to 15"
  std::vector<std::string> columns;
  std::vector<int64_t> bytes;  // row by row
};

// One bar for each rank, or group of ranks.
struct Bars {
  std::string title;
  std::vector<std::string> labels;
  std::vector<std::string> parts;  // what a bar is made of, from the bottom up: "over NVLink"
  std::vector<int64_t> bytes;      // bar by bar, each as many as there are parts
};

struct TimelineInterval {
  int lane = 0;               // index into Timeline::lanes
  int kind = 0;               // index into Timeline::kinds
  double begin = 0, end = 0;  // seconds
};

struct Timeline {
  std::vector<std::string> lanes;  // their labels; empty: it belongs to the one above
  std::vector<std::string> kinds;
  std::vector<TimelineInterval> intervals;
  double seconds = 0;  // the whole of it
};

struct PlanPage {
  std::string title;
  std::vector<std::string> notes;                   // what must be known to read the numbers ("simulated")
  std::vector<std::vector<std::string>> figures;    // name, value
  std::vector<std::vector<std::string>> transfers;  // a heading, then a row for each kind of tensor, with its reason
  TrafficMatrix traffic;
  std::vector<Bars> bars;
  Timeline timeline;  // no lanes: there is none
};

std::string HtmlPage(const PlanPage& page);

// The sums of a long row of numbers in at most `most` groups of equal size (the last one may be smaller): group g has
// numbers [g * size, (g + 1) * size). `size` is the smallest that does.
int64_t GroupSize(int64_t count, int64_t most);
// Of each group its members: "rank 3", "ranks 0 to 15".
std::vector<std::string> GroupLabels(const std::string& what, int64_t count, int64_t size);

}  // namespace headrace

#endif  // HEADRACE_CLI_PICTURES_H_
