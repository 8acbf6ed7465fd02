#ifndef HEADRACE_CLI_PATTERN_H_
#define HEADRACE_CLI_PATTERN_H_

// The recognisable content that a rehearsal moves, and what must come out of it, by plain element loops over the
// manifest: no code shared with the planner.
//
// Element e of the t-th tensor is the top bits of splitmix64(t * 2^40 + e) (Steele, Lea, Flood 2014; constants from
// https://prng.di.unimi.it/splitmix64.c). Memory starts as 0xA5 bytes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/manifest.h"

namespace headrace {

inline constexpr std::byte kPoison{0xA5};

// One generation's values of all elements.
class Pattern {
 public:
  // `inverted` gives the complement of each element's bits: a generation that must be overwritten everywhere. The bits
  // are of the tensor's dtype; of a tensor with a source in a narrower float, of that dtype (it can hold nothing else).
  Pattern(const Manifest& manifest, bool inverted);

  // The value in a dtype that can hold it: the tensor's, or another float, exactly widened.
  uint64_t Bits(int tensor, Index element, Dtype as) const;

 private:
  std::vector<Dtype> held_;  // by tensor
  bool inverted_;
};

// Whether every value of one dtype is a value of the other: equal ones, and floats whose exponent and mantissa are not
// longer. Conversions between F16 and BF16 cannot be rehearsed exactly.
bool Widens(Dtype from, Dtype to);

// Writes the pieces of a buffer into its memory (`bytes` spans it from the first element): tensor elements, in the
// buffer's dtype, and zero fills. Leaves everything else alone.
void Paint(const Manifest& manifest, const Buffer& buffer, const Pattern& pattern, std::vector<std::byte>* bytes);

// The tensor of the first element of the buffer's pieces that does not hold its value; empty when all do.
std::string FirstUnlike(const Manifest& manifest, const Buffer& buffer, const Pattern& pattern,
                        const std::vector<std::byte>& bytes);

// The raw bits of the `index`-th element slot of memory that holds elements of this dtype.
uint64_t ElementAt(Dtype dtype, const std::vector<std::byte>& bytes, Index index);

}  // namespace headrace

#endif  // HEADRACE_CLI_PATTERN_H_
