#ifndef HEADRACE_LOADER_PART_BOX_H_
#define HEADRACE_LOADER_PART_BOX_H_

#include "planner/plan.h"

namespace headrace {

// A stream's part as a copy that has a source side alone: what is read, packed and summed.
inline Copy SourceBoxOf(const Part& part) {
  Copy box;
  box.tensor = part.tensor;
  box.source = part.source;
  box.destination = -1;
  box.source_offset = part.source_offset;
  box.position = part.position;
  box.run_bytes = part.run_bytes;
  for (const PartLoop& l : part.loops) box.loops.push_back({l.extent, l.source_stride, 0, l.position_stride});
  return box;
}

}  // namespace headrace

#endif  // HEADRACE_LOADER_PART_BOX_H_
