#ifndef HEADRACE_PLANNER_TESTING_ELEMENT_ORACLE_H_
#define HEADRACE_PLANNER_TESTING_ELEMENT_ORACLE_H_

// Test only. What every destination byte must be, element by element, and a plan's interpreter, byte by byte.
//
// Independent of the planner: it reads the manifest and the plan as data and uses none of the code that makes or proves
// a plan. Element e of the tensor listed t-th holds the top bits of splitmix64(t * 2^40 + e) (docs/manifest.md);
// elements lie in memory least significant bit first, so that 4- and 6-bit elements are packed. Destinations start as
// 0xA5 bytes and have guard bytes on either side. For manifests that Validate accepts, small enough to hold in memory.
// One thread.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/manifest.h"
#include "planner/plan.h"

namespace headrace {

inline constexpr uint8_t kPoison = 0xA5;

// The raw bits of an element.
uint64_t PatternBits(int tensor, Index element, int bits);

// The destination side's memories: one per storage, one per buffer without a storage, guards included.
class DestinationMemory {
 public:
  explicit DestinationMemory(const Manifest& manifest);

  // Raw bits of the element that lies `index` elements behind a destination buffer's first one, gaps included.
  uint64_t Element(int buffer, Index index) const;
  void SetElement(int buffer, Index index, uint64_t value);

  // One byte, from the buffer's first byte. Also counts the write. False outside of the buffer's span.
  bool WriteByte(int buffer, Index offset, uint8_t value);

  // Empty when both hold the same bytes (guards included) and the same numbers of writes; otherwise the first
  // difference.
  std::string Difference(const DestinationMemory& other) const;

 private:
  struct Region {
    std::vector<uint8_t> bytes;
    std::vector<uint8_t> writes;
  };
  struct Place {
    size_t region = 0;
    Index begin = 0;  // byte in the region
    Index size = 0;   // bytes
    int bits = 0;     // of an element
  };
  std::vector<Region> regions_;
  std::vector<Place> places_;  // per destination buffer
};

// What memory must be after a generation: tensor elements and zero fills written once, all else untouched.
DestinationMemory ExpectedMemory(const Manifest& manifest);

struct Interpretation {
  DestinationMemory memory;
  // Empty, or what is wrong with the plan apart from the memory that it leaves: reads of bytes that the source does not
  // offer, places outside of a buffer, tensor positions that are not those of the bytes, edges that do not fit.
  std::string fault;
};

// Executes a plan, also a wrong one, on real bytes: each source holds its snapshot, in the tensor's dtype. Streams are
// packed at their source, carried from rank to rank and unpacked at each.
Interpretation Interpret(const Manifest& manifest, const Plan& plan);

// Interprets and compares with ExpectedMemory: empty when the plan is right, otherwise the first fault.
std::string CheckPlan(const Manifest& manifest, const Plan& plan);

// True when some source memory would have to hold two different elements of one tensor at one place (overlapping pieces
// that contradict each other, strides of 0): there are no bytes that such a source could hold.
bool SourcesContradict(const Manifest& manifest);

// Elements of all tensors and spans of all buffers: what the functions above take time and memory for.
double TotalElements(const Manifest& manifest);

}  // namespace headrace

#endif  // HEADRACE_PLANNER_TESTING_ELEMENT_ORACLE_H_
