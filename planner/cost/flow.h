#ifndef HEADRACE_PLANNER_COST_FLOW_H_
#define HEADRACE_PLANNER_COST_FLOW_H_

// What moves where: the input of the time model. Made of a plan, or of another system's algorithm. Pure data.

#include <cstdint>
#include <vector>

#include "planner/manifest.h"

namespace headrace {

// One leg of a flow. Nodes are numbered: source ranks first, then destination ranks.
struct Hop {
  int32_t from = 0;
  int32_t to = 0;
  int32_t after = -1;  // the hop of the same flow that brings the bytes to `from`; -1: they are in its memory
  // Hops between the same two nodes, in either direction, with the same number are a group, which begins and ends as a
  // whole (simulate.h); a pair's groups begin in the order of their numbers. -1: it is in none.
  int32_t group = -1;
};

// Bytes that travel together: out of one source rank, along a tree of hops, chunk by chunk (a hop passes on a chunk as
// soon as it has it).
struct Flow {
  Index bytes = 0;
  Index copies = 0;       // strided copies at each end
  std::vector<Hop> hops;  // a hop comes behind the one that it is after
};

struct Traffic {
  int32_t source_ranks = 0;
  std::vector<int32_t> host;    // by node: nodes of one host, and of one NVLink domain, have the same number
  std::vector<int32_t> domain;  // by node
  // By node: NICs of one rail hang on one switch, and between rails bytes take the spine. Empty: all hang on one.
  std::vector<int32_t> rail;
  std::vector<Flow> flows;  // each node sends, and each receives, in this order
};

}  // namespace headrace

#endif  // HEADRACE_PLANNER_COST_FLOW_H_
